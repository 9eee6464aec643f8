"""Raft logs with bad disks, bad files and forgotten promises: nothing acknowledged is lost or served wrong."""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dledger.config import RaftConfig, parse_peers
from dledger.core.messages import HardState
from dledger.core.roles import RaftRole
from dledger.errors import RaftConfigError, WrongDirectoryError
from dledger.log.entry import HEADER_SIZE
from dledger.log.hard_state import read_hard_state, write_hard_state
from dledger.log.raft_files import open_files
from dledger.log.recovery import DamagedEntry
from dledger.raft_log import RaftLog
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import DiskReadError, StoreLockedError
from store.files.mapped_file import MappedFile
from store.log.flusher import FlushMode
from store.replicated_log import AppendReceipt
from tests.descriptors import limited_descriptors
from tests.dledger.conftest import RaftCluster, make_draft, until
from tests.limits import WAIT_S

Make = Callable[..., RaftCluster]


def data_file(cluster: RaftCluster, node_id: str, number: int = 0) -> Path:
    return cluster.root / node_id / f"dledger-{node_id}" / "data" / f"{number * 16384:020d}"


def damage(path: Path, offset: int, change: Callable[[bytearray], None]) -> None:
    raw = bytearray(path.read_bytes())
    piece = raw[offset:]
    change(piece)
    raw[offset:] = piece
    path.write_bytes(raw)


async def filled(cluster: RaftCluster) -> tuple[str, list[str]]:
    """Ten messages everywhere; the leader and the followers."""
    await cluster.start()
    leader = await cluster.elected()
    for i in range(10):
        await cluster.append(leader, b"message %d" % i)
    await cluster.caught_up()
    return leader, [node_id for node_id in cluster.logs if node_id != leader]


