"""A master and its slaves over sockets: what is copied, what is promised, and what is refused."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ha.core.copies import Copy, CopyRules
from ha.core.stream import Report
from ha.log_ends import tail_of, whole_records_end
from ha.receiver import _longest_pause_s, _Stream
from ha.slave import Slave
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import DiskFailedError, DiskFullError
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue
from store.log.flusher import FlushMode
from store.log.placing import Placer
from store.replicated_log import AppendReceipt, LogRole
from tests.ha.nodes import FILE_SIZE, LOCAL, Node, State, copied, in_sync, master, slave
from tests.limits import WAIT_S
from tests.ports import free_ports
from tests.store.support import HOST, eventually, make_draft

SYNC = CopyRules(wanted=2)


def port(node: Node) -> int:
    return node.part.port  # type: ignore[union-attr]


def receipts(node: Node) -> list[AppendReceipt]:
    return [outcome for outcome in node.outcomes.all if isinstance(outcome, AppendReceipt)]


async def trimmed(node: Node, offset: int) -> None:
    """Remove the files of a log before `offset`, the start of a file."""
    await eventually(lambda: node.log.confirm_offset == node.log.max_offset)
    node.log.local.sync(node.log.max_offset, lambda _: None)
    await eventually(lambda: node.log.flushed_offset == node.log.max_offset)
    assert node.log.trim(offset) == offset


async def answered(node: Node, count: int) -> None:
    await eventually(lambda: len(node.outcomes.all) == count)


@pytest.mark.parametrize("speaks_plainly", [False, True], ids=["our dialect", "RocketMQ's"])
async def test_an_empty_slave_gets_everything_from_the_oldest_file_on(tmp_path: Path, speaks_plainly: bool) -> None:
    async with master(tmp_path, plain_slaves=LOCAL, batch_bytes=777) as first:
        for size in range(60):
            first.put(size * 10)
        assert len(first.log.local.queue.files) > 4
        async with slave(tmp_path, port(first), speaks_plainly=speaks_plainly) as second:
            await copied(first, second)
            first.put(100, 200)
            await copied(first, second)


@pytest.mark.parametrize("speaks_plainly", [False, True], ids=["our dialect", "RocketMQ's"])
async def test_a_slave_goes_on_where_it_was(tmp_path: Path, speaks_plainly: bool) -> None:
    async with master(tmp_path, plain_slaves=LOCAL) as first:
        first.put(100)
        async with slave(tmp_path, port(first), speaks_plainly=speaks_plainly) as second:
            await copied(first, second)
            before = second.log.max_offset
        first.put(*[300] * 20)
        await eventually(lambda: not first.log.replicas())
        async with slave(tmp_path, port(first), confirmed=before, speaks_plainly=speaks_plainly) as second:
            await copied(first, second)


async def test_the_blank_at_a_files_end_counts_with_the_record_behind_it_as_in_a_recovery(tmp_path: Path) -> None:
    async with master(tmp_path) as first:
        first.put(*[900] * 5)
        queue = first.log.local.queue
        (_, second_file), end = queue.files, queue.max_offset
        last = whole_records_end(queue, 0, second_file.start_offset)
        assert last < second_file.start_offset
        assert whole_records_end(queue, 0, end - 1) == whole_records_end(queue, last, end - 1) == last
        assert whole_records_end(queue, 0, end) == whole_records_end(queue, last, end) == end


async def test_a_window_that_holds_a_record_is_enough_for_a_blank_before_it(tmp_path: Path) -> None:
    async with (
        master(tmp_path, rules=SYNC, window_bytes=1600, batch_bytes=500) as first,
        slave(tmp_path, port(first)) as second,
    ):
        await in_sync(first)
        for _ in range(12):
            first.put(950)
        assert len(first.log.local.queue.files) == 4
        assert whole_records_end(first.log.local.queue, 0, FILE_SIZE) < FILE_SIZE - 600, "a large blank"
        await answered(first, 12)
        assert len(receipts(first)) == 12
        await copied(first, second)


async def test_a_slave_dials_again_within_a_moment(tmp_path: Path) -> None:
    async with master(tmp_path) as first:
        first.put(100)
        listener = port(first)
        async with slave(tmp_path, listener) as second:
            await copied(first, second)
            first.part._links and next(iter(first.part._links)).close()  # type: ignore[union-attr]
            first.put(200)
            await copied(first, second)
            assert second.log.state.role is LogRole.SLAVE


async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize("is_refused", [False, True], ids=["is away", "refuses it"])
async def test_a_slave_dials_every_100_ms_unless_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    (free,) = free_ports(1)
    listener = await asyncio.start_server(refuse, "127.0.0.1", free)
    if not is_refused:
        listener.close()
    pauses: list[float] = []

    def longest(refusals: int) -> float:
        pauses.append(_longest_pause_s(refusals))
        return 0.001

    monkeypatch.setattr("ha.receiver._longest_pause_s", longest)
    async with slave(tmp_path, free):
        await eventually(lambda: len(pauses) >= 6)
    listener.close()
    assert pauses[:6] == ([0.1, 0.2, 0.4, 0.7, 1.0, 1.0] if is_refused else [0.1] * 6)


async def test_a_slave_without_a_master_waits_until_it_is_told_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does the receiver of a node that is master itself."""
    pauses: list[int] = []

    def longest(refusals: int) -> float:
        pauses.append(refusals)
        return 0.001

    monkeypatch.setattr("ha.receiver._longest_pause_s", longest)
    async with slave(tmp_path, 0) as other:
        assert isinstance(other.part, Slave)
        receiver = other.part.receiver
        receiver.address = ""
        await eventually(lambda: receiver._stream is None)
        pauses.clear()
        await asyncio.sleep(0.05)
        assert not pauses


