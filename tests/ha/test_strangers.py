"""Whoever else connects to a master's port: garbage, impossible reports, slaves that do not read."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ha.config import MasterConfig
from ha.core.copies import CopyRules
from ha.core.handshake import seal
from ha.core.stream import CLASSIC, OPENER, OURS, Report
from ledgermq.message.crc import crc32
from tests.ha.nodes import GROUP, LOCAL, Node, copied, in_sync, master, slave
from tests.limits import WAIT_S
from tests.store.support import eventually

SYNC = CopyRules(wanted=2)


def port(node: Node) -> int:
    return node.part.port  # type: ignore[union-attr]


@contextlib.asynccontextmanager
async def connected(node: Node) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port(node), limit=1 << 24)
    try:
        yield reader, writer
    finally:
        writer.close()


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Whether the other end closes within the limit, whatever it sends before."""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(WAIT_S):
            while await reader.read(1 << 16):
                pass
    return True


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(64),
        OPENER + b"GET / HTTP/1.1\r\n\r\n",
        OPENER + seal(b"{}"),
        OPENER + seal(b"{}", bytes(32)),
        OPENER + b"\xff" * 5000,
        bytes.fromhex("8000000000000000"),
    ],
    ids=[
        "HTTP",
        "a plain report",
        "HTTP behind the opener",
        "no proof",
        "a wrong proof",
        "garbage",
        "a negative report",
    ],
)
async def test_garbage_is_refused_and_harms_nobody(
    tmp_path: Path, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with master(tmp_path) as first, connected(first) as (reader, writer):
        first.put(100)
        writer.write(said)
        assert await is_closed(reader)
        assert "is refused at the port for slaves" in caplog.text
        assert not first.log.replicas()
        async with slave(tmp_path, port(first)) as second:
            await copied(first, second)


async def test_whoever_says_nothing_is_given_up_and_cannot_take_all_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ha.sender.HANDSHAKE_S", 0.2)
    async with master(tmp_path) as first, connected(first) as (reader, _):
        assert await is_closed(reader)
        async with contextlib.AsyncExitStack() as many:
            for _ in range(40):
                await many.enter_async_context(connected(first))
            async with slave(tmp_path, port(first)) as second:
                first.put(1)
                await copied(first, second)


@pytest.mark.parametrize("report", [1 << 40, 101], ids=["far beyond the log", "beyond what was sent"])
async def test_a_report_of_what_was_never_sent_acknowledges_nothing(
    tmp_path: Path, report: int, caplog: pytest.LogCaptureFixture
) -> None:
    """In RocketMQ it would complete every waiting send (apache/rocketmq#3015)."""
    async with master(tmp_path, SYNC, plain_slaves=LOCAL) as first, connected(first) as (reader, writer):
        end = first.put(100)
        writer.write(CLASSIC.report(Report(end, end)))
        await in_sync(first)
        first.put(200)
        writer.write(CLASSIC.report(Report(end + report * 1000, 0)))
        assert await is_closed(reader)
        await eventually(lambda: not first.log.replicas())
        assert "is dropped: a report of" in caplog.text
        assert {outcome.copies for outcome in first.outcomes.all} == {1}  # type: ignore[union-attr]


async def test_a_first_report_beyond_the_log_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with master(tmp_path, plain_slaves=LOCAL) as first, connected(first) as (reader, writer):
        writer.write(CLASSIC.report(Report(1 << 40, 0)))
        assert await is_closed(reader)
        assert "longer: a first report of 1099511627776" in caplog.text


async def test_a_slave_that_does_not_read_is_bounded_and_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with master(tmp_path, plain_slaves=LOCAL, idle_limit_s=1.0, window_bytes=1 << 16) as first:
        with socket.create_connection(("127.0.0.1", port(first))) as stuck:
            stuck.setblocking(False)
            stuck.send(CLASSIC.report(Report(0, 0)))
            for _ in range(100):
                first.put(*[1000] * 3)
            await eventually(lambda: len(first.log.replicas()) == 1)
            link = next(iter(first.part._links))  # type: ignore[union-attr]
            assert link.copy is not None
            beat = link.copy
            assert beat.sent - beat.received <= 2 << 16  # a window begins anew at a file's end
            for _ in range(30):  # it beats, and takes nothing
                with contextlib.suppress(OSError):
                    stuck.send(CLASSIC.report(Report(1, 0)))
                await asyncio.sleep(0.05)
                if not first.log.replicas():
                    break
            await eventually(lambda: not first.log.replicas())
            assert "it has taken none of" in caplog.text


async def test_a_record_that_is_none_is_cut_off_again_and_asked_for_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """RocketMQ's dialect has no CRC: what arrives is checked record by record."""
    async with master(tmp_path, plain_slaves=LOCAL) as first:
        first.put(100)
        async with slave(tmp_path, port(first), speaks_plainly=True) as second:
            await copied(first, second)
            receive, is_damaged = second.log.receive, [True]

            def damaged(data: memoryview) -> int:
                return (
                    receive(memoryview(bytes(len(data))) if is_damaged.pop() else data) if is_damaged else receive(data)
                )

            monkeypatch.setattr(second.log, "receive", damaged)
            first.put(200)
            await copied(first, second)
            assert "the master sends what is no record, at" in caplog.text


async def test_bytes_that_changed_on_their_way_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with master(tmp_path) as first, slave(tmp_path, port(first)) as second:
        first.put(100)
        await copied(first, second)
        crcs = iter([7])
        monkeypatch.setattr("ha.sender.crc32", lambda data: next(crcs, crc32(data)) if len(data) else crc32(data))
        first.put(200)
        await copied(first, second)
        assert "the CRC of" in caplog.text


class Between:
    """Sits between a slave and its master. `forged`: keeps what the master sends; reports it in the slave's name."""

    def __init__(self, port: int) -> None:
        self.forged: Report | None = None
        self._port = port

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_master = await asyncio.open_connection("127.0.0.1", self._port)

        async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter, forges: bool) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(1 << 16):
                    if self.forged is None:
                        target.write(data)
                    elif forges:
                        to_master.write(OURS.report(self.forged) * 2)
            target.close()

        await asyncio.gather(pass_on(reader, to_master, False), pass_on(there, writer, True))


