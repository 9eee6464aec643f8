"""Elected replicas that speak RocketMQ's dialect of elected masters with each other."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ha.controller.core.commands import AlterSet
from ha.core.auto_switch import AUTO_SWITCH, SlaveHandshake, encode_handshake
from ha.core.stream import CLASSIC, Report, SealedOurs
from ha.elected.member import ElectedMember
from store.errors import DiskReadError
from store.replicated_log import LogRole
from tests.ha.elected.group import Court, Replica, in_sync, leads, replica, same
from tests.store.support import eventually


def routed(slave: Replica, master: Replica) -> bool:
    """A nameserver tells the slave of its master; whether it needs no more."""
    return slave.member.follow(f"127.0.0.1:{master.member.master.port}", f"s:{master.broker_id}")


@pytest.fixture
def court() -> Court:
    court = Court(2)
    court.hides_listeners = True
    return court


@asynccontextmanager
async def master_and_slave(tmp_path: Path, court: Court) -> AsyncIterator[tuple[Replica, Replica]]:
    """Both in sync, by the dialect."""
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        async with replica(tmp_path, court, 2) as second:
            await eventually(lambda: routed(second, first))
            await in_sync(court, 1, 2)
            yield first, second


async def test_a_slave_follows_the_master_that_a_nameserver_tells_of(tmp_path: Path, court: Court) -> None:
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        first.put(*[1000] * 20)  # several files
        async with replica(tmp_path, court, 2) as second:
            await eventually(lambda: second.log.state.leader is not None)
            assert not second.member.follow("127.0.0.1:1", "s:9"), "a broker that is not master"
            assert second.member.slave.receiver.address == ""
            assert routed(second, first)
            assert second.member.slave.tables_at == "s:1"
            await in_sync(court, 1, 2)
            first.put(100, 200)
            await same(first, second)
            assert second.log.generations() == first.log.generations()


async def test_a_master_that_turns_out_to_be_ours_is_dialled_anew_at_the_same_address(
    tmp_path: Path, court: Court
) -> None:
    async with master_and_slave(tmp_path, court) as (first, second):
        before = second.member.slave.receiver._stream
        assert before is not None and before._dialect is AUTO_SWITCH
        court.hides_listeners = False
        second.member.ask_controllers()
        await eventually(before.ended.done)
        first.put(100)
        await same(first, second)
        after = second.member.slave.receiver._stream
        assert after is not None and isinstance(after._dialect, SealedOurs)


async def test_a_deposed_masters_rest_is_cut_at_the_diverging_epoch(tmp_path: Path, court: Court) -> None:
    async with master_and_slave(tmp_path, court) as (first, second):
        first.put(100)
        await same(first, second)
        common = first.log.max_offset
        second.member.slave.receiver.address = ""  # it gets nothing any more, and is still in the set
        second.member.follow("", "")
        first.put(200, 300)
        court.elect(2, designated=True)
        await leads(second)
        assert second.member.slave.tables_at == "", "a master asks nobody"
        second.put(50, 60)
        await eventually(lambda: first.log.state.role is LogRole.SLAVE)
        assert routed(first, second)
        await same(second, first)
        assert [one.start_offset for one in first.log.generations()] == [0, common]
        assert first.log.generations() == second.log.generations()


def dial(member: ElectedMember, data: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", member.master.port), 10)
    sock.sendall(data)
    return sock


SHAKE = encode_handshake(SlaveHandshake(2))


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (CLASSIC.report(Report(0, 0)), "no handshake, and this master was elected"),
        (SHAKE + struct.pack(">iq", 2, 1 << 40), "longer: a first report of 1099511627776"),
        (SHAKE + struct.pack(">iq", 1, 0), "a report of offset 0 in state 1"),
        (SHAKE + struct.pack(">iqiq", 2, 0, 2, 1 << 40), "a report of 1099511627776, and only"),
        (struct.pack(">ihhq", 1, 0, 0, -1), "a handshake of broker -1"),
    ],
)
async def test_what_no_slave_of_an_elected_master_says_is_refused(
    tmp_path: Path, court: Court, caplog: pytest.LogCaptureFixture, said: bytes, text: str
) -> None:
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        first.put(100)
        await eventually(lambda: len(first.outcomes.all) == 1)
        with dial(first.member, said):
            await eventually(lambda: text in caplog.text)


@pytest.mark.parametrize("part", [1, 40])
async def test_a_slave_goes_on_inside_the_record_in_which_its_last_connection_ended(
    tmp_path: Path, court: Court, part: int
) -> None:
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        first.put(100)
        whole = first.put(100)
        end = first.put(200)
        await eventually(lambda: len(first.outcomes.all) == 3)
        with dial(first.member, SHAKE + struct.pack(">iq", 2, whole + part)) as sock:
            await eventually(lambda: bool(first.log.replicas()))
            assert first.log.replicas()[0].received_offset == whole
            sock.sendall(struct.pack(">iqiq", 2, end - 1, 2, end))
            await eventually(lambda: first.log.replicas()[0].received_offset == end)


async def test_a_log_that_cannot_be_read_is_told_and_the_slave_let_go(
    tmp_path: Path, court: Court, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> int:
        raise DiskReadError(tmp_path, 3, "Input/output error")

    monkeypatch.setattr("ha.sender.record_start_at", unreadable)
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        with dial(first.member, SHAKE + struct.pack(">iq", 2, 0)):
            await eventually(lambda: "cannot be read at byte 3" in caplog.text)
            assert "is refused at the port for slaves" in caplog.text and "Traceback" not in caplog.text


async def test_a_learner_copies_and_never_counts(tmp_path: Path, court: Court) -> None:
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        end = first.put(100)
        await eventually(lambda: len(first.outcomes.all) == 1)
        said = encode_handshake(SlaveHandshake(2, is_learner=True)) + struct.pack(">iq", 2, end)
        with dial(first.member, said):
            await eventually(lambda: bool(first.log.replicas()))
            first.put(200)
            await eventually(lambda: len(first.outcomes.all) == 2)
            assert court.group.in_sync == {1}
            (learner,) = first.log.replicas()
            assert not learner.in_sync
            assert not learner.is_level, "no reader is sent there"


async def test_under_controllers_that_grant_no_leases_a_replica_is_a_learner(
    tmp_path: Path, court: Court, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with master_and_slave(tmp_path, court) as (first, second):
        second.member._grants_leases = None  # as if it had begun under them
        monkeypatch.setattr(second.member.governance.controllers, "are_rocketmqs", True)
        await eventually(lambda: second.member.slave.is_learner)
        await in_sync(court, 1)
        first.put(100)
        await same(first, second)
        await in_sync(court, 1)
        slave = second.member.slave
        await eventually(lambda: second.member.governance.role.known.ids == {1})
        slave.config = replace(slave.config, group=replace(slave.config.group, heartbeat_s=5.0))
        slave._heard_s = asyncio.get_running_loop().time() - 2
        assert second.log.readiness().is_level, "its readers stay between two heartbeats"
        group = court.group
        known = {"name": group.name, "master_id": 1, "master_epoch": 1, "set_epoch": group.set_epoch}
        both = frozenset({1, 2})
        court.do(AlterSet(**known, wanted=both, alive=both))  # type: ignore[arg-type]
        court.elect(2, designated=True)  # all the same
        await eventually(lambda: "the controllers grant no leases, as RocketMQ's" in caplog.text)
        assert "the controllers grant no leases" in second.log.readiness().reason


async def test_nobody_takes_the_place_of_a_slave_that_has_proved_who_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    court = Court(2)
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        async with replica(tmp_path, court, 2) as second:
            await in_sync(court, 1, 2)
            with dial(first.member, SHAKE + struct.pack(">iq", 2, 0)):
                await eventually(lambda: "b/2 has proved who it is, and 127.0.0.1:" in caplog.text)
            first.put(100)
            await same(first, second)