@pytest.mark.parametrize("jump_s", [3600, -3600], ids=["ahead", "back"])
async def test_a_jump_of_the_wall_clock_drops_no_slave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: int
) -> None:
    wall_s, wall_ns = time.time, time.time_ns
    async with master(tmp_path, SYNC, heartbeat_s=0.05) as first, slave(tmp_path, port(first)) as second:
        await eventually(lambda: [one.in_sync for one in first.log.replicas()] == [True])
        stream = second.part.receiver._stream  # type: ignore[union-attr]
        heard_s = stream._heard_s  # type: ignore[union-attr]
        monkeypatch.setattr(time, "time", lambda: wall_s() + jump_s)
        monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + jump_s * 1_000_000_000)
        await eventually(lambda: stream._heard_s > heard_s)  # type: ignore[union-attr]
        first.put(100)
        await answered(first, 1)
        assert [receipt.copies for receipt in receipts(first)] == [2]
        assert second.part.receiver._stream is stream  # type: ignore[union-attr]


async def test_a_slave_takes_no_records_and_says_who_does(tmp_path: Path) -> None:
    async with master(tmp_path) as first, slave(tmp_path, port(first)) as second:
        await in_sync(first)
        with pytest.raises(Refusal) as raised:
            second.put(1)
        assert raised.value.cause is Cause.NOT_LEADER
        await eventually(lambda: second.log.state.leader is not None)
        assert second.log.readiness().is_ready
        hint = second.log.state.leader
        assert hint is not None and (hint.address, hint.inside_address) == ("m:1", "m.inside:1")


async def test_a_promise_waits_for_the_slave_and_for_the_own_disk(tmp_path: Path) -> None:
    rules = CopyRules(wanted=2, counts_durable=True)
    async with master(tmp_path, rules, FlushMode.SYNC) as first, slave(tmp_path, port(first)) as second:
        await in_sync(first)
        for _ in range(20):
            first.put(10)
        await answered(first, 20)
        assert {(receipt.copies, receipt.shortfall) for receipt in receipts(first)} == {(2, None)}
        assert receipts(first)[-1].durable_copies == 2, "the slave flushes for this master, though it is ASYNC_FLUSH"
        await copied(first, second)


