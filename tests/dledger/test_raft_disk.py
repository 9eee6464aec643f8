"""A group whose disks are full for a while, or fail, at moments when that is hard to bear."""

import asyncio
import contextlib
import errno
import os
import pathlib
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from dledger.core.messages import HardState
from dledger.core.settings import RaftTiming
from dledger.log import hard_state, small_file
from dledger.log.hard_state import HardStateFile, read_hard_state, settle_hard_state
from dledger.log.raft_files import open_files
from dledger.log.small_file import remove_durably, write_durably
from dledger.log.start_file import LogStart, save_start
from dledger.log_events import LogEvents
from dledger.peers.busy_notices import BusyNotices
from ledgermq import archive
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import DiskFailedError, DiskFullError, DiskReadError
from store.files.allocator import FileAllocator
from store.files.mapped_file import MappedFile
from store.log.flusher import FlushMode
from store.replicated_log import AppendReceipt
from tests.dledger.conftest import MemoryMachine, RaftCluster, make_draft, until
from tests.limits import WAIT_S

Make = Callable[..., RaftCluster]
STATE = b"topics, groups, offsets"


class FullDisk:
    """While `is_full`, no small file can be written below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.is_full = False
        self.only = ""
        self.refused: list[str] = []

    def check(self, path: Path, mode: str) -> None:
        if self.is_full and "w" in mode and path.is_relative_to(self.root) and path.name.startswith(self.only):
            self.refused.append(path.name)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FullDisk]:
    disk = FullDisk(tmp_path)
    original = pathlib.Path.open

    def opened(path: Path, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        disk.check(path, mode)
        return original(path, mode, *arguments, **named)

    monkeypatch.setattr(pathlib.Path, "open", opened)
    yield disk
    disk.is_full = False


async def test_a_full_disk_stops_no_node_and_elections_go_on_when_there_is_room(
    raft_cluster: Make, small_files: FullDisk
) -> None:
    cluster = raft_cluster()
    await cluster.start()
    leader = await cluster.elected()
    assert isinstance(await cluster.append(leader, b"before"), AppendReceipt)
    small_files.is_full = True
    for number in range(5):
        assert isinstance(await cluster.append(leader, b"%d while full" % number), AppendReceipt)
        await asyncio.sleep(0.1)
    assert "checkpoint.tmp" in small_files.refused
    cluster.logs[leader]._node.step_down()  # nobody can save a new term
    await until(lambda: "currterm.tmp" in small_files.refused, "an election")
    await asyncio.sleep(0.3)
    assert cluster.leader() is None
    small_files.is_full = False
    leader = await cluster.elected()
    assert isinstance(await cluster.append(leader, b"after"), AppendReceipt)
    await cluster.caught_up()
    assert all(log.readiness()[0] for log in cluster.logs.values())


async def test_what_is_learned_of_peers_on_a_full_disk_is_saved_when_there_is_room(
    tmp_path: Path, raft_cluster: Make, small_files: FullDisk
) -> None:
    small_files.is_full, small_files.only = True, "peers"
    cluster = raft_cluster()
    await cluster.start()
    leader = await cluster.elected()
    await until(lambda: "peers.tmp" in small_files.refused, "a try to save the peers")
    assert isinstance(await cluster.append(leader, b"while full"), AppendReceipt)
    small_files.is_full = False
    await until(lambda: len(list(tmp_path.rglob("peers"))) == 3, "the peers are saved")
    assert all(log.readiness()[0] for log in cluster.logs.values())


async def test_a_term_that_waits_for_room_is_given_up_at_the_end_and_never_reported(
    tmp_path: Path, small_files: FullDisk
) -> None:
    settle_hard_state(tmp_path, last_term=3, doubt=None)
    reported: list[str] = []
    states = HardStateFile(tmp_path, loop=asyncio.get_running_loop(), on_failed=lambda error: reported.append("failed"))
    small_files.is_full = True
    states.save(HardState(4, "n1"), lambda: reported.append("saved"))
    await until(lambda: small_files.refused, "a try")
    await asyncio.to_thread(states.close)
    await asyncio.sleep(0)
    assert reported == []
    assert read_hard_state(tmp_path) == HardState(3, "", recovering=True, forgot_votes=True)


async def test_a_term_is_reported_when_it_is_written_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle_hard_state(tmp_path, last_term=0, doubt=None)
    write, allowed, begun = small_file.write_durably, threading.Event(), threading.Event()

    def slow(path: Path, content: bytes) -> None:
        begun.set()
        assert allowed.wait(WAIT_S)
        write(path, content)

    monkeypatch.setattr(hard_state, "write_durably", slow)
    seen: list[HardState | None] = []
    states = HardStateFile(tmp_path, loop=asyncio.get_running_loop(), on_failed=lambda error: None)
    try:
        states.save(HardState(1, "n0"), lambda: seen.append(read_hard_state(tmp_path)))
        await asyncio.to_thread(begun.wait, 10)
        await asyncio.sleep(0.05)
        assert seen == []
    finally:
        allowed.set()  # else the thread would wait on when this fails, as it does for a planted bug
    await until(lambda: seen, "reported")
    await asyncio.to_thread(states.close)
    assert seen == [HardState(1, "n0")]


async def test_old_files_are_kept_until_what_follows_them_is_durable(raft_cluster: Make) -> None:
    """A power cut behind such a deletion would leave a log without its beginning and without its end."""
    cluster = raft_cluster(3, flush_mode=FlushMode.ASYNC, flush_interval_ms=3_600_000)
    await cluster.start()
    leader = await cluster.elected()
    for number in range(20):
        assert isinstance(await cluster.append(leader, b"%03d" % number + bytes(3000)), AppendReceipt)
    log = cluster.logs[leader]
    flushed = log.flushed_offset
    assert flushed < 16384 < log.confirm_offset
    assert log.trim(log.confirm_offset) == 0
    log._flusher.request(log.max_offset, lambda _: None)
    await until(lambda: log.flushed_offset == log.max_offset, "flushed")
    assert log.trim(log.confirm_offset) > 0


@pytest.mark.parametrize("is_scrubbed", [False, True])
async def test_an_entry_that_rotted_before_the_start_is_never_served(raft_cluster: Make, is_scrubbed: bool) -> None:
    cluster = raft_cluster(1)
    await cluster.start()
    leader = await cluster.elected()
    for number in range(20):
        await cluster.append(leader, b"%03d" % number + bytes(3000))
    log = cluster.logs[leader]
    walked = [(offset, len(record)) for offset, record in log.walk(log.min_offset, log.confirm_offset)]
    offset, size = walked[2]
    await cluster.stop(leader)
    path = cluster.root / leader / f"dledger-{leader}" / "data" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(offset + size - 100)
        file.write(b"\x01")
    await cluster.start(leader)
    log = cluster.logs[leader]
    if is_scrubbed:
        await until(lambda: log._timers._scrubber._is_done, "all verified")
        assert [damage.position for damage in log.damages] == [offset - 48]
    else:
        log._timers.stop()
    for read in (log.read, log.reader()):
        with pytest.raises(DiskReadError):
            read(offset, size)
        assert len(read(*walked[3])) == walked[3][1]
    span = log.span(offset)
    assert span is None or span.base + span.start > offset


async def behind_the_oldest_file(cluster: RaftCluster) -> tuple[str, str]:
    """A running leader, and a member that is down and lacks what the leader has deleted."""
    await cluster.start()
    leader = await cluster.elected()
    lagging = next(name for name in cluster.logs if name != leader)
    await cluster.append(leader, b"first")
    await cluster.caught_up()
    await cluster.stop(lagging)
    leader = await cluster.elected()
    for number in range(20):
        await cluster.append(leader, b"%03d" % number + bytes(3000))
    await cluster.caught_up()
    for name, log in cluster.logs.items():
        cluster.machines[name].state = STATE
        assert log.trim(log.confirm_offset) > 0
    return leader, lagging


class Trouble:
    """What happens to a member's tables when they are restored."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.error: BaseException | None = None
        self.calls = 0
        original = MemoryMachine.restore

        def restore(machine: MemoryMachine, state: bytes) -> None:
            self.calls += 1
            if self.error is not None:
                raise self.error
            original(machine, state)

        patch.setattr(MemoryMachine, "restore", restore)


