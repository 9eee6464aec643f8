"""Elected replicas: they change their parts, keep what was acknowledged, cut what was not."""

import asyncio
import dataclasses
import os
import threading
import time
from pathlib import Path

import pytest

from ha.config import LEVEL_BYTES
from ha.controller.core.commands import AlterSet
from ha.core.epochs import Epoch, decode_file
from ha.core.replica_role import ReplicationPart
from ha.core.stream import Header, Report
from ha.elected.files import BootFile
from ha.errors import EpochFileError
from ledgermq.remoting.refusal import Cause, LeaderHint, Refusal
from store.errors import DiskFailedError, DiskFullError
from store.log.flusher import FlushMode
from store.replicated_log import PLACED, AppendReceipt, Generation, LogRole
from tests.ha.elected.group import NAME, Court, in_sync, leads, replica, same, without_lease
from tests.ha.nodes import GROUP
from tests.limits import WAIT_S
from tests.store.support import eventually


@pytest.mark.parametrize("flush_mode", [FlushMode.ASYNC, FlushMode.SYNC])
async def test_slaves_join_and_another_one_takes_over_with_everything_acknowledged(
    tmp_path: Path, flush_mode: FlushMode
) -> None:
    court = Court(3)
    async with (
        replica(tmp_path, court, 1, flush_mode) as first,
        replica(tmp_path, court, 2, flush_mode) as second,
        replica(tmp_path, court, 3, flush_mode) as third,
    ):
        await eventually(lambda: any(one.is_writable for one in (first, second, third)))
        master = next(one for one in (first, second, third) if one.is_writable)
        await in_sync(court, 1, 2, 3)
        master.put(100, 200)
        await eventually(lambda: len(master.outcomes.all) == 1)
        assert isinstance(master.outcomes.all[0], AppendReceipt)
        slaves = {(one.broker_id, one.serves_at, one.is_level) for one in master.log.replicas()}
        others = [one.broker_id for one in (first, second, third) if one is not master]
        assert slaves == {(broker_id, f"i:{broker_id}", True) for broker_id in others}
        await same(master, first, second, third)
        successor = second if master is not second else third
        court.elect(successor.broker_id, designated=True)
        await leads(successor)
        await eventually(lambda: master.log.state.role is LogRole.SLAVE)
        assert successor.log.state.generation == 2
        await in_sync(court, 1, 2, 3)
        found = LeaderHint(f"b/{successor.broker_id}", f"s:{successor.broker_id}", f"i:{successor.broker_id}")
        await eventually(lambda: master.log.state.leader == found)
        successor.put(300)
        await same(successor, first, second, third)
    data = (tmp_path / str(successor.broker_id) / "epochFileCheckpoint").read_bytes()
    assert [epoch.number for epoch in decode_file(data)] == [1, 2]


async def test_a_slave_that_lacks_much_or_hears_no_master_is_not_level(tmp_path: Path) -> None:
    court = Court(2)
    async with replica(tmp_path, court, 2) as second:
        assert not second.log.readiness().is_level, "it has not heard of any master"
        async with replica(tmp_path, court, 1) as first:
            await eventually(lambda: first.is_writable or second.is_writable)
            await in_sync(court, 1, 2)
            slave = second if first.is_writable else first
            end = slave.log.max_offset
            for lacking, is_level in ((0, True), (LEVEL_BYTES, True), (LEVEL_BYTES + 1, False)):
                said = Header(end, 0, slave.member.slave.epoch, end + lacking, 0)
                slave.member.slave.take(said, memoryview(b""))
                assert slave.log.readiness().is_level is is_level
            if slave is first:
                court.elect(1, designated=True)
                await leads(first)
                await in_sync(court, 1, 2)
        await eventually(lambda: not second.log.readiness().is_level)


