"""Three Raft logs in one process over loopback: elect, append, kill, fail over, catch up."""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

import pytest

from dledger.core.messages import InstallRequest, VoteRequest
from dledger.core.settings import RaftTiming
from dledger.raft_log import RaftLog
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import RecordUnavailableError
from store.replicated_log import AppendReceipt
from tests.dledger.conftest import RaftCluster, make_draft, until
from tests.limits import WAIT_S

Make = Callable[..., RaftCluster]

_PATIENT = {
    "timing": RaftTiming(heartbeat_ms=50, election_min_ms=20_000, election_max_ms=30_000),
    "append_timeout_ms": 60_000,
    "disk_stall_ms": 60_000,
}
"""A group that keeps its leader on a slow machine; it elects one as soon as its members are connected."""


def followers(cluster: RaftCluster, leader: str) -> list[str]:
    return [node_id for node_id in cluster.logs if node_id != leader]


async def test_a_new_group_elects_one_leader_and_acknowledges_what_a_quorum_holds(raft_cluster: Make) -> None:
    cluster = raft_cluster()
    await cluster.start()
    leader = await cluster.elected()
    receipt = await cluster.append(leader, b"one", b"two")
    assert isinstance(receipt, AppendReceipt)
    assert receipt.generation == cluster.logs[leader].state.generation >= 1
    assert receipt.copies >= 2 and receipt.durable_copies >= 2
    await cluster.caught_up()
    for node_id in cluster.logs:
        assert cluster.bodies(node_id) == [b"one", b"two"]


async def test_logs_are_equal_byte_for_byte_over_many_files(raft_cluster: Make) -> None:
    cluster = raft_cluster(**_PATIENT)
    await cluster.start()
    leader = await cluster.elected()
    bodies = [b"%04d" % i + bytes(i * 37 % 3000) for i in range(60)]
    for start in range(0, 60, 6):
        await cluster.append(leader, *bodies[start : start + 6])
    await cluster.caught_up()
    files = [cluster.data(node_id) for node_id in sorted(cluster.logs)]
    assert len(files[0]) > 3
    assert files[0] == files[1] == files[2]
    assert cluster.bodies(leader) == bodies


async def test_the_followers_know_where_clients_and_peers_find_the_leader(raft_cluster: Make) -> None:
    cluster = raft_cluster()
    await cluster.start()
    leader = await cluster.elected()
    names = followers(cluster, leader)
    await until(lambda: all(cluster.logs[name].state.leader for name in names), "leader hints")
    for node_id in names:
        with pytest.raises(Refusal) as refused:
            cluster.logs[node_id].append([make_draft(b"x")], lambda answer: None)
        assert refused.value.cause is Cause.NOT_LEADER
        assert refused.value.leader_hint is not None
        assert refused.value.leader_hint.address == f"{leader}.clients:10911"
        assert refused.value.leader_hint.inside_address == f"{leader}.inside:10911"


async def test_a_member_without_a_quorum_tells_that_it_does_not_lead_as_soon_as_it_is_started(
    raft_cluster: Make,
) -> None:
    cluster = raft_cluster()
    await cluster.start("n0")
    states = cluster.recorders["n0"].states
    await until(lambda: states, "the first role")
    refusal = states[0].refusal
    assert refusal is not None and refusal.cause is Cause.NOT_LEADER


async def test_a_killed_leader_is_replaced_and_nothing_acknowledged_is_lost(raft_cluster: Make) -> None:
    cluster = raft_cluster()
    await cluster.start()
    first = await cluster.elected()
    await cluster.sound()
    await cluster.append(first, b"before")
    generation = cluster.logs[first].state.generation
    await cluster.kill(first)
    second = await cluster.elected()
    assert second != first
    assert cluster.logs[second].state.generation > generation
    await cluster.append(second, b"after")
    await cluster.start(first)
    await cluster.caught_up()
    for node_id in cluster.logs:
        assert cluster.bodies(node_id) == [b"before", b"after"]


async def test_batches_waiting_on_a_deposed_leader_are_refused_with_leader_changed(raft_cluster: Make) -> None:
    cluster = raft_cluster(append_timeout_ms=60_000)
    await cluster.start()
    leader = await cluster.elected()
    cluster.deafen(*followers(cluster, leader))
    answer = await cluster.append(leader, b"lonely")
    assert isinstance(answer, Refusal) and answer.cause is Cause.LEADER_CHANGED
    await until(lambda: not cluster.logs[leader].state.writable, "stepped down")


