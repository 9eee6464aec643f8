"""Three controllers agree, on real connections and files."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pysyncobj import FAIL_REASON

from ha.controller.core.commands import Confirm
from ha.controller.core.machine import encode_command
from ha.controller.errors import QuorumFailedError, QuorumFileError, QuorumListenError
from ha.controller.quorum.quorum import SNAPSHOT
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import StoreLockedError
from tests.ha.controller.quorums import Member, leader_of, members, new_group, running, submit, until
from tests.limits import SLOWNESS

pytestmark = pytest.mark.timeout(120)


async def test_commands_reach_all_members_and_outlive_the_leader(tmp_path: Path) -> None:
    three = members(tmp_path)
    async with running(three):
        leader = await leader_of(three)
        done = await asyncio.gather(*(leader.quorum.submit(new_group()) for _ in range(20)))
        assert all(outcome.cause is None for outcome in done)
        await until(lambda: all(len(member.machine.groups) == 20 for member in three), "20 groups on all")
        assert leader.quorum.status.answered_s > leader.quorum.status.ticked_s - 1
        await leader.quorum.stop()
        others = [member for member in three if member is not leader]
        second = await leader_of(others)
        assert len(second.machine.groups) == 20
        await second.quorum.submit(new_group())
        leader.start()
        await until(lambda: len(leader.machine.groups) == 21, "the old leader has caught up")
        assert leader.machine.snapshot() == second.machine.snapshot()


async def test_a_member_that_does_not_lead_refuses(tmp_path: Path) -> None:
    three = members(tmp_path)
    async with running(three):
        leader = await leader_of(three)
        follower = next(member for member in three if member is not leader)
        with pytest.raises(Refusal, match="The controller is not in leader state") as refused:
            await follower.quorum.submit(Confirm())
        assert refused.value.cause is Cause.CONTROLLER_NOT_LEADER


async def test_what_a_deposed_leader_submits_is_not_passed_on_to_the_next_one(tmp_path: Path) -> None:
    """Such as an election for which it has waited for its own leases: the next leader may have granted others."""
    two = members(tmp_path, 2)
    async with running(two):
        leader = await leader_of(two)
        deposed = next(member for member in two if member is not leader)
        late = new_group()
        deposed.quorum._replicated.apply(encode_command(("deposed", 0), late))
        queue = deposed.quorum._sync._SyncObj__commandsQueue
        await until(lambda: not len(queue._FastQueue__queue), "the deposed one has looked at it")
        for _ in range(2):  # each needs an answer of the deposed one, which comes behind what it passed on
            await leader.quorum.submit(new_group())
        assert late.name not in leader.machine.groups


async def test_what_was_submitted_in_one_term_is_not_submitted_again_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = members(tmp_path, 1)
    async with running([one]):
        await leader_of([one])
        tried: list[bytes] = []

        async def elected_again(data: bytes, _: float) -> tuple[None, int]:
            tried.append(data)
            one.quorum.status = replace(one.quorum.status, term=one.quorum.status.term + 1)
            return None, FAIL_REASON.LEADER_CHANGED

        monkeypatch.setattr(one.quorum, "_publish", lambda: None)
        monkeypatch.setattr(one.quorum, "_submit_once", elected_again)
        with pytest.raises(Refusal) as refused:
            await one.quorum.submit(new_group())
        assert refused.value.cause is Cause.CONTROLLER_NOT_LEADER and len(tried) == 1


async def test_a_leader_without_a_majority_confirms_nothing_and_steps_down(tmp_path: Path) -> None:
    three = members(tmp_path)
    async with running(three):
        leader = await leader_of(three)
        for member in three:
            if member is not leader:
                await member.quorum.stop()
        with pytest.raises(Refusal) as refused:
            await leader.quorum.submit(new_group())
        assert refused.value.cause is Cause.CONTROLLER_NOT_LEADER
        assert leader.machine.groups == {}


async def test_everything_survives_a_stop_of_all_with_snapshots_in_between(tmp_path: Path) -> None:
    three = members(tmp_path, entries_max=10)
    async with running(three):
        leader = await submit(three, new_group())
        for _ in range(34):
            leader = await submit(three, new_group())
        await until(lambda: leader.quorum.status.entries <= 11, "the journal was trimmed")
    assert (leader.settings.folder / SNAPSHOT).exists()
    async with running(three):
        leader = await leader_of(three)
        await leader.quorum.submit(Confirm())
        assert len(leader.machine.groups) == 35


@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning")
async def test_a_wiped_member_is_sent_a_snapshot_and_becomes_sound(tmp_path: Path) -> None:
    three = members(tmp_path, entries_max=10)
    async with running(three):
        leader = await leader_of(three)
        wiped = next(member for member in three if member is not leader)
        await wiped.quorum.stop()
        shutil.rmtree(wiped.settings.folder)
        for _ in range(35):
            await leader.quorum.submit(new_group())
        await until(lambda: leader.quorum.status.entries <= 11, "the journal was trimmed")
        wiped.start()
        await leader.quorum.submit(new_group())
        await until(lambda: len(wiped.machine.groups) == 36, "the wiped member has everything")
        await until(lambda: wiped.quorum.status.is_sound, "the wiped member is sound")
        assert wiped.machine.snapshot() == leader.machine.snapshot()


async def test_wiped_members_do_not_overrule_one_that_has_everything(tmp_path: Path) -> None:
    """Two of three lose their folders: without the rule of `transport` they elect each other and the rest is cut."""
    three = members(tmp_path)
    async with running(three):
        leader = await leader_of(three)
        await leader.quorum.submit(new_group())
        await until(lambda: all(member.quorum.status.is_sound for member in three), "all are sound")
    for member in three[:2]:
        shutil.rmtree(member.settings.folder)
    async with running(three):
        await asyncio.sleep(3 * SLOWNESS)
        assert not any(member.is_leader for member in three)
        assert three[2].machine.groups == {}  # nobody has told it what was committed
    journal = (three[2].settings.folder / "journal").read_bytes()
    assert b"group-" in journal


async def test_a_first_start_needs_all_members_and_a_second_one_a_majority(tmp_path: Path) -> None:
    three = members(tmp_path)
    async with running(three[:2]):
        await asyncio.sleep(2 * SLOWNESS)
        assert not any(member.is_leader for member in three)
        three[2].start()
        await leader_of(three)
        await until(lambda: all(member.quorum.status.is_sound for member in three), "all are sound")
        await three[2].quorum.stop()
    async with running(three[:2]):
        await leader_of(three[:2])


async def test_a_member_with_another_secret_is_not_heard(tmp_path: Path) -> None:
    three = members(tmp_path)
    stranger = Member(replace(three[2].settings, secrets=(b"x" * 32,)))
    async with running([*three[:2], stranger]):
        await asyncio.sleep(2 * SLOWNESS)
        assert not any(member.is_leader for member in (*three[:2], stranger))


async def test_a_secret_is_replaced_member_by_member(tmp_path: Path) -> None:
    old, new = b"o" * 32, b"n" * 32
    three = members(tmp_path, secrets=(old,))
    async with running(three):
        await leader_of(three)
        for secrets in ((old, new), (new, old), (new,)):
            for member in three:
                await member.quorum.stop()
                member.settings = replace(member.settings, secrets=secrets)
                member.start()
                await submit(three, new_group())


async def test_one_controller_is_a_quorum_of_its_own(tmp_path: Path) -> None:
    (alone,) = members(tmp_path, count=1)
    async with running([alone]):
        await leader_of([alone])
        assert (await alone.quorum.submit(new_group())).cause is None


async def test_the_name_of_a_folder_that_is_there_is_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its maker was killed before."""
    (alone,) = members(tmp_path, count=1)
    alone.settings.folder.mkdir(parents=True)
    synced: list[Path] = []
    monkeypatch.setattr("store.files.folders.sync_directory", synced.append)
    async with running([alone]):
        await leader_of([alone])
    assert alone.settings.folder.parent in synced