@pytest.mark.parametrize(
    "error", [DiskFullError(Path("config"), 100), OSError(errno.ENOSPC, "no room")], ids=["typed", "plain"]
)
async def test_an_install_without_room_waits_and_counts_only_when_it_is_done(
    raft_cluster: Make, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    cluster = raft_cluster()
    leader, lagging = await behind_the_oldest_file(cluster)
    trouble = Trouble(monkeypatch)
    trouble.error = error
    await cluster.start(lagging)
    await until(lambda: trouble.calls >= 2, "tried again")
    log = cluster.logs[lagging]
    assert cluster.machines[lagging].state == b""
    peer = next(peer for peer in cluster.logs[leader].status().peers if peer.peer_id == lagging)
    assert peer.durable_index < log._entries.first_index - 1  # not counted
    assert not log.readiness()[0]
    trouble.error = None
    await cluster.caught_up()
    assert cluster.machines[lagging].state == STATE
    assert cluster.bodies(lagging) == cluster.bodies(leader)
    assert log.readiness()[0]


async def test_an_event_during_a_retried_install_waits_until_the_install_is_carried_out(
    raft_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = raft_cluster()
    _, lagging = await behind_the_oldest_file(cluster)
    trouble = Trouble(monkeypatch)
    trouble.error = DiskFullError(Path("config"), 100)
    looked: list[int] = []
    on_reset = LogEvents.on_reset

    def reset(events: LogEvents, first_index: int, start_position: int) -> None:
        on_reset(events, first_index, start_position)
        node = cluster.logs[lagging]._node
        with monkeypatch.context() as patch:
            patch.setattr(node.raft, "ready", lambda: looked.append(1))
            node.on_disk_stalled(is_stalled=False)
        looked.append(0)

    monkeypatch.setattr(LogEvents, "on_reset", reset)
    await cluster.start(lagging)
    await until(lambda: trouble.calls >= 1, "an install that waits")
    trouble.error = None
    await cluster.caught_up()
    assert looked == [0], "the core was asked for more inside the install"


@pytest.mark.parametrize("at", ["start file", "tables"])
async def test_an_install_that_fails_takes_the_node_out_and_the_next_start_begins_anew(
    raft_cluster: Make, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    cluster = raft_cluster()
    leader, lagging = await behind_the_oldest_file(cluster)

    def fail(*arguments: object) -> None:
        raise DiskFailedError(Path("config"), "EIO")

    with monkeypatch.context() as patch:
        place = (
            "dledger.log.entry_log.save_start" if at == "start file" else "tests.dledger.conftest.MemoryMachine.restore"
        )
        patch.setattr(place, fail)
        await cluster.start(lagging)
        await until(lambda: "EIO" in cluster.logs[lagging].readiness()[1], "given up")
        await cluster.stop(lagging)
    await cluster.start(lagging)
    await cluster.caught_up()
    assert cluster.machines[lagging].state == STATE
    assert cluster.bodies(lagging) == cluster.bodies(leader)


async def test_a_failure_while_a_node_starts_is_not_forgotten(
    raft_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = raft_cluster()
    _, lagging = await behind_the_oldest_file(cluster)
    trouble = Trouble(monkeypatch)
    trouble.error = DiskFailedError(Path("config"), "EIO")
    start = BusyNotices.start

    async def slowly(notices: BusyNotices, host: str, port: int) -> None:
        await until(lambda: trouble.calls, "an install")
        await start(notices, host, port)

    monkeypatch.setattr(BusyNotices, "start", slowly)
    await cluster.start(lagging)
    assert "EIO" in cluster.logs[lagging].readiness()[1]


@pytest.mark.parametrize("at", ["restore", "finish_install"])
async def test_a_member_that_dies_inside_an_install_gets_a_new_one_before_it_counts(
    raft_cluster: Make, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    cluster = raft_cluster()
    leader, lagging = await behind_the_oldest_file(cluster)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    died: list[int] = []

    def die(*arguments: object) -> None:
        died.append(1)
        cluster.logs[lagging]._node._is_failed = True  # nothing of this life goes on
        raise OSError(errno.EIO, "dies here")

    with monkeypatch.context() as patch:
        where = MemoryMachine if at == "restore" else type(cluster.logs[leader]._entries)
        patch.setattr(where, at, die)
        await cluster.start(lagging)
        await until(lambda: died, "an install")
        await cluster.kill(lagging)
    files = cluster.root / lagging / f"dledger-{lagging}"
    assert "resetting=true" in (files / "start").read_text()
    opened = open_files(cluster.config(lagging))
    assert opened.doubt is not None and "installed" in opened.doubt
    assert (opened.opened.data.max_offset, opened.opened.found.last_index) == (0, -1)
    state = read_hard_state(files)
    assert state is not None and state.recovering
    assert "resetting" not in (files / "start").read_text()
    opened.close(is_clean=False)
    await cluster.start(lagging)  # the doubt outlives a start that came to nothing
    assert cluster.logs[lagging].status().soft.recovering
    await cluster.caught_up()
    assert cluster.machines[lagging].state == STATE
    assert cluster.bodies(lagging) == cluster.bodies(leader)
    await until(lambda: not cluster.logs[lagging].status().soft.recovering, "sound")


async def test_a_start_waits_for_a_file_for_which_a_leader_would_not_wait(
    raft_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = raft_cluster().config("n0")
    open_files(config).close(is_clean=True)
    start = LogStart(first_index=7, start_position=700, prev_term=1, installing=False)
    save_start(config.store_dir / "dledger-n0", start)  # as after an install of which no entry is written yet

    def slowly(path: Path, start_offset: int, size_bytes: int) -> MappedFile:
        time.sleep(2 * config.timing.election_min_ms / 4000)
        return MappedFile(path, start_offset, size_bytes)

    monkeypatch.setitem(cast(Any, FileAllocator.__init__).__kwdefaults__, "make", slowly)
    files = open_files(config)
    assert files.opened.start == start
    files.close(is_clean=True)


async def test_a_state_larger_than_what_may_wait_for_a_peer_is_installed(raft_cluster: Make) -> None:
    cluster = raft_cluster(span_limit_bytes=1 << 16, peer_window_bytes=1 << 16)
    leader, lagging = await behind_the_oldest_file(cluster)
    state = bytes(range(256)) * (1 << 16)
    cluster.machines[leader].state = state
    leads_since = cluster.logs[leader].status().soft.term
    await cluster.start(lagging)
    await cluster.caught_up()
    assert cluster.machines[lagging].state == state
    assert cluster.bodies(lagging) == cluster.bodies(leader)
    assert cluster.logs[leader].status().soft.term == leads_since


async def test_a_member_whose_disk_failed_does_not_fill_the_leader_s_disk(raft_cluster: Make) -> None:
    cluster = raft_cluster(timing=RaftTiming(heartbeat_ms=50, election_min_ms=150, election_max_ms=300))
    await cluster.start()
    leader = await cluster.elected()
    await cluster.append(leader, b"first")
    await cluster.caught_up()
    await cluster.sound()
    failed = next(name for name in cluster.logs if name != leader)
    cluster.logs[failed]._node.on_disk_failed(DiskFailedError(Path("data"), "EIO"))
    stored = 0
    for number in range(60):  # a busy machine may let the short time-out end, and another member lead
        leader = await cluster.elected()
        with contextlib.suppress(Refusal):
            stored += isinstance(await cluster.append(leader, b"%03d" % number + bytes(3000)), AppendReceipt)
        if stored == 30:
            break
    assert stored == 30
    log = cluster.logs[leader]
    assert failed in log._peers.joined
    assert log.sealed_files(), (log.min_offset, log.confirm_offset, log.flushed_offset, log.max_offset, log.state)
    sealed = log.sealed_files()[-1][1]
    assert log.trim(sealed) == 0  # it may be slow only
    await until(lambda: log.trim(sealed) == sealed, "old files deleted")
    assert failed in log._peers.joined


async def test_a_slow_allocation_holds_the_loop_for_less_than_the_lease(
    raft_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = raft_cluster()
    await cluster.start()
    leader = await cluster.elected()
    log, term = cluster.logs[leader], cluster.logs[leader].status().soft.term
    fallocate, released = os.posix_fallocate, threading.Event()

    def slow(descriptor: int, start: int, size: int) -> None:
        released.wait(WAIT_S)
        fallocate(descriptor, start, size)

    monkeypatch.setattr("os.posix_fallocate", slow)
    try:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(Refusal) as refused:
            log.append([make_draft(bytes(4000)) for _ in range(16)], lambda answer: None)
        assert refused.value.cause is Cause.BUSY
        assert loop.time() - began < cluster.config(leader).timing.election_min_ms / 1000
    finally:
        released.set()
    assert isinstance(await cluster.append(leader, b"goes on"), AppendReceipt)
    assert cluster.logs[leader].status().soft.term == term


@pytest.mark.parametrize("act", [lambda path: write_durably(path, b"x"), remove_durably])
def test_a_directory_that_cannot_be_synced_has_failed_though_an_archive_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], None]
) -> None:
    fsync = os.fsync

    def refuse_directories(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_directories)
    with pytest.raises(DiskFailedError, match="Invalid argument"):
        act(tmp_path / "state")
    archive.sync(tmp_path)