async def test_a_slave_never_has_what_a_power_cut_may_take_from_a_master_that_flushes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the pair would differ after a power cut, and only an operator could tell which log is right."""
    sync, may_go, calls = MappedFile.sync, threading.Event(), threading.Event()

    def held_up(file: MappedFile) -> None:
        if first.log.local.queue.file_at(file.start_offset) is file:
            calls.set()
            may_go.wait(WAIT_S)
        sync(file)

    rules = CopyRules(wanted=2, counts_durable=True)
    async with master(tmp_path, rules, FlushMode.SYNC) as first, slave(tmp_path, port(first)) as second:
        await in_sync(first)
        first.put(10)
        await answered(first, 1)
        before = second.log.max_offset
        monkeypatch.setattr(MappedFile, "sync", held_up)
        try:
            first.put(10)
            await eventually(calls.is_set)
            (link,) = first.part._links  # type: ignore[union-attr]
            link.send()
            assert link.copy is not None and link.copy.sent == second.log.max_offset == before
        finally:
            may_go.set()
        await answered(first, 2)
        await copied(first, second)


@pytest.mark.parametrize("rules", [CopyRules(), SYNC], ids=["nobody waits for the slave", "senders wait for it"])
async def test_records_gather_for_a_slave_unless_senders_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: CopyRules
) -> None:
    monkeypatch.setattr("ha.master._TELL_S", 0.2)  # longer than a turn of the loop on any machine
    async with master(tmp_path, rules) as first, slave(tmp_path, port(first)) as second:
        await in_sync(first)
        (link,) = first.part._links  # type: ignore[union-attr]
        frames: list[int] = []
        write = link._write

        def noted(transport: asyncio.Transport, copy: Copy, data: memoryview) -> None:
            frames.extend([len(data)] if data else [])
            write(transport, copy, data)

        monkeypatch.setattr(link, "_write", noted)
        for _ in range(20):
            first.put(10)
            await asyncio.sleep(0)  # the turn that placed it ends
        await copied(first, second)
        assert len(frames) == 20 if rules is SYNC else len(frames) < 20
        await eventually(lambda: not link._marks)  # the lag of each was counted


async def test_the_confirm_offset_goes_with_the_next_records_while_records_follow_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet: dict[str, Any] = {"heartbeat_s": 3600.0, "idle_limit_s": 7200.0}
    async with master(tmp_path, SYNC, **quiet) as first, slave(tmp_path, port(first), **quiet) as second:
        await in_sync(first)
        await copied(first, second)
        monkeypatch.setattr("ha.master._TELL_S", 3600.0)
        (link,) = first.part._links  # type: ignore[union-attr]
        with patch.object(link, "_write", side_effect=link._write) as frames:
            for number in range(1, 11):
                first.put(10)
                await answered(first, number)
        assert second.log.confirm_offset > 0
        assert frames.call_count == 10, "each frame holds a record, and what was confirmed before"
        monkeypatch.setattr("ha.master._TELL_S", 0.0)
        first.part._tell()  # type: ignore[union-attr]
        await copied(first, second)


async def test_a_slave_that_does_not_answer_makes_senders_wait_and_no_more(tmp_path: Path) -> None:
    async with master(tmp_path, SYNC) as first, slave(tmp_path, port(first)) as second:
        await in_sync(first)
        second.part.take = lambda _header, _data: None  # type: ignore[method-assign,union-attr]
        first.put(10)
        await answered(first, 1)
        assert first.outcomes.causes == [Cause.REPLICA_TIMEOUT]
        assert first.log.confirm_offset == 0, "no reader has seen it"


async def test_when_the_last_slave_goes_those_that_wait_are_answered_at_once(tmp_path: Path) -> None:
    async with master(tmp_path, SYNC, limit_s=60.0) as first:
        async with slave(tmp_path, port(first)) as second:
            await in_sync(first)
            second.part.take = lambda _header, _data: None  # type: ignore[method-assign,union-attr]
            first.put(10)
            await asyncio.sleep(0.05)
            assert not first.outcomes.all
        await answered(first, 1)
        [receipt] = receipts(first)
        assert receipt.shortfall is not None and receipt.shortfall.cause is Cause.SLAVE_NOT_AVAILABLE
        assert first.log.confirm_offset == first.log.max_offset
        first.put(10)
        await answered(first, 2)


async def test_below_the_least_number_of_copies_nothing_is_stored(tmp_path: Path) -> None:
    async with master(tmp_path, CopyRules(wanted=2, least=2)) as first:
        with pytest.raises(Refusal) as raised:
            first.put(10)
        assert (raised.value.cause, raised.value.code) == (Cause.IN_SYNC_REPLICAS_NOT_ENOUGH, 1)
        assert first.log.max_offset == 0 and not first.log.readiness().is_ready
        async with slave(tmp_path, port(first)):
            await in_sync(first)
            first.put(10)
            await answered(first, 1)
            assert first.log.readiness().is_ready


async def test_a_slave_shows_no_more_than_the_master_has_confirmed(tmp_path: Path) -> None:
    async with (
        master(tmp_path, CopyRules(wanted=3)) as first,
        slave(tmp_path, port(first), "one") as one,
        slave(tmp_path, port(first), "two", broker_id=2, client_address="s:2") as two,
    ):
        await in_sync(first, 2)
        first.put(10)
        await copied(first, one)
        await copied(first, two)
        two.part.take = lambda _header, _data: None  # type: ignore[method-assign,union-attr]
        before = first.log.confirm_offset
        end = first.put(10)
        await eventually(lambda: one.log.max_offset == end)
        await asyncio.sleep(0.05)
        assert (first.log.confirm_offset, one.log.confirm_offset) == (before, before)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cluster": "other"}, "brokerClusterName"),
        ({"name": "other"}, "brokerName"),
        ({"secrets": (b"another" * 9,)}, "haPeerSecretFile"),
        ({"secrets": ()}, "haPeerSecretFile"),
        ({"file_size": 8192}, "mappedFileSizeCommitLog"),
    ],
)
async def test_a_slave_of_another_group_is_refused(
    tmp_path: Path, change: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with master(tmp_path, SYNC) as first, slave(tmp_path, port(first), **change) as second:
        await eventually(lambda: second.part.trouble is not None)  # type: ignore[union-attr]
        assert said in str(second.part.trouble)  # type: ignore[union-attr]
        assert f"is refused at the port for slaves: {said} differs" in caplog.text
        assert not first.log.replicas() and second.log.max_offset == 0
        assert not second.log.readiness().is_ready


async def test_rocketmqs_dialect_is_for_the_addresses_that_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with master(tmp_path) as first, slave(tmp_path, port(first), speaks_plainly=True):
        first.put(10)
        await eventually(lambda: "haPlainSlaves differs: 127.0.0.1 speaks RocketMQ's dialect" in caplog.text)
        assert not first.log.replicas()


async def test_what_a_slave_has_beyond_the_master_is_cut_if_it_was_never_confirmed(tmp_path: Path) -> None:
    [listener] = free_ports(1)
    async with slave(tmp_path, listener) as second:
        async with master(tmp_path / "a", SYNC, port=listener) as first:
            kept = first.put(100)
            await copied(first, second)
            await in_sync(first)
            second.part.report = lambda: Report(kept, 0)  # type: ignore[method-assign,union-attr]
            end = first.put(200)
            await eventually(lambda: second.log.max_offset == end)
            assert second.log.confirm_offset == kept
        del second.part.report  # type: ignore[union-attr]
        async with master(tmp_path / "b", port=listener) as other:
            other.put(100)
            await eventually(lambda: second.log.max_offset == kept)
            other.put(300)
            await copied(other, second)


async def test_a_cut_that_the_disk_refuses_ends_writing_and_not_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [listener] = free_ports(1)
    async with slave(tmp_path, listener) as second:
        async with master(tmp_path / "a", SYNC, port=listener) as first:
            kept = first.put(100)
            await copied(first, second)
            await in_sync(first)
            second.part.report = lambda: Report(kept, 0)  # type: ignore[method-assign,union-attr]
            end = first.put(200)
            await eventually(lambda: second.log.max_offset == end)
        del second.part.report  # type: ignore[union-attr]

        def refuse(_offset: int) -> None:
            raise DiskFailedError(tmp_path, "it is broken")

        monkeypatch.setattr(second.log.local, "cut", refuse)
        async with master(tmp_path / "b", port=listener):
            await eventually(lambda: "it is broken" in second.log.readiness().reason)
            assert "it is broken" in str(second.part.trouble)  # type: ignore[union-attr]
            task = second.part.receiver._task  # type: ignore[union-attr]
            assert task is not None and not task.done()


async def test_a_failure_while_following_does_not_keep_the_log_from_being_closed(tmp_path: Path) -> None:
    async with master(tmp_path) as first:
        first.put(100)
        async with slave(tmp_path, port(first)) as second:
            await copied(first, second)

            def fail(_error: Exception | None) -> None:
                raise RuntimeError("a mistake")

            second.part.lost = fail  # type: ignore[method-assign,union-attr]
            next(iter(first.part._links)).close()  # type: ignore[union-attr]
            await eventually(second.part.receiver._task.done)  # type: ignore[union-attr]
        assert not second.log.local.queue.files


async def test_a_snapshot_may_take_long_while_it_keeps_coming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ha.receiver.HANDSHAKE_S", 0.1)
    async with master(tmp_path, heartbeat_s=0.05, idle_limit_s=0.4) as first:
        first.state.state = bytes(400_000)
        first.put(*[500] * 30)
        await trimmed(first, 2 * FILE_SIZE)
        async with (
            through_a_slow_line(port(first)) as line,
            slave(tmp_path, line, heartbeat_s=0.05, idle_limit_s=0.4) as second,
        ):
            await copied(first, second)
            assert second.state.state == first.state.state


@contextlib.asynccontextmanager
async def through_a_slow_line(to_port: int) -> AsyncIterator[int]:
    """Forwards to a port; what comes back is slowed down to 8 KiB each 20 ms: the port to dial."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pause_s: float) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            while data := await reader.read(8192):
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(pause_s)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", to_port)
        await asyncio.gather(forward(reader, back, 0), forward(there, writer, 0.02))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_a_slave_of_rocketmqs_master_reports_once_a_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[_Stream] = []
    monkeypatch.setattr(_Stream, "_beat", lambda stream: beats.append(stream))
    async with master(tmp_path, plain_slaves=LOCAL) as first, slave(tmp_path, port(first), speaks_plainly=True):
        await eventually(lambda: bool(beats))
        await asyncio.sleep(0.05)
        assert len(beats) == 1