async def test_a_rotten_committed_entry_is_fetched_from_a_peer(
    raft_cluster: Make, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = raft_cluster()
    leader, (follower, _) = await filled(cluster)
    place = cluster.logs[follower].walk(0, 10**9)
    offset, record = list(place)[5]
    size = len(record)
    await cluster.stop(follower)
    damage(data_file(cluster, follower), offset - HEADER_SIZE, lambda raw: raw.__setitem__(slice(0, size), bytes(size)))
    (cluster.root / follower / f"dledger-{follower}" / "checkpoint").write_text("committedIndex=9\nendIndex=10\n")
    await cluster.start(follower)
    log = cluster.logs[follower]
    assert [found.file_offset for found in log.damages] == [offset - HEADER_SIZE]
    assert log.confirm_offset < offset, "nothing behind the bad entry is served"
    await until(lambda: not log.damages, "repaired")
    await cluster.caught_up()
    assert cluster.data(follower) == cluster.data(leader)
    assert f"{data_file(cluster, follower)} at {offset - HEADER_SIZE}" in caplog.text
    assert cluster.bodies(follower) == cluster.bodies(leader)


async def test_a_leader_with_a_rotten_entry_repairs_it_before_it_takes_messages(raft_cluster: Make) -> None:
    cluster = raft_cluster()
    leader, others = await filled(cluster)
    offset, _ = list(cluster.logs[leader].walk(0, 10**9))[5]
    await cluster.stop()
    damage(data_file(cluster, leader), offset + 10, lambda raw: raw.__setitem__(0, raw[0] ^ 1))
    (cluster.root / leader / f"dledger-{leader}" / "checkpoint").write_text("committedIndex=9\nendIndex=10\n")
    await cluster.start(leader, preferred_leader=leader)
    assert cluster.logs[leader].damages
    await cluster.start(*others, preferred_leader=leader)
    await until(lambda: cluster.leader() == leader, f"{leader} leads")
    assert not cluster.logs[leader].damages
    assert cluster.bodies(leader) == [b"message %d" % i for i in range(10)]


async def test_a_preferred_leader_that_handed_over_without_a_copy_does_not_take_over_at_once(
    raft_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dledger.node_timers._HAND_OVER_S", 0.1)
    cluster = raft_cluster(preferred_leader="n0")
    await cluster.start()
    await until(lambda: cluster.leader() == "n0", "the preferred one leads")
    await cluster.append("n0", b"first")
    await cluster.caught_up()
    log = cluster.logs["n0"]
    monkeypatch.setattr(log._timers._copies, "ask", lambda peer_id: None)
    monkeypatch.setattr(log._node, "needed_index", lambda: 0)
    found = DamagedEntry(0, 1, 0, 100, data_file(cluster, "n0"), 0, "no other member has it any more")
    log._timers._log.integrity._damages[0] = found
    await until(lambda: cluster.leader() in ("n1", "n2"), "another one leads")

    def has_declined() -> bool:
        leaders = [one._node.raft.member.leader for one in cluster.logs.values()]
        return any("n0" in leader.declined for leader in leaders if leader is not None)

    await until(has_declined, "n0 was asked, and declined")
    assert cluster.leader() in ("n1", "n2")


async def test_a_leader_that_cannot_send_a_rotten_entry_waits_for_a_copy(raft_cluster: Make) -> None:
    cluster = raft_cluster()
    await cluster.start()
    leader = await cluster.elected()
    await cluster.append(leader, b"first")
    await cluster.caught_up()
    lagging, other = (node_id for node_id in cluster.logs if node_id != leader)
    await cluster.stop(lagging)
    for i in range(10):
        await cluster.append(leader, b"message %d" % i)
    await cluster.caught_up()
    offset, _ = list(cluster.logs[leader].walk(0, 10**9))[5]
    await cluster.stop()
    damage(data_file(cluster, leader), offset + 10, lambda raw: raw.__setitem__(0, raw[0] ^ 1))
    await cluster.start(leader, lagging)
    log = cluster.logs[leader]
    await until(lambda: log.status().soft.role is RaftRole.LEADER, "elected by the one that lags")
    await until(lambda: log.damages, "found")
    assert log.damages[0].file_offset == offset - HEADER_SIZE
    sent = asyncio.create_task(cluster.append(leader, b"while it waits"))
    await asyncio.sleep(0.3)
    assert not sent.done(), "no other member has it, and this one does not count"
    await cluster.start(other)
    await until(lambda: not log.damages, "repaired")
    await sent
    await cluster.caught_up()
    assert len({str(cluster.data(node_id)) for node_id in cluster.logs}) == 1


async def test_a_lost_committed_tail_is_refetched_before_the_node_counts_again(raft_cluster: Make) -> None:
    cluster = raft_cluster()
    leader, (follower, _) = await filled(cluster)
    end = cluster.logs[follower].confirm_offset
    await cluster.stop(follower)
    damage(data_file(cluster, follower), end - 500, lambda raw: raw.__setitem__(slice(0, 500), bytes(500)))
    for path in (cluster.root / follower / f"dledger-{follower}" / "index").iterdir():
        path.unlink()
    await cluster.start(follower)
    state = read_hard_state(cluster.root / follower / f"dledger-{follower}")
    assert state is not None and state.recovering
    await cluster.caught_up(follower)
    log = cluster.logs[follower]
    await until(lambda: not log.status().soft.recovering, "sound again")
    assert cluster.data(follower) == cluster.data(leader)


async def test_a_wiped_node_is_brought_up_and_votes_only_then(
    raft_cluster: Make, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = raft_cluster()
    leader, (wiped, _) = await filled(cluster)
    await cluster.stop(wiped)
    for path in sorted((cluster.root / wiped).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    await cluster.start(wiped)
    await cluster.caught_up()
    await cluster.sound()
    assert "came back with another disk" in caplog.text
    await cluster.kill(leader)
    await cluster.elected()
    assert cluster.bodies(wiped) == [b"message %d" % i for i in range(10)]


async def test_with_async_flush_a_crash_of_the_machine_makes_a_node_recover_first(
    raft_cluster: Make, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = raft_cluster(flush_mode=FlushMode.ASYNC, flush_interval_ms=10)
    await cluster.start(boot="first boot")
    leader = await cluster.elected()
    receipt = await cluster.append(leader, b"x")
    assert isinstance(receipt, AppendReceipt) and receipt.copies >= 2
    await cluster.caught_up()
    follower = next(node_id for node_id in cluster.logs if node_id != leader)
    await cluster.sound(follower)
    await cluster.kill(follower)
    caplog.clear()
    await cluster.start(follower, boot="first boot")
    assert "recovering in term" not in caplog.text, "a crash of the process loses nothing"
    await cluster.kill(follower)
    await cluster.start(follower, boot="second boot")
    assert ": the machine crashed while entries were acknowledged" in caplog.text
    await cluster.sound(follower)
    await cluster.stop(follower)
    caplog.clear()
    await cluster.start(follower, boot="third boot")
    assert "recovering in term" not in caplog.text, "a clean stop flushed everything"


async def test_with_sync_flush_a_crash_of_the_machine_forgets_nothing(raft_cluster: Make) -> None:
    cluster = raft_cluster()
    await cluster.start(boot="first boot")
    leader = await cluster.elected()
    await cluster.append(leader, b"x")
    await cluster.caught_up()
    await cluster.sound()
    for node_id in list(cluster.logs):
        await cluster.kill(node_id)
    await cluster.start(boot="second boot")
    leader = await cluster.elected()
    assert cluster.bodies(leader) == [b"x"]


async def test_a_failed_sync_deposes_the_leader_and_is_final(
    raft_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = raft_cluster(append_timeout_ms=60_000)
    leader, _ = await filled(cluster)
    own = {file.fd for file in cluster.logs[leader]._entries.data.files}
    sync = os.fdatasync

    def broken(descriptor: int) -> None:
        if descriptor in own:
            raise OSError(5, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr("os.fdatasync", broken)
    answer = await cluster.append(leader, b"to the broken disk")
    assert isinstance(answer, Refusal | AppendReceipt)  # the two others may commit it all the same
    log = cluster.logs[leader]
    await until(lambda: not log.readiness()[0], "not ready")
    assert "Input/output error" in log.readiness()[1]
    assert not log.state.writable
    with pytest.raises(Refusal) as refused:
        log.append([make_draft(b"x")], lambda answer: None)
    assert refused.value.cause is Cause.DISK_FAILED
    await until(lambda: cluster.leader() not in (None, leader), "another leader")
    assert isinstance(await cluster.append(str(cluster.leader()), b"next"), AppendReceipt)


async def test_a_stalled_disk_deposes_the_leader_and_is_forgiven(
    raft_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = raft_cluster(append_timeout_ms=60_000, disk_stall_ms=200)
    leader, _ = await filled(cluster)
    own = {file.fd for file in cluster.logs[leader]._entries.data.files}
    sync, released = os.fdatasync, threading.Event()

    def slow(descriptor: int) -> None:
        if descriptor in own:
            released.wait(WAIT_S)
        sync(descriptor)

    monkeypatch.setattr("os.fdatasync", slow)
    waiting = asyncio.create_task(cluster.append(leader, b"slow here"))
    log = cluster.logs[leader]
    try:
        await until(lambda: not log.state.writable, "stepped down")
        assert not log.readiness()[0]
        await until(lambda: cluster.leader() not in (None, leader), "another leader")
        assert isinstance(await cluster.append(str(cluster.leader()), b"next"), AppendReceipt)
    finally:
        released.set()
    await waiting
    await until(lambda: log.readiness()[0], "ready again")
    await cluster.caught_up()
    assert cluster.data(leader) == cluster.data(str(cluster.leader()))


async def test_a_full_disk_refuses_and_the_log_goes_on_when_there_is_room(
    raft_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = raft_cluster()
    leader, _ = await filled(cluster)
    log = cluster.logs[leader]

    def full(descriptor: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    big = [bytes(4000)] * 16  # more than the present file and the one made ahead
    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", full)
        before = log.max_offset
        with pytest.raises(Refusal) as refused:
            log.append([make_draft(body) for body in big], lambda answer: None)
        assert refused.value.cause is Cause.DISK_FULL
        assert log.max_offset == before
        assert isinstance(await cluster.append(leader, b"small fits"), AppendReceipt)
    later = asyncio.get_running_loop().time() + WAIT_S

    async def appended() -> bool:
        try:
            return isinstance(await cluster.append(leader, *big), AppendReceipt)
        except Refusal as refusal:
            assert refusal.cause is Cause.DISK_FULL and asyncio.get_running_loop().time() < later
            await asyncio.sleep(0.05)
            return False

    while not await appended():
        pass
    await cluster.caught_up()


async def test_members_without_descriptors_refuse_and_go_on_when_there_are_some_again(
    raft_cluster: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither term and vote nor files of the log can be opened; nothing of that is final."""
    cluster = raft_cluster()
    leader, _ = await filled(cluster)
    answers: list[object] = []
    with limited_descriptors():
        for _ in range(12):  # the present file, and the one made ahead, which is not mapped yet
            with contextlib.suppress(Refusal):
                cluster.logs[leader].append([make_draft(bytes(4000))], answers.append)
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
    assert "Traceback" not in caplog.text
    assert not [log.status() for log in cluster.logs.values() if not log._timers.is_running]
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while True:
        assert asyncio.get_running_loop().time() < deadline
        try:
            if isinstance(await cluster.append(await cluster.elected(), bytes(4000)), AppendReceipt):
                break
        except Refusal:
            await asyncio.sleep(0.05)
    await cluster.caught_up()


async def test_a_directory_of_another_node_or_group_is_refused_and_left_alone(tmp_path: Path) -> None:
    def config(node_id: str, **changes: object) -> RaftConfig:
        values = {"cluster": "C", "group": "G", "self_id": node_id, "store_dir": tmp_path}
        peers = parse_peers("n0-h:1;n1-h:2;n2-h:3")
        return RaftConfig(
            **{**values, **changes},  # type: ignore[arg-type]  # the values above have the right types
            peers=peers,
            client_address="h:4",
            store_host=bytes(8),
            data_file_size_bytes=4096,
            index_file_size_bytes=320,
        )

    files = open_files(config("n0"))
    with pytest.raises(StoreLockedError):
        open_files(config("n0"))
    files.close(is_clean=True)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(WrongDirectoryError, match="node id 'n0', this node is configured as node id 'n1'"):
        open_files(config("n1"))
    with pytest.raises(WrongDirectoryError, match="group 'G', this node is configured as group 'H'"):
        open_files(config("n0", group="H"))
    with pytest.raises(WrongDirectoryError, match="cluster 'C', this node is configured as cluster 'D'"):
        open_files(config("n0", cluster="D"))
    identity = tmp_path / "dledger-n0" / "identity"
    text = identity.read_text()
    identity.write_text(text.replace('"format version": 1', '"format version": 2'))
    with pytest.raises(WrongDirectoryError, match="format version 2, this node is configured as format version 1"):
        open_files(config("n0"))
    identity.write_text(text)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected n0-host:port"),
        ("n0-h:1;n0-g:2", "'n0' twice"),
        ("n0-h:1;n1-h:1", "the same address"),
        ("n0-h", "'n0-h'"),
        ("n0-h:x", "'x'"),
        ("n0-h:70000", "'70000'"),
        ("-h:1", "'-h:1'"),
        ("0n-h:1", "'0n-h:1'"),
    ],
)
def test_peers_that_do_not_parse_are_refused_with_the_value(text: str, said: str) -> None:
    with pytest.raises(RaftConfigError, match=said):
        parse_peers(text)


def test_peers_parse_in_order_with_names_and_ipv6() -> None:
    peers = parse_peers("n0-broker-0.brokers:40911; n1-[::1]:2;")
    assert [(peer.node_id, peer.host, peer.port) for peer in peers] == [
        ("n0", "broker-0.brokers", 40911),
        ("n1", "::1", 2),
    ]


async def test_a_node_of_another_group_does_not_disturb(
    raft_cluster: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    cluster = raft_cluster()
    await cluster.start("n0", "n1", "n2")
    leader = await cluster.elected()
    follower = next(node_id for node_id in cluster.logs if node_id != leader)
    await cluster.stop(follower)
    cluster.root = tmp_path / "elsewhere"
    await cluster.start(follower, group="Other")
    await until(lambda: "its group is 'Other', expected 'G'" in caplog.text, "the stranger is named")
    assert isinstance(await cluster.append(leader, b"undisturbed"), AppendReceipt)


async def test_an_entry_that_the_disk_cannot_read_is_fetched_from_a_peer(
    raft_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = raft_cluster()
    leader, (follower, _) = await filled(cluster)
    offset, record = list(cluster.logs[follower].walk(0, 10**9))[5]
    size = len(record)
    await cluster.stop(follower)
    bad = {data_file(cluster, follower)}
    ensure_readable, write_over = MappedFile.ensure_readable, MappedFile.write_over

    def ensure(file: MappedFile, start: int, end: int) -> None:
        if file.path in bad and start < offset + size and end > offset:
            raise DiskReadError(file.path, offset, "[Errno 5] Input/output error")
        ensure_readable(file, start, end)

    def heal(file: MappedFile, position: int, data: memoryview) -> None:
        bad.discard(file.path)  # a disk gives a block that is written anew another place
        write_over(file, position, data)

    monkeypatch.setattr(MappedFile, "ensure_readable", ensure)
    monkeypatch.setattr(MappedFile, "write_over", heal)
    (cluster.root / follower / f"dledger-{follower}" / "checkpoint").write_text("committedIndex=9\nendIndex=10\n")
    await cluster.start(follower)
    assert "Input/output error" in cluster.logs[follower].damages[0].detail
    await until(lambda: not cluster.logs[follower].damages, "repaired")
    await cluster.caught_up()
    assert cluster.bodies(follower) == cluster.bodies(leader)


async def test_what_java_wrote_since_is_doubted_as_it_was_at_first(raft_cluster: Make) -> None:
    """Java's DLedger acknowledges before it flushes, and drops the word about durability from `checkpoint`."""
    cluster = raft_cluster(1)
    await cluster.start()
    leader = await cluster.elected()
    await cluster.append(leader, b"one")
    await cluster.stop()
    path = cluster.root / leader / f"dledger-{leader}" / "checkpoint"
    files = open_files(cluster.config(leader))
    files.close(is_clean=True)
    assert files.doubt is None
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "durablePosition" not in line))
    files = open_files(cluster.config(leader))
    files.close(is_clean=True)
    assert files.doubt is not None and "Java's DLedger" in files.doubt


async def test_a_wiped_node_counts_only_after_it_has_heard_every_member(raft_cluster: Make) -> None:
    cluster = raft_cluster()
    _, (wiped, other) = await filled(cluster)
    await cluster.stop(wiped, other)
    for path in sorted((cluster.root / wiped).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    await cluster.start(wiped)
    await asyncio.sleep(3 * cluster.config(wiped).timing.election_max_ms / 1000)
    state = read_hard_state(cluster.root / wiped / f"dledger-{wiped}")
    assert state is not None and state.recovering and state.forgot_votes
    assert cluster.leader() is None, "a member that is down may know a vote of the wiped one"
    await cluster.stop(wiped)
    await cluster.start(wiped, other)
    await cluster.sound()

    def knows_its_votes() -> bool:
        saved = read_hard_state(cluster.root / wiped / f"dledger-{wiped}")
        return saved is not None and not saved.forgot_votes

    await until(knows_its_votes, "saved")
    assert isinstance(await cluster.append(await cluster.elected(), b"more"), AppendReceipt)


@pytest.mark.parametrize("state", [HardState(3, "n1"), HardState(3, "", True), HardState(0, "", True, True)])
def test_a_hard_state_is_read_as_it_was_written(tmp_path: Path, state: HardState) -> None:
    write_hard_state(tmp_path, state)
    assert read_hard_state(tmp_path) == state


def test_a_recovering_node_of_an_older_version_is_taken_to_have_forgotten_its_votes(tmp_path: Path) -> None:
    (tmp_path / "currterm").write_text("voteLeader=\ncurrTerm=2\nrecovering=true\n")
    assert read_hard_state(tmp_path) == HardState(2, "", recovering=True, forgot_votes=True)


async def test_a_member_whose_damaged_entry_all_others_deleted_is_installed_anew(raft_cluster: Make) -> None:
    cluster = raft_cluster(append_timeout_ms=60_000)
    leader, (follower, other) = await filled(cluster)
    places = list(cluster.logs[follower].walk(0, 10**9))
    offsets = [places[number][0] for number in (5, 7)]
    for i in range(12):
        await cluster.append(leader, b"%03d" % i + bytes(3000))
    await cluster.caught_up()
    await cluster.stop(follower)
    for offset in offsets:
        damage(data_file(cluster, follower), offset + 10, lambda raw: raw.__setitem__(0, raw[0] ^ 1))
    (cluster.root / follower / f"dledger-{follower}" / "checkpoint").unlink()
    cluster.machines[leader].state = cluster.machines[other].state = b"topics"
    for log in (cluster.logs[leader], cluster.logs[other]):
        await until(partial(_trims, log), "a trim")
    first_offset = cluster.logs[leader].min_offset
    await cluster.start(follower)
    log = cluster.logs[follower]
    await until(lambda: log.min_offset == first_offset, "installed")
    assert cluster.machines[follower].state == b"topics" and not log.damages
    for _ in range(2):
        await cluster.caught_up()
        await cluster.sound()
        leader = await cluster.elected()
        assert cluster.data(follower) == cluster.data(leader) and cluster.bodies(follower) == cluster.bodies(leader)
        if other in cluster.logs:
            await cluster.stop(other)  # from here on each commit needs the one that was damaged
            assert isinstance(await cluster.append(await cluster.elected(), b"goes on"), AppendReceipt)


def _trims(log: RaftLog) -> bool:
    return log.trim(log.confirm_offset) > 0