async def test_a_slave_out_of_the_in_sync_set_is_level_for_a_second_only_after_it_has_heard_its_master(
    tmp_path: Path,
) -> None:
    court = Court(2)
    async with replica(tmp_path, court, 1) as first, replica(tmp_path, court, 2) as second:
        await eventually(lambda: first.is_writable or second.is_writable)
        await in_sync(court, 1, 2)
        master, slave = (first, second) if first.is_writable else (second, first)
        await eventually(lambda: slave.member.slave.is_in_sync)
        config = slave.member.slave.config
        slave.member.slave.config = dataclasses.replace(config, group=dataclasses.replace(GROUP, heartbeat_s=5.0))

        def is_level(silent_s: float) -> bool:
            slave.member.slave._heard_s = asyncio.get_running_loop().time() - silent_s
            return slave.log.readiness().is_level

        assert is_level(2)
        slave.member.slave.receiver.address = ""
        alone = frozenset({master.broker_id})
        court.do(AlterSet(name=NAME, master_id=master.broker_id, master_epoch=court.group.master_epoch,
                          set_epoch=court.group.set_epoch, wanted=alone, alive=frozenset({1, 2})))  # fmt: skip
        await eventually(lambda: not slave.member.slave.is_in_sync)
        assert not is_level(2)
        assert is_level(0)
        for silent_s, is_soon_enough in ((2, True), (3600, False)):
            assert not is_level(silent_s)
            slave.member.slave.follow_elected(slave.member.slave.epoch + 1, "", None)
            assert slave.log.readiness().is_level is is_soon_enough, "another master was named just now"


async def test_what_a_deposed_master_alone_has_is_cut_and_its_senders_are_refused(tmp_path: Path) -> None:
    court = Court(2)
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        async with replica(tmp_path, court, 2) as second:
            await in_sync(court, 1, 2)
            first.put(100)
            await same(first, second)
            common = first.log.max_offset
            second.member.slave.receiver.address = ""  # it gets nothing any more, and is still in the set
            first.put(200, 300)
            court.elect(2, designated=True)
            await leads(second)
            await eventually(lambda: first.log.max_offset == common)
            assert isinstance(first.outcomes.all[-1], Refusal)
            assert first.outcomes.all[-1].cause is Cause.LEADER_CHANGED
            second.put(50)
            await same(second, first)
            assert first.log.generations() == second.log.generations()


async def test_a_cut_tail_does_not_return_with_the_next_process(tmp_path: Path) -> None:
    court = Court(2)
    async with replica(tmp_path, court, 2) as second:
        async with replica(tmp_path, court, 1) as first:
            await eventually(lambda: first.is_writable or second.is_writable)
            await in_sync(court, 1, 2)
            master, other = (first, second) if first.is_writable else (second, first)
            if master is second:
                court.elect(1, designated=True)
                await leads(first)
                await in_sync(court, 1, 2)
                other = second
            first.put(100)
            await same(first, second)
            common = first.log.max_offset
            other.member.slave.receiver.address = ""
            first.put(2000)
            court.elect(2, designated=True)
            await leads(second)
            await eventually(lambda: first.log.max_offset == common)
        async with replica(tmp_path, court, 1) as again:
            assert again.log.max_offset == common
            second.put(30)
            await same(second, again)


async def test_a_master_cut_off_from_the_controllers_acknowledges_nothing(tmp_path: Path) -> None:
    court = Court(1)
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        first.put(10)
        await eventually(lambda: len(first.outcomes.all) == 1)
        court.is_away = True
        await without_lease()
        end = first.put(20)
        await eventually(lambda: len(first.outcomes.all) == 2)
        refusal = first.outcomes.all[1]
        assert isinstance(refusal, Refusal) and refusal.cause is Cause.REPLICA_TIMEOUT
        assert first.log.confirm_offset < end
        with pytest.raises(Refusal, match="lease of this master ended") as refused:
            first.put(30)
        assert refused.value.cause not in PLACED
        assert not first.log.readiness().is_ready
        court.is_away = False
        await eventually(lambda: first.log.confirm_offset == end)
        first.put(40)
        await eventually(lambda: isinstance(first.outcomes.all[-1], AppendReceipt))


@pytest.mark.parametrize("of_master", [True, False])
async def test_a_replica_whose_disk_fails_leaves_the_controllers_and_is_elected_no_more(
    tmp_path: Path, *, of_master: bool
) -> None:
    court = Court(2)
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        async with replica(tmp_path, court, 2) as second:
            await in_sync(court, 1, 2)
            broken, sound = (first, second) if of_master else (second, first)
            broken.log._fail(DiskFailedError(tmp_path, "the sync failed: Input/output error"))
            await eventually(lambda: broken.broker_id not in court.beats)
            court.elect(broken.broker_id, designated=True)
            court.elect()
            await leads(sound)
            assert broken.broker_id not in court.beats