async def test_a_leader_whose_links_to_a_quorum_break_steps_down_at_once(raft_cluster: Make) -> None:
    cluster = raft_cluster(**_PATIENT)
    await cluster.start()
    leader = await cluster.elected()
    for node_id in followers(cluster, leader):
        await cluster.kill(node_id)
    await until(lambda: not cluster.logs[leader].state.writable, "stepped down", 10)


async def test_a_batch_without_a_quorum_is_refused_in_time_with_the_numbers(raft_cluster: Make) -> None:
    cluster = raft_cluster(append_timeout_ms=100)
    await cluster.start()
    leader = await cluster.elected()
    cluster.deafen(*followers(cluster, leader))
    answer = await cluster.append(leader, b"lonely")
    assert isinstance(answer, Refusal) and answer.cause is Cause.NO_QUORUM
    assert "of 3 members 1 hold the last entry" in answer.remark


async def test_a_divergent_tail_is_truncated(raft_cluster: Make) -> None:
    cluster = raft_cluster(append_timeout_ms=60_000)
    await cluster.start()
    first = await cluster.elected()
    await cluster.append(first, b"kept")
    await cluster.caught_up()
    await cluster.sound()
    others = followers(cluster, first)
    cluster.deafen(*others)
    refusal = await cluster.append(first, b"divergent", b"tail")
    assert isinstance(refusal, Refusal) and refusal.cause is Cause.LEADER_CHANGED
    assert cluster.logs[first].max_offset > cluster.logs[first].confirm_offset
    for node_id in (first, *others):
        await cluster.kill(node_id)
    await cluster.start(*others)
    second = await cluster.elected()
    await cluster.append(second, b"true")
    await cluster.start(first)
    await cluster.caught_up()
    assert cluster.recorders[first].truncated
    assert cluster.bodies(first) == [b"kept", b"true"]
    assert cluster.data(first) == cluster.data(second)


async def test_a_follower_behind_the_oldest_file_starts_anew(raft_cluster: Make) -> None:
    cluster = raft_cluster(**_PATIENT)
    await cluster.start()
    leader = await cluster.elected()
    lagging = followers(cluster, leader)[0]
    await cluster.append(leader, b"first")
    await cluster.caught_up()
    await cluster.stop(lagging)
    leader = await cluster.elected()
    for i in range(20):
        await cluster.append(leader, b"%03d" % i + bytes(3000))
    log = cluster.logs[leader]
    cluster.machines[leader].state = b"topics"
    paths = [path for path, _ in log.sealed_files()]
    assert len(paths) >= 2
    assert log.trim(log.confirm_offset) == log.min_offset == 16384 * len(paths)
    await until(lambda: not any(path.exists() for path in paths), "files deleted")
    await cluster.start(lagging)
    await cluster.caught_up(lagging)
    assert cluster.logs[lagging].min_offset == log.min_offset
    assert cluster.machines[lagging].state == b"topics"
    assert cluster.bodies(lagging) == cluster.bodies(leader)
    assert cluster.data(lagging) == cluster.data(leader)
    await cluster.append(leader, b"more")
    await cluster.stop(lagging)
    await cluster.start(lagging)
    await cluster.caught_up(lagging)
    assert cluster.bodies(lagging) == cluster.bodies(leader)


async def test_a_leader_keeps_the_files_that_a_member_within_reach_has_not_received(raft_cluster: Make) -> None:
    cluster = raft_cluster(**_PATIENT)
    await cluster.start()
    leader = await cluster.elected()
    await cluster.append(leader, b"first")
    await cluster.caught_up()
    lagging = followers(cluster, leader)[0]
    log = cluster.logs[leader]
    cluster.deafen(lagging)
    for i in range(12):
        await cluster.append(leader, b"%03d" % i + bytes(3000))
    assert len(log.sealed_files()) >= 2
    assert log.trim(log.confirm_offset) == 0
    await cluster.kill(lagging)
    await until(lambda: log.trim(log.confirm_offset) > 0, "a trim without the member that is gone")
    assert log.min_offset <= log.confirm_offset