async def test_rocketmqs_address_for_slaves_is_not_taken_for_the_one_for_clients(tmp_path: Path) -> None:
    async with (
        master(tmp_path, plain_slaves=LOCAL) as first,
        slave(tmp_path, port(first), speaks_plainly=True) as second,
    ):
        await eventually(lambda: second.log.readiness().is_ready)
        leader = second.log.state.leader
        assert leader is None
        second.part.follow("", "m:1")  # type: ignore[union-attr]
        leader = second.log.state.leader
        assert leader is not None
        assert leader.address == "m:1"


async def test_a_master_that_closes_confirms_nothing_when_its_slaves_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with master(tmp_path, SYNC, limit_s=60.0) as first, slave(tmp_path, port(first)) as second:
        kept = first.put(100)
        await copied(first, second)
        await in_sync(first)
        second.part.report = lambda: Report(kept, 0)  # type: ignore[method-assign,union-attr]
        end = first.put(200)
        await eventually(lambda: second.log.max_offset > kept)
        close_files = first.log.local.close_files

        async def close_files_late() -> None:
            await eventually(lambda: not first.log.replicas())
            await close_files()

        monkeypatch.setattr(first.log.local, "close_files", close_files_late)
        await first.log.close()
        assert first.log.confirm_offset == kept
        assert first.outcomes.causes[-1] is Cause.REPLICA_TIMEOUT, "its sender must not take it for lost"
        monkeypatch.undo()
        async with master(tmp_path, SYNC) as again:
            assert again.log.max_offset == end, "the next start has it"