@pytest.mark.parametrize("jump_s", [3600, -3600], ids=["ahead", "back"])
async def test_a_jump_of_the_wall_clock_ends_no_lease_and_changes_no_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: int
) -> None:
    court, wall_s, wall_ns = Court(2), time.time, time.time_ns
    async with replica(tmp_path, court, 1) as first, replica(tmp_path, court, 2):
        await leads(first)
        await in_sync(court, 1, 2)
        monkeypatch.setattr(time, "time", lambda: wall_s() + jump_s)
        monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + jump_s * 1_000_000_000)
        lease_ends_s = first.member.governance.lease.ends_s
        await eventually(lambda: first.member.governance.lease.ends_s > lease_ends_s)
        first.put(100)
        await eventually(lambda: first.log.confirm_offset == first.log.max_offset)
        assert isinstance(first.outcomes.all[0], AppendReceipt)
        assert (court.group.master_epoch, court.group.in_sync) == (1, frozenset({1, 2}))


async def test_a_lost_slave_leaves_the_set_and_holds_nobody_up(tmp_path: Path) -> None:
    court = Court(3)
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        async with replica(tmp_path, court, 2), replica(tmp_path, court, 3):
            await in_sync(court, 1, 2, 3)
        first.put(100)
        await in_sync(court, 1)
        await eventually(lambda: first.log.confirm_offset == first.log.max_offset)
        assert isinstance(first.outcomes.all[0], AppendReceipt), "no time-out, though both were lost at once"
        assert court.group.master_epoch == 1, "dead slaves change no master"


async def test_a_slave_that_stands_still_leaves_the_set_and_returns(tmp_path: Path) -> None:
    court = Court(2)
    async with replica(tmp_path, court, 1, catch_up_s=1000.0) as first:
        await leads(first)
        async with replica(tmp_path, court, 2) as second:
            await in_sync(court, 1, 2)
            stream = second.member.slave.receiver._stream
            assert stream is not None and stream._transport is not None
            stream._transport.pause_reading()
            first.put(100)
            await in_sync(court, 1)
            await eventually(lambda: first.log.confirm_offset == first.log.max_offset)
            assert first.log.replicas(), "its connection is not closed"
            stream._transport.resume_reading()
            await in_sync(court, 1, 2)
            await same(first, second)


async def test_a_set_whose_answer_was_lost_is_settled(tmp_path: Path) -> None:
    court = Court(2)
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        court.loses_answers = True
        async with replica(tmp_path, court, 2) as second:
            await in_sync(court, 1, 2)
            court.loses_answers = False
            first.put(100)
            await same(first, second)
            await eventually(lambda: first.member.governance.copies.agreed == {1, 2})


async def test_a_new_process_of_the_master_begins_a_new_epoch(tmp_path: Path) -> None:
    court = Court(1)
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        end = first.put(100)
        await eventually(lambda: first.log.confirm_offset == end)
    assert court.group.master_id == 1 and court.group.master_epoch == 1
    async with replica(tmp_path, court, 1) as again:
        await leads(again)
        assert court.group.master_epoch == 2 == again.log.state.generation
        assert again.log.generations() == [Generation(1, 0, is_final=True), Generation(2, end, is_final=True)]


async def test_a_slave_of_an_older_epoch_is_turned_away(tmp_path: Path) -> None:
    court = Court(2)
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        first.member.master.epoch, before = 5, first.member.master.epoch
        async with replica(tmp_path, court, 2) as second:
            await eventually(lambda: second.member.slave.trouble is not None)
            assert court.group.in_sync == {1}
            first.member.master.epoch = before
            await in_sync(court, 1, 2)
            await eventually(lambda: second.member._history.epochs == (Epoch(1, 0),))