def _trims(log: RaftLog) -> bool:
    return log.trim(log.confirm_offset) > 0


async def test_a_member_that_trimmed_its_log_takes_part_and_finds_its_start_again(raft_cluster: Make) -> None:
    cluster = raft_cluster(**_PATIENT)
    await cluster.start()
    leader = await cluster.elected()
    for i in range(12):
        await cluster.append(leader, b"%03d" % i + bytes(3000))
    await cluster.caught_up()
    for log in cluster.logs.values():  # the leader keeps what followers have not told it that they have
        await until(partial(_trims, log), "a trim")
    trimmed = {node_id: log.min_offset for node_id, log in cluster.logs.items()}
    await cluster.append(leader, b"more")
    await cluster.caught_up()
    await cluster.stop()
    await cluster.start()
    leader = await cluster.elected()
    await cluster.append(leader, b"and more")
    await cluster.caught_up()
    assert {node_id: log.min_offset for node_id, log in cluster.logs.items()} == trimmed
    assert all(cluster.bodies(node_id)[-2:] == [b"more", b"and more"] for node_id in cluster.logs)


async def test_listeners_hear_of_the_confirm_offset_before_done_is_called(raft_cluster: Make) -> None:
    cluster = raft_cluster()
    await cluster.start()
    leader = await cluster.elected()
    log, recorder = cluster.logs[leader], cluster.recorders[leader]
    seen: list[tuple[int, int]] = []
    finished = asyncio.Event()
    draft = make_draft(b"x")

    def done(answer: AppendReceipt | Refusal) -> None:
        seen.append((recorder.confirmed[-1], len(log.read(draft.physical_offset, draft.size))))
        finished.set()

    log.append([draft], done)
    await asyncio.wait_for(finished.wait(), WAIT_S)
    assert seen == [(draft.physical_offset + draft.size, draft.size)]


async def test_all_nodes_stop_and_start_with_everything_confirmed_before(raft_cluster: Make) -> None:
    cluster = raft_cluster()
    await cluster.start()
    leader = await cluster.elected()
    for i in range(5):
        await cluster.append(leader, b"%d" % i)
    await cluster.caught_up()
    confirmed = cluster.logs[leader].confirm_offset
    await cluster.stop()
    await cluster.start()
    leader = await cluster.elected()
    assert cluster.logs[leader].confirm_offset > confirmed
    assert cluster.bodies(leader) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_group_of_one_stands_alone(raft_cluster: Make) -> None:
    cluster = raft_cluster(1)
    await cluster.start()
    leader = await cluster.elected()
    answer = await cluster.append(leader, b"alone")
    assert answer == AppendReceipt(cluster.logs[leader].state.generation, 1, 1)


async def test_leadership_is_handed_over(raft_cluster: Make) -> None:
    cluster = raft_cluster()
    await cluster.start()
    leader = await cluster.elected()
    await cluster.append(leader, b"x")
    await cluster.caught_up()
    target = followers(cluster, leader)[-1]

    def leads() -> bool:
        """Asked for again where much else runs: elections come between, and a hand-over that takes long is given up."""
        now = cluster.leader()
        if now not in (None, target):
            with contextlib.suppress(Refusal):  # one is under way
                assert cluster.logs[now].transfer(target) == target
        return now == target

    await until(leads, f"{target} leads")