async def test_whoever_sits_between_cannot_report_what_the_slave_does_not_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with master(tmp_path, SYNC) as first:
        between = Between(port(first))
        server = await asyncio.start_server(between, "127.0.0.1", 0)
        async with server, slave(tmp_path, server.sockets[0].getsockname()[1]) as second:
            await in_sync(first)
            end = first.put(100)
            await copied(first, second)
            between.forged = Report(2 * end, 2 * end)
            first.put(100)
            await eventually(lambda: "without the seal of haPeerSecretFile" in caplog.text)
            assert second.log.max_offset == end
            copies = [getattr(one, "copies", 0) for one in first.outcomes.all]  # a refusal has none
            assert copies[0] == 2 > max(copies[1:], default=0)
            between.forged = None
            await copied(first, second)


@pytest.mark.parametrize(
    ("host", "secrets", "is_insecure", "needs"),
    [
        ("127.0.0.1", (), False, False),
        ("10.0.0.7", (), False, True),
        ("10.0.0.7", (), True, False),
        ("127.0.0.1", (b"s",), True, True),
    ],
)
def test_without_a_secret_only_slaves_on_this_machine_are_believed(
    host: str, secrets: tuple[bytes, ...], is_insecure: bool, needs: bool
) -> None:
    group = replace(GROUP, secrets=secrets)
    config = MasterConfig(
        group=group, listen_host="", listen_port=0, rules=CopyRules(), limit_s=None, is_insecure=is_insecure
    )
    assert config.needs_proof(host) is needs