async def test_a_port_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    (alone,) = members(tmp_path, count=1)
    port = int(alone.settings.members["n0"].rsplit(":", 1)[1])
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", port)
    async with server:
        with pytest.raises(QuorumListenError, match=f"127.0.0.1:{port}, for the other controllers"):
            alone.start()
    async with running([alone]):
        await leader_of([alone])


async def test_a_folder_belongs_to_one_process(tmp_path: Path) -> None:
    (alone,) = members(tmp_path, count=1)
    other = Member(alone.settings)
    async with running([alone]):
        with pytest.raises(StoreLockedError):
            other.start()


async def test_a_damaged_snapshot_ends_the_start(tmp_path: Path) -> None:
    (alone,) = members(tmp_path, count=1, entries_max=2)
    async with running([alone]):
        await leader_of([alone])
        for _ in range(5):
            await alone.quorum.submit(new_group())
    path = alone.settings.folder / SNAPSHOT
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(QuorumFileError, match="the checksum of its"):
        alone.start()


async def test_a_disk_that_fails_ends_the_quorum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (alone,) = members(tmp_path, count=1)
    async with running([alone]):
        await leader_of([alone])
        monkeypatch.setattr("os.fdatasync", _fail)
        with pytest.raises(Refusal) as refused:
            await alone.quorum.submit(new_group())
        assert refused.value.cause is Cause.CONTROLLER_NOT_LEADER
        assert isinstance(alone.quorum.failure, QuorumFailedError)
        assert not alone.is_leader


def _fail(descriptor: int) -> None:
    raise OSError(5, "Input/output error")


async def test_garbage_and_silence_are_shown_out(tmp_path: Path) -> None:
    """A stranger can send what is held up to its bound, and stays no longer than a dead member would."""
    (alone,) = members(tmp_path, count=1)
    async with running([alone]):
        await leader_of([alone])
        port = int(alone.settings.members["n0"].rsplit(":", 1)[1])
        loud = await asyncio.open_connection("127.0.0.1", port)
        silent = await asyncio.open_connection("127.0.0.1", port)
        loud[1].write((1 << 30).to_bytes(4, "little") + bytes(1 << 20))
        with pytest.raises(ConnectionError):
            while True:
                loud[1].write(bytes(1 << 16))
                await loud[1].drain()
        assert await silent[0].read() == b""
        assert (await alone.quorum.submit(new_group())).cause is None
        for _, writer in (loud, silent):
            writer.close()