async def test_a_leader_without_room_hands_over_to_a_member_that_has_some(
    raft_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dledger.node_timers._HAND_OVER_S", 0.1)
    cluster = raft_cluster()
    await cluster.start()
    leader = await cluster.elected()
    await cluster.append(leader, b"x")
    await cluster.caught_up()
    full, target = followers(cluster, leader)
    for name in (full, leader):
        cluster.logs[name].watch_room(lambda: "the disk is full")
    await until(lambda: cluster.leader() == target, f"{target} leads")
    assert isinstance(await cluster.append(target, b"y"), AppendReceipt)


async def test_a_batch_that_fits_into_no_file_is_refused_and_the_log_goes_on(raft_cluster: Make) -> None:
    cluster = raft_cluster()
    await cluster.start()
    leader = await cluster.elected()
    before = cluster.logs[leader].max_offset
    with pytest.raises(Refusal) as refused:
        cluster.logs[leader].append([make_draft(bytes(20000))], lambda answer: None)
    assert refused.value.cause is Cause.MESSAGE_ILLEGAL
    assert cluster.logs[leader].max_offset == before
    assert isinstance(await cluster.append(leader, b"next"), AppendReceipt)


async def test_a_term_far_ahead_is_refused_counted_and_told(
    raft_cluster: Make, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = raft_cluster()
    await cluster.start()
    leader = await cluster.elected()
    mad, other = followers(cluster, leader)
    term = cluster.logs[leader].status().soft.term

    def is_told(last_term: int) -> bool:
        """Sent again and again: a connection may be closing at its other end, where the term before was refused."""
        for peer in (leader, other):
            vote = VoteRequest(last_term, mad, 10**6, last_term, False, transfer=True)
            cluster.logs[mad]._transport.send(peer, vote)
            install = InstallRequest(last_term, mad, 10**6, 0, 1, 1, 0, 0, b"", 1)
            cluster.logs[mad]._transport.send(peer, install)
        return f"{mad} sent term {last_term}" in caplog.text

    for last_term in (2**63 - 1, 2**62):
        await until(partial(is_told, last_term), f"in the log: {mad} sent term {last_term}")
        await until(lambda: cluster.leader() and cluster.logs[mad].status().soft.leader_id, "a leader that all follow")
    assert all(log.status().soft.term < term + 100 for log in cluster.logs.values())
    assert sum(log._transport.refused_count for log in cluster.logs.values()) >= 2
    assert isinstance(await cluster.append(await cluster.elected(), b"goes on"), AppendReceipt)


async def test_an_install_that_would_drop_committed_entries_is_refused_counted_and_told(
    raft_cluster: Make, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = raft_cluster()
    await cluster.start()
    leader = await cluster.elected()
    receipt = await cluster.append(leader, b"committed")
    assert isinstance(receipt, AppendReceipt)
    behind = cluster.logs[followers(cluster, leader)[0]]
    await until(lambda: behind.confirm_offset == cluster.logs[leader].confirm_offset, "the follower has all")
    status = behind.status()
    before = status.ignored_count

    def send(term: int, first_index: int) -> None:
        install = InstallRequest(term, leader, first_index, 0, 0, 1, 0, 0, b"", 1)
        cluster.logs[leader]._transport.send(behind.config.self_id, install)

    for term, first_index in ((status.soft.term, 1), (status.soft.term, 0), (status.soft.term - 1, 10**6)):
        send(term, first_index)
    await until(lambda: behind.status().ignored_count == before + 3, "counted")
    families = {family.name: family for family in behind.metrics()}
    assert [row and row[1] for row in families["ledgermq_raft_ignored_messages_total"].rows] == [before + 3]
    told = [text for text in caplog.messages if text.startswith(f"{leader} sent an install of term")]
    assert told == [
        f"{leader} sent an install of term {status.soft.term} for a log that begins at 1:"
        " late or impossible, it changed nothing"
    ]
    after = behind.status()
    assert (after.first_index, after.last_index) == (status.first_index, status.last_index)
    assert isinstance(await cluster.append(leader, b"goes on"), AppendReceipt)


async def test_bytes_that_are_not_confirmed_are_not_read_by_their_offset(raft_cluster: Make) -> None:
    cluster = raft_cluster(append_timeout_ms=60_000)
    await cluster.start()
    leader = await cluster.elected()
    log = cluster.logs[leader]
    await cluster.append(leader, b"confirmed")
    confirmed = log.confirm_offset
    offset, record = next(log.walk(log.min_offset, confirmed))
    cluster.deafen(*cluster.logs)
    draft = make_draft(b"waits for a quorum")
    log.append([draft], lambda outcome: None)
    assert log.confirm_offset == confirmed < draft.physical_offset + draft.size <= log.max_offset
    for read in (log.read, log.reader()):
        with pytest.raises(RecordUnavailableError):
            read(draft.physical_offset, draft.size)
    read_on = log.reader()
    assert bytes(read_on(offset, len(record))) == bytes(record)  # from here on it remembers the file
    with pytest.raises(RecordUnavailableError):
        read_on(draft.physical_offset, draft.size)
    span = log.span(draft.physical_offset)
    assert span is not None and span.base + span.end == confirmed