async def test_a_new_process_does_not_follow_the_master_of_an_older_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A controller that was deposed answers what it knows; the log has records of a newer epoch."""
    court = Court(2)
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        async with replica(tmp_path, court, 2) as second:
            await in_sync(court, 1, 2)
            old = await first.member.governance.controllers.decided()
            for elected in (second, first):
                court.elect(elected.broker_id, designated=True)
                await leads(elected)
                await in_sync(court, 1, 2)
                elected.put(100)
                await same(elected, first, second)
        court.old_news = old
        async with replica(tmp_path, court, 2) as again:
            end = again.log.max_offset
            await eventually(lambda: "it is not followed" in caplog.text)
            assert again.member.slave.receiver.address == "" and again.log.max_offset == end
            court.old_news = None
            await same(first, again)


async def test_a_member_that_lacks_its_tables_does_not_lead_and_goes_on(tmp_path: Path) -> None:
    court = Court(1)
    async with replica(tmp_path, court, 1) as first:
        first.member.slave._lacks_state = True
        await eventually(lambda: court.group.master_id == 1)
        await eventually(lambda: first.member.governance.role.play is ReplicationPart.NEITHER)
        first.member.slave._lacks_state = False
        await leads(first)


async def test_a_replica_whose_power_was_cut_leads_only_when_it_has_again_what_was_acknowledged(tmp_path: Path) -> None:
    court = Court(2)
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        async with replica(tmp_path, court, 2) as second:
            await in_sync(court, 1, 2)
            first.put(100, 200)
            await same(first, first, second)
            court.is_away = True  # the set stays as it is
    court.is_away = False
    (tmp_path / "2" / "abort").touch()
    for path in (tmp_path / "2" / "commitlog").iterdir():
        path.unlink()
    async with replica(tmp_path, court, 2, boot="boot-2") as second:
        await eventually(lambda: court.beats.get(2, {}).get("doubtEpoch") == 1)
        assert court.group.in_sync == {1, 2}
        assert court.elect(2).cause is Cause.CONTROLLER_ELECTION_FAILED
    async with replica(tmp_path, court, 2, boot="boot-2") as second:
        await eventually(lambda: court.beats.get(2, {}).get("doubtEpoch") == 1)
        assert not second.is_writable
        async with replica(tmp_path, court, 1) as first:
            await leads(first)
            await same(first, first, second)
            await eventually(lambda: "doubtEpoch" not in court.beats[2])
    async with replica(tmp_path, court, 2, boot="boot-2"):
        await eventually(lambda: 2 in court.beats and "doubtEpoch" not in court.beats[2])


@pytest.mark.parametrize(
    ("is_durable", "abort", "boot", "lost"),
    [
        (False, True, "boot-2", True),
        (False, True, "boot-1", False),
        (False, False, "boot-2", False),
        (True, True, "boot-2", False),
    ],
)
def test_power_is_lost_where_a_run_that_was_not_durable_ended_with_the_machine(
    tmp_path: Path, *, is_durable: bool, abort: bool, boot: str, lost: bool
) -> None:
    assert not BootFile(tmp_path, "boot-1").has_lost_power()
    BootFile(tmp_path, "boot-1").write(is_durable=is_durable, in_doubt=False)
    if abort:
        (tmp_path / "abort").touch()
    assert BootFile(tmp_path, boot).has_lost_power() is lost
    (tmp_path / "ledgermq.boot").write_bytes(b"")
    assert BootFile(tmp_path, boot).has_lost_power()


async def test_a_start_after_a_power_cut_that_fails_leaves_the_log_in_doubt(tmp_path: Path) -> None:
    court, root = Court(1), tmp_path / "1"
    async with replica(tmp_path, court, 1) as first:
        await leads(first)

    (root / "epochFileCheckpoint").write_bytes(b"damaged")
    (root / "abort").touch()
    with pytest.raises(EpochFileError):
        async with replica(tmp_path, court, 1, boot="boot-2"):
            pass
    (root / "abort").unlink()  # the store was closed in order
    assert BootFile(root, "boot-2").has_lost_power()


async def test_a_doubt_whose_end_cannot_be_noted_delays_a_master_and_does_not_keep_it_from_leading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    court = Court(1)
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
    (tmp_path / "1" / "abort").touch()
    refused: list[bool] = []
    write = BootFile.write

    def write_later(file: BootFile, *, is_durable: bool, in_doubt: bool) -> None:
        if not in_doubt and not refused:
            refused.append(True)
            raise DiskFullError(tmp_path, 100)
        write(file, is_durable=is_durable, in_doubt=in_doubt)

    monkeypatch.setattr(BootFile, "write", write_later)
    async with replica(tmp_path, court, 1, boot="boot-2") as first:
        await leads(first)
    assert refused


async def test_a_slave_with_sync_flush_reports_to_any_master_only_what_is_durable(tmp_path: Path) -> None:
    court = Court(2)
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        async with replica(tmp_path, court, 2, FlushMode.SYNC) as second:
            await in_sync(court, 1, 2)
            queue, may_flush, sync = second.log.local.queue, threading.Event(), os.fdatasync
            first.put(100)
            await same(first, second)
            assert queue.flushed_offset == queue.max_offset
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "fdatasync", lambda descriptor: (may_flush.wait(WAIT_S), sync(descriptor)))
                first.put(200)
                await eventually(lambda: queue.max_offset == first.log.max_offset)
                assert second.member.slave.report() == Report(queue.flushed_offset, queue.flushed_offset)
                assert queue.flushed_offset < queue.max_offset
                may_flush.set()
            await same(first, second)


async def test_a_master_hands_over_when_all_is_confirmed_and_refuses_nothing_that_it_took(tmp_path: Path) -> None:
    court = Court(2)
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        with pytest.raises(Refusal, match="nobody; a hand-over needs one"):
            first.log.transfer(None)
        async with replica(tmp_path, court, 2) as second:
            await in_sync(court, 1, 2)
            first.put(100, 200)
            assert first.log.transfer("s:2") == "2"
            assert first.log.state.role is LogRole.MASTER and not first.log.state.writable
            with pytest.raises(Refusal, match="hands over already"):
                first.log.transfer(None)
            await leads(second)
            assert isinstance(first.outcomes.all[-1], AppendReceipt)
            assert second.log.state.generation == 2
            second.put(50)
            await same(second, first)
            await in_sync(court, 1, 2)
            assert second.log.transfer("1") == "1"
            await leads(first)


async def test_a_master_whose_resignation_was_lost_asks_for_an_election(tmp_path: Path) -> None:
    """It never takes up its epoch again: the controllers may still replace it at once, without waiting for a lease."""
    court = Court(2)
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        async with replica(tmp_path, court, 2):
            await in_sync(court, 1, 2)
            first.log.transfer(None)
            court.is_away = True
            await eventually(lambda: first.log.state.role is LogRole.SLAVE)
            assert court.group.master_epoch == 1
            court.is_away = False
            await eventually(lambda: court.group.master_epoch == 2)


async def test_a_broker_that_led_right_after_it_joined_the_set_is_level_when_it_has_resigned(tmp_path: Path) -> None:
    court = Court(2)
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        async with replica(tmp_path, court, 2) as second:
            await in_sync(court, 1, 2)
            second.member.slave.is_in_sync = False  # it has not heard of that set yet
            court.elect(2, designated=True)
            await leads(second)
            await in_sync(court, 1, 2)
            second.log.transfer(None)
            court.is_away = True
            await eventually(lambda: second.log.state.role is LogRole.SLAVE)
            assert second.member.slave.is_in_sync


async def test_a_hand_over_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    court = Court(2)
    async with replica(tmp_path, court, 1, catch_up_s=2.0) as first:
        await leads(first)
        async with replica(tmp_path, court, 2) as second:
            await in_sync(court, 1, 2)
            second.member.slave.report = lambda: Report(0, 0)  # type: ignore[method-assign]
            second.member.slave.receiver._stream._reported = Report(0, 0)  # type: ignore[union-attr]
            first.put(100)
            first.log.transfer(None)
            assert not first.is_writable
            await leads(first)
            assert court.group.master_epoch == 1


async def test_a_master_without_room_hands_over_to_a_slave_that_has_some(tmp_path: Path) -> None:
    court = Court(3)
    async with replica(tmp_path, court, 1) as first:
        await leads(first)
        async with replica(tmp_path, court, 2) as second, replica(tmp_path, court, 3) as third:
            await in_sync(court, 1, 2, 3)
            second.member.watch_room(lambda: "the disk is full")
            await eventually(lambda: first.member.governance.without_room == {2})
            with pytest.raises(Refusal, match="besides this master: 3 at s:3"):
                first.log.transfer("2")
            first.member.watch_room(lambda: "the disk is full")
            await leads(third)
            await eventually(lambda: third.member.governance.without_room == {1, 2})
            third.member.watch_room(lambda: "the disk is full")
            await eventually(lambda: third.member._full is not None)
            with pytest.raises(Refusal, match="with room besides this master: nobody"):
                third.log.transfer(None)
            assert court.group.master_id == 3