async def test_senders_are_told_that_the_own_flush_is_late_when_slaves_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with master(tmp_path, SYNC, FlushMode.SYNC) as first, slave(tmp_path, port(first)) as second:
        await in_sync(first)
        monkeypatch.setattr(first.log.local, "sync", lambda _offset, _done: None)
        end = first.put(10)
        await answered(first, 1)
        assert first.outcomes.causes == [Cause.FLUSH_TIMEOUT] and second.log.max_offset < end


async def test_what_a_slave_had_when_it_started_is_not_cut_since_it_may_have_been_acknowledged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with master(tmp_path / "a", SYNC) as first, slave(tmp_path, port(first)) as second:
        kept = first.put(100)
        await in_sync(first)
        end = first.put(200)
        await copied(first, second)
        await eventually(lambda: len(receipts(first)) == 2)
    async with master(tmp_path / "b") as other:
        other.put(100)
        async with slave(tmp_path, port(other), confirmed=kept) as second:
            await eventually(lambda: "not a copy of the master's: longer" in second.log.readiness().reason)
            assert not second.log.readiness().is_ready and second.log.max_offset == end
            assert second.log.confirm_offset == kept, "the master has not confirmed it to this process"


@pytest.mark.parametrize(("sizes", "said"), [((100,), "longer"), ((100, 201, 300), "other bytes")])
async def test_a_slave_that_has_confirmed_what_the_master_has_not_stands_still(
    tmp_path: Path, sizes: tuple[int, ...], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with master(tmp_path / "a") as first:
        first.put(100)
        end = first.put(200)
        async with slave(tmp_path, port(first)) as second:
            await copied(first, second)
    async with master(tmp_path / "b", SYNC) as other:
        other.put(*sizes)
        async with slave(tmp_path, port(other), confirmed=end) as second:
            await eventually(lambda: "not a copy" in second.log.readiness().reason)
            assert not second.log.readiness().is_ready
            assert f"the log here is not a copy of the master's: {said}" in caplog.text
            await asyncio.sleep(0.2)
            assert second.log.max_offset == end and not other.log.replicas()


async def test_histories_that_differ_in_the_head_of_a_long_last_record_differ(tmp_path: Path) -> None:
    tails = []
    for queue_offset in (7, 8):
        queue = MappedFileQueue(tmp_path / str(queue_offset), 10 << 20)
        placer = Placer(queue, HOST)
        for body in (b"before", bytes(4 << 20)):
            placer.place([make_draft(body, queue_offset=queue_offset)], 1_700_000_000_000)
        tails.append(tail_of(queue))
        queue.close()
    assert tails[0].end == tails[1].end and tails[0].crc != tails[1].crc


async def test_a_record_that_has_not_arrived_whole_is_dropped_before_the_slave_says_where_it_ends(
    tmp_path: Path,
) -> None:
    async with master(tmp_path, batch_bytes=150, window_bytes=400) as first, slave(tmp_path, port(first)) as second:
        whole = first.put(100)
        await copied(first, second)
        part = second.part
        assert isinstance(part, Slave)
        begin, ends = part.begin, []
        part.begin = lambda welcome, snapshot: (ends.append(second.log.max_offset), begin(welcome, snapshot))[1]  # type: ignore[method-assign,func-returns-value]
        part.report = lambda: Report(whole, whole)  # type: ignore[method-assign]
        first.put(1000)
        await eventually(lambda: second.log.max_offset == whole + 400)
        del part.report
        first.part.config = replace(first.part.config, window_bytes=1 << 20)  # type: ignore[arg-type]
        next(iter(first.part._links)).close()  # type: ignore[union-attr]
        await copied(first, second)
        assert ends == [whole]


def damage(log: Path, offset: int) -> None:
    """Change a byte in the body of the record at this offset of the log's first file, as a power cut may."""
    with (log / f"{0:020d}").open("r+b") as file:
        file.seek(offset + 100)
        changed = file.read(1)[0] ^ 1
        file.seek(offset + 100)
        file.write(bytes([changed]))


@pytest.mark.parametrize("speaks_plainly", [False, True], ids=["our dialect", "RocketMQ's"])
async def test_records_that_a_power_cut_damaged_at_a_slave_are_copied_anew(
    tmp_path: Path, speaks_plainly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with master(tmp_path, plain_slaves=LOCAL) as first:
        start = first.put(200)
        first.put(201, 202)
        async with slave(tmp_path, port(first), speaks_plainly=speaks_plainly) as second:
            await copied(first, second)
        damage(tmp_path / "slave", start)
        await eventually(lambda: not first.log.replicas())
        async with slave(tmp_path, port(first), confirmed=start, speaks_plainly=speaks_plainly) as second:
            assert second.log.confirm_offset == start
            await copied(first, second)
            assert f"the record at {start} is damaged" in caplog.text
            first.put(203)
            await copied(first, second)


async def test_a_damaged_record_that_a_slave_had_confirmed_is_not_cut(tmp_path: Path) -> None:
    async with master(tmp_path) as first:
        start = first.put(200)
        end = first.put(201, 202)
        async with slave(tmp_path, port(first)) as second:
            await copied(first, second)
        damage(tmp_path / "slave", start)
        await eventually(lambda: not first.log.replicas())
        async with slave(tmp_path, port(first), confirmed=end) as second:
            await eventually(lambda: "not a copy" in second.log.readiness().reason)
            assert second.log.max_offset == end


async def test_a_slave_behind_the_oldest_file_begins_anew_with_the_masters_state(tmp_path: Path) -> None:
    async with master(tmp_path) as first:
        first.put(100)
        async with slave(tmp_path, port(first)) as second:
            await copied(first, second)
        await eventually(lambda: not first.log.replicas())
        first.put(*[500] * 30)
        await trimmed(first, 2 * FILE_SIZE)
        async with slave(tmp_path, port(first)) as second:
            await copied(first, second)
            assert second.log.min_offset == 2 * FILE_SIZE and second.state.state == b"state"


async def test_a_snapshot_that_was_not_restored_is_sent_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with master(tmp_path) as first:
        first.put(*[500] * 30)
        await trimmed(first, 2 * FILE_SIZE)
        async with slave(tmp_path, port(first)) as second:
            refusals = [OSError("no room"), ValueError("no state")]

            def restore(state: bytes) -> None:
                if refusals:
                    assert not second.log.readiness().is_ready
                    raise refusals.pop()
                State.restore(second.state, state)

            second.state.restore = restore  # type: ignore[method-assign]
            await copied(first, second)
            assert second.state.state == b"state" and second.log.readiness().is_ready
            assert "no room" in caplog.text and "no state" in caplog.text


async def test_a_full_disk_at_the_slave_is_no_harm_to_the_master_and_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with master(tmp_path, SYNC) as first, slave(tmp_path, port(first)) as second:
        first.put(100)
        await copied(first, second)
        real = second.log.local.append_bytes

        def refuse(data: memoryview) -> int:
            raise DiskFullError(tmp_path, len(data))

        monkeypatch.setattr(second.log.local, "append_bytes", refuse)
        first.put(100)
        await eventually(lambda: "does not copy the log" in caplog.text and "no room" in caplog.text)
        await answered(first, 2)
        monkeypatch.setattr(second.log.local, "append_bytes", real)
        await copied(first, second)
        await in_sync(first)


class Confirmed:
    """Listens to a log: all its confirm offsets."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def on_confirmed(self, confirm_offset: int) -> None:
        self.offsets.append(confirm_offset)

    def on_role_change(self, state: object) -> None: ...

    def on_truncated(self, max_offset: int) -> None: ...


@pytest.mark.parametrize("flush_mode", [FlushMode.ASYNC, FlushMode.SYNC])
async def test_frames_that_end_inside_records_confirm_whole_records_everywhere(
    tmp_path: Path, flush_mode: FlushMode
) -> None:
    rules = CopyRules(wanted=3, counts_durable=flush_mode is FlushMode.SYNC)
    async with (
        master(tmp_path, rules, flush_mode, batch_bytes=150, window_bytes=800) as first,
        slave(tmp_path, port(first), "one") as second,
        slave(tmp_path, port(first), "two", broker_id=2) as third,
    ):
        await in_sync(first, 2)
        seen = [Confirmed() for _ in range(3)]
        for node, listener in zip((first, second, third), seen, strict=True):
            node.log.add_listener(listener)
        ends = {first.put(size) for size in (90, 300, 10, 500, 250, 40)}
        await copied(first, second)
        await copied(first, third)
        ends |= {file.start_offset for file in first.log.local.queue.files}
        for listener in seen:
            assert listener.offsets and set(listener.offsets) <= ends


async def test_a_master_that_stops_tells_its_slaves_what_it_has_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ha.master._TELL_S", 3600.0)
    async with contextlib.AsyncExitStack() as first_alone:
        first = await first_alone.enter_async_context(master(tmp_path, SYNC))
        async with slave(tmp_path, port(first)) as second:
            await in_sync(first)
            first.put(10)
            await answered(first, 1)
            end = first.log.confirm_offset
            assert end == first.log.max_offset
            await first_alone.aclose()
            await eventually(lambda: second.log.confirm_offset == end)
