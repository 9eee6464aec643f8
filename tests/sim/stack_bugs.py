"""Seeded bugs of whole brokers: each is one wrong decision in shipping code, for the length of a `with`.

Those with a number of issue 10 (A1 ...) were in the product; the others could be done wrong at the same places.
"""

import contextlib
import heapq
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from broker.delay.timer_service import TimerService
from broker.groups.locks import GroupLocks
from broker.log_follower import LogFollower
from broker.parts import Parts
from broker.passing.pass_on import PassOn
from broker.pop.progress import PopProgress
from broker.pop.revive import ReviveService
from broker.pull.processor import Pull, PullProcessor
from broker.state.metadata import Metadata
from broker.state.offsets import CommitDone, ConsumerOffsets
from broker.state.pop_core import Checkpoint, Checkpoints
from broker.state.pop_order import Orders
from broker.state.pop_tables import PopTables
from broker.state.saver import StateSaver
from broker.state.subsystem import StateSubsystem
from broker.state.tables import StateChange
from broker.transactions.requests import TransactionRequests
from broker.transactions.service import TransactionService
from dledger.background import Checkpointer as RaftCheckpointer
from dledger.background import CopyFetcher
from dledger.core.ballot import Ballot
from dledger.core.follower import Follower
from dledger.core.leader import Leader
from dledger.core.messages import InstallRequest
from dledger.core.state import NodeState
from dledger.core.state_parts import StateOut
from dledger.log.commit_checkpoint import CommitCheckpoint
from dledger.log.entry import EntryHeader, header_fault
from dledger.log.entry_log import EntryLog
from dledger.log.recovery import EntryScan, RecoveredEntries
from dledger.log.start_file import LogStart, save_start
from dledger.log.store_clock import StoreClock
from dledger.peers import hello
from dledger.raft_log import RaftLog
from ledgermq.client.consumer.backlog import Backlog
from ledgermq.client.consumer.turns import Turns
from ledgermq.client.core.calls import _CallState as CallState
from ledgermq.client.core.routes import Routes
from ledgermq.client.errors import LedgerMQError
from ledgermq.client.producer.transactions import Decision, Transactions
from ledgermq.message.flags import TRANSACTION_COMMIT
from ledgermq.remoting.refusal import Cause
from nameserver.core.topics import TopicIndex
from nameserver.route_waiters import RouteWaiters
from store.files.mapped_file import MappedFile
from store.log.flusher import Flusher
from store.message_store import MessageStore
from store.queues.queue_offsets import GivenOffsets
from store.queues.queue_table import QueueStarts, QueueTable
from store.recovery.checkpointer import StoreCheckpointer
from store.recovery.queue_recovery import QueueRecovery, recover_queues
from tests.sim.mutants import every_vote_is_known, own_real_vote_counts, writable_with_entries_undecided

Planted = AbstractContextManager[Any]


def writable_too_early() -> Planted:
    return patch.object(Leader, "settle", writable_with_entries_undecided)


def own_vote_counts() -> Planted:
    return patch.object(Ballot, "_own_vote_counts", own_real_vote_counts)


def votes_are_forgotten() -> Planted:
    return patch.object(NodeState, "knows_its_votes", every_vote_is_known)


def full_disk_is_a_failed_one() -> Planted:
    return patch("dledger.log.small_file._NO_SPACE", ())


def filler_counts_alone() -> Planted:
    scan_file = EntryScan._scan_file

    def counts(scan: EntryScan, file: MappedFile, offset: int, found: RecoveredEntries) -> bool:
        goes_on = scan_file(scan, file, offset, found)
        if goes_on:
            found.end_position = file.end_offset
        return goes_on

    return patch.object(EntryScan, "_scan_file", counts)


def install_is_not_marked() -> Planted:
    def unmarked(directory: Path, start: LogStart) -> None:
        save_start(directory, replace(start, installing=False))

    return patch("dledger.log.entry_log.save_start", unmarked)


def followers_keep_no_offsets() -> Planted:
    take_record = Parts.on_state_record

    def take(parts: Parts, physical_offset: int, record: memoryview) -> None:
        take_record(parts, physical_offset, record)
        if not parts.context.role.writable:
            parts.context.state.offsets.clear()

    return patch.object(Parts, "on_state_record", take)


def batches_share_an_offset_with_the_next_message() -> Planted:
    give = GivenOffsets.give

    def short(offsets: GivenOffsets, drafts: Any, deadline_s: float) -> None:
        give(offsets, drafts, deadline_s)
        for draft in drafts:
            if draft.messages > 1:
                draft.queue.next_offset -= 1

    return patch.object(GivenOffsets, "give", short)


def queues_are_rebuilt_one_message_short() -> Planted:
    def short(log: Any, queues: QueueTable, *arguments: Any, **named: Any) -> QueueRecovery:
        recovery = recover_queues(log, queues, *arguments, **named)
        for queue in [queue for queue in queues if queue.max_offset > 1]:
            queue.keep_before(queue.max_offset - 1)
            queue.next_offset = queue.max_offset
        return recovery

    return patch("store.opening.recover_queues", short)


def request_ids_are_used_again_too_soon() -> Planted:
    return patch("ledgermq.remoting.outgoing_requests.OPAQUE_MAX", 1)


def elections_go_by_the_wall_clock() -> Planted:
    planted = ExitStack()
    for module in ("raft_log", "node_timers"):
        planted.enter_context(patch(f"dledger.{module}.now_ms", lambda _: time.time_ns() // 1_000_000))
    return planted


def store_times_follow_each_step_of_the_clock() -> Planted:
    return patch.object(StoreClock, "now_ms", lambda clock: clock._clock())


def tables_do_not_wait_for_the_log() -> Planted:
    def at_once(saver: StateSaver) -> None:
        flushed, saver._flushed_offset = saver._flushed_offset, lambda: 1 << 62
        try:
            write_durable(saver)
        finally:
            saver._flushed_offset = flushed

    write_durable = StateSaver.write_durable
    planted = ExitStack()
    planted.enter_context(patch.object(StateSaver, "write_durable", at_once))
    planted.enter_context(patch("broker.log_follower.clamp_to_log", lambda *_: None))
    return planted


def failed_sync_is_forgotten() -> Planted:
    return patch.object(MappedFile, "rewrite", lambda *_: True)


def failed_sync_is_swallowed() -> Planted:
    def swallow(batch: list[Any]) -> None:
        for file in dict.fromkeys(file for job in batch for file in job.files):
            with contextlib.suppress(OSError):
                file.sync()
        batch[-1].seconds = 0.0

    return patch("store.log.flusher._sync", swallow)


def failed_sync_is_tried_again() -> Planted:
    """PostgreSQL until 2018: the pages count as clean by then, and the second sync makes nothing durable."""
    finished = Flusher._finished

    def again(flusher: Flusher, batch: list[Any]) -> None:
        if batch[-1].error is None:
            finished(flusher, batch)
            return
        batch[-1].error = None
        flusher._jobs_in_flight -= len(batch)
        for file in [file for job in batch for file in job.files]:
            file.unpin()
        flusher._loop.call_later(0.05, flusher._submit, flusher._queue.committed_offset)

    return patch.object(Flusher, "_finished", again)


def only_the_scanned_part_is_written_again() -> Planted:
    return patch("dledger.log.opening._undurable_from", lambda _units, _start, begin, _checkpoint: begin.position)


def other_peers_are_no_matter() -> Planted:
    agreed = {field: label for field, label in hello._MUST_AGREE.items() if field != "members"}
    return patch.object(hello, "_MUST_AGREE", agreed)


def failed_member_keeps_files() -> Planted:
    def needed_index(leader: Leader) -> int:
        state = leader._state
        lacking = [peer.received_index for name, peer in leader.peers.items() if name not in state.lost_links]
        return min([state.terms.last_index, *lacking]) + 1

    return patch.object(Leader, "needed_index", needed_index)


def state_is_sent_in_one_part() -> Planted:
    request = StateOut.request

    def whole(state: StateOut, term: int, leader_id: str, _limit: int, sequence: int) -> InstallRequest:
        return request(state, term, leader_id, len(state.data), sequence)

    return patch.object(StateOut, "request", whole)


def timers_are_not_held_back_for_recalls() -> Planted:
    return patch.object(TimerService, "hold_back", lambda *_: None)


def prohibitions_see_the_committed_ones_only() -> Planted:
    forbid_read = Metadata.forbid_read

    def forbid(metadata: Metadata, *arguments: Any) -> None:
        metadata._proposed_forbidden.clear()
        forbid_read(metadata, *arguments)

    return patch.object(Metadata, "forbid_read", forbid)


def checkpoints_outlive_their_group() -> Planted:
    planted = ExitStack()
    planted.enter_context(patch.object(PopTables, "forget_groups", lambda *_: None))
    planted.enter_context(patch.object(PopProgress, "forget_group", lambda *_: None))
    return planted


def resets_live_in_memory() -> Planted:
    encode = StateChange.encode
    return patch.object(StateChange, "encode", lambda change: encode(replace(change, resets={})))


def clones_are_answered_at_once() -> Planted:
    commit_and_tell = ConsumerOffsets.commit_and_tell

    def at_once(offsets: ConsumerOffsets, topic: str, group: str, queues: Mapping[int, int], done: CommitDone) -> None:
        commit_and_tell(offsets, topic, group, queues, lambda _: None)
        done(None)

    return patch.object(ConsumerOffsets, "commit_and_tell", at_once)


def followers_take_no_reset() -> Planted:
    answer_reset = PullProcessor._answer_reset

    def on_the_leader(pulls: PullProcessor, pull: Pull) -> bool:
        return pulls._role.writable and answer_reset(pulls, pull)

    return patch.object(PullProcessor, "_answer_reset", on_the_leader)


def undecided_removals_are_no_matter() -> Planted:
    return patch.object(Metadata, "is_undecided", lambda *_: False)


def install_keeps_queues() -> Planted:
    """Those of topics that were removed or made again meanwhile, and others that it does not name."""

    def restart(table: QueueTable, starts: QueueStarts) -> None:
        named = {(topic, queue_id) for topic, queue_ids in starts.items() for queue_id in queue_ids}
        kept = {queue: queue.max_offset for queue in table if (queue.topic, queue.queue_id) not in named}
        with_kept = {topic: dict(queue_ids) for topic, queue_ids in starts.items()}
        for queue, end in kept.items():
            with_kept.setdefault(queue.topic, {})[queue.queue_id] = end
        restart_all(table, with_kept)

    def restore(tables: StateSubsystem, snapshot: bytes) -> None:
        tables._state.restore(snapshot)
        tables._metadata.on_changed()
        tables.follow()

    restart_all = QueueTable.restart
    planted = ExitStack()
    planted.enter_context(patch.object(QueueTable, "restart", restart))
    planted.enter_context(patch.object(StateSubsystem, "restore", restore))
    return planted


def policies_of_any_size() -> Planted:
    planted = ExitStack()
    for module in ("auth.requests", "state.users"):
        planted.enter_context(patch(f"broker.{module}.ENTRIES_MAX", 1 << 62))
    return planted


def units_of_removed_topics_stay() -> Planted:
    return patch("broker.log_follower.drop_stale_units", lambda *_: None)


def tables_are_not_written_at_an_install() -> Planted:
    return patch.object(StateSaver, "install", lambda _: None)


def tables_are_not_taken_over_at_an_install() -> Planted:
    return patch.object(LogFollower, "restore", lambda *_: None)


def flush_is_not_awaited() -> Planted:
    return patch.object(MappedFile, "sync", lambda _: None)


def sync_covers_what_came_while_it_ran() -> Planted:
    advance = Flusher._advance

    def too_far(flusher: Flusher, _: int, files: list[MappedFile]) -> None:
        advance(flusher, flusher._queue.max_offset, files)

    return patch.object(Flusher, "_advance", too_far)


def folder_of_term_and_vote_is_not_synced() -> Planted:
    return patch("ledgermq.durable_files.sync", lambda _: None)


def start_does_not_sync() -> Planted:
    return patch("dledger.log.opening._sync", lambda *_: None)


def checkpoint_of_the_log_is_ahead() -> Planted:
    def ahead(checkpointer: RaftCheckpointer) -> CommitCheckpoint:
        log = checkpointer._log
        return CommitCheckpoint(checkpointer._commit_index(), log.last_index, log.data.flushed_offset)

    return patch.object(RaftCheckpointer, "picture", ahead)


def checkpoint_of_the_queues_is_ahead() -> Planted:
    return patch.object(MessageStore, "durable_offset", property(lambda store: store.log.max_offset))


def one_entry_too_few_is_cut() -> Planted:
    truncate = EntryLog.truncate_after

    def short(log: EntryLog, last_index: int) -> None:
        truncate(log, min(last_index + 1, log.last_index))

    return patch.object(EntryLog, "truncate_after", short)


def log_is_trimmed_above_the_checkpoint() -> Planted:
    return patch.object(StoreCheckpointer, "saved_offset", property(lambda _: 1 << 62, lambda _, __: None), create=True)


def request_without_an_answer_is_passed_on_again() -> Planted:
    return patch.object(PassOn, "_lost", lambda passing, _link, waiting, _error: passing._hold(waiting))


def request_that_arrives_twice_is_served_twice() -> Planted:
    return patch("broker.passing.member_requests._PassedOn._is_next", lambda *_: True)


def deposed_leader_counts_as_none() -> Planted:
    return patch("broker.passing.pass_on._NOT_LEADER", Cause.LEADER_CHANGED.slug)


def lost_sends_are_not_found() -> Planted:
    return patch("broker.passing.lost_sends.find_property", lambda *_: None)


def nothing_is_passed_on() -> Planted:
    return patch.object(PassOn, "follow", lambda _: None)


def leader_is_not_asked_about_groups() -> Planted:
    return patch.object(PassOn, "ask_for_group", lambda _passing, _name, _settle: False)


def orders_live_in_memory() -> Planted:
    """A new leader does not know which queues are blocked."""
    return patch.object(Orders, "take_changes", lambda _: {})


def an_acknowledgement_is_of_all_before() -> Planted:
    ack = Orders.ack

    def ack_all(orders: Orders, key: str, offset: int, pop_ms: int) -> int | None:
        following = ack(orders, key, offset, pop_ms)
        return None if following is None else max(following, offset + 1)

    return patch.object(Orders, "ack", ack_all)


def received_counts_as_committed() -> Planted:
    return patch.object(RaftLog, "confirm_offset", property(lambda log: log.max_offset))


def damage_ends_the_log() -> Planted:
    return patch.object(EntryScan, "_judge", lambda *_: 0)


def damage_behind_the_checkpoint_looks_torn() -> Planted:
    return patch.object(EntryScan, "_is_torn", lambda *_: True)


def installs_keep_nothing() -> Planted:
    begin = Follower._begin_at

    def begins(follower: Follower, request: InstallRequest, whole: bytes, **_: bool) -> None:
        begin(follower, request, whole, keep=False)

    return patch.object(Follower, "_begin_at", begins)


def damaged_entries_stay() -> Planted:
    return patch.object(CopyFetcher, "ask", lambda *_: None)


def position_of_an_entry_is_not_checked() -> Planted:
    def anywhere(header: EntryHeader, _position: int, limit: int) -> str | None:
        return header_fault(header, header.position, limit)

    planted = ExitStack()
    planted.enter_context(patch.object(EntryScan, "_take_run", lambda _scan, _file, offset, _found: offset))
    for module in ("recovery", "integrity"):
        planted.enter_context(patch(f"dledger.log.{module}.header_fault", anywhere))
    return planted


def no_other_member_is_tried() -> Planted:
    return patch.object(Routes, "_suppose_leader", lambda *_: None)


def earlier_tries_are_forgotten() -> Planted:
    def add(state: CallState, failure: LedgerMQError) -> None:
        state.failures.append(failure)
        state.failures_count += 1

    return patch.object(CallState, "add", add)


def nobody_is_woken() -> Planted:
    return patch.object(RouteWaiters, "wake", lambda _: None)


def topics_go_unnoticed() -> Planted:
    remove = TopicIndex._remove

    def unnoticed(index: TopicIndex, topic: str, broker_names: Any) -> None:
        with patch.object(index, "_next_revision", lambda: index.revision(topic)):
            remove(index, topic, broker_names)

    return patch.object(TopicIndex, "_remove", unnoticed)


def what_is_read_ahead_counts_as_handled() -> Planted:
    return patch.object(Backlog, "handled", property(lambda backlog: backlog.next_offset))


def messages_of_a_queue_are_not_held() -> Planted:
    return patch.object(Turns, "hold", lambda *_: None)


def locks_are_given_to_whoever_asks() -> Planted:
    def give(locks: GroupLocks, group: str, client_id: str, queue: Any, now: float) -> bool:
        locks._give(group, client_id, queue, now)
        return True

    return patch.object(GroupLocks, "_lock", give)


def commits_before_a_failover_are_forgotten() -> Planted:
    load = TransactionService._load

    def forget(service: TransactionService, run: int) -> None:
        service._deliveries.committed.clear()
        service._deliveries.origins.clear()
        load(service, run)

    return patch.object(TransactionService, "_load", forget)


def unknown_counts_as_commit() -> Planted:
    """By the producer that is asked about a transaction."""
    ask = Transactions._ask

    async def commits(transactions: Transactions, message: Any) -> Decision:
        decision = await ask(transactions, message)
        return Decision.COMMIT if decision is Decision.UNKNOWN else decision

    return patch.object(Transactions, "_ask", commits)


def rollbacks_store_the_message() -> Planted:
    decide = TransactionRequests._decide

    def commit(requests: TransactionRequests, connection: Any, command: Any, _: int) -> None:
        decide(requests, connection, command, TRANSACTION_COMMIT)

    return patch.object(TransactionRequests, "_decide", commit)


def nobody_is_asked_about_transactions() -> Planted:
    return patch.object(TransactionService, "_check_half", lambda *_: None)


def checkpoints_live_in_memory() -> Planted:
    return patch.object(Checkpoints, "has_changes", lambda _: False)


def acknowledgements_live_in_memory() -> Planted:
    """A new leader knows what was taken, and not what was acknowledged."""
    acknowledge = Checkpoints._acknowledge

    def keep(checkpoints: Checkpoints, key: str, *arguments: Any) -> int:
        was_unsent = key in checkpoints._unsent
        count = acknowledge(checkpoints, key, *arguments)
        if not was_unsent:
            checkpoints._unsent.pop(key, None)
        return count

    return patch.object(Checkpoints, "_acknowledge", keep)


def acknowledgements_of_what_an_earlier_leader_gave_are_forgotten() -> Planted:
    """They are answered with success."""
    load, acknowledge = Checkpoints.load, Checkpoints._acknowledge
    loaded = WeakKeyDictionary[Checkpoints, set[str]]()

    def note(checkpoints: Checkpoints, table: Mapping[str, Checkpoint]) -> None:
        loaded[checkpoints] = set(table)
        load(checkpoints, table)

    def forget(checkpoints: Checkpoints, key: str, checkpoint: Checkpoint, bits: int) -> int:
        return (
            bits.bit_count() if key in loaded.get(checkpoints, ()) else acknowledge(checkpoints, key, checkpoint, bits)
        )

    bug = ExitStack()
    bug.enter_context(patch.object(Checkpoints, "load", note))
    bug.enter_context(patch.object(Checkpoints, "_acknowledge", forget))
    return bug


def a_new_leader_revives_at_once() -> Planted:
    def revive(checkpoints: Checkpoints, now_ms: int) -> None:
        for key, checkpoint in checkpoints._open.items():
            checkpoints._sooner[key] = checkpoint.pop_ms
            heapq.heappush(checkpoints._due, (checkpoint.pop_ms, key))

    return patch.object(Checkpoints, "clock_is", revive)


def clocks_that_are_ahead_are_no_matter() -> Planted:
    """POP: what a leader gave whose clock was ahead is hidden until the next leader's clock has come so far."""
    return patch.object(Checkpoints, "clock_is", lambda *_: None)


def a_clock_that_is_set_back_is_no_matter() -> Planted:
    """POP: what a leader gave before its clock was set back is hidden until it has come so far again."""
    return patch.object(PopProgress, "now_ms", lambda progress: progress._clock_ms())


def a_queue_gives_what_it_gave() -> Planted:
    return patch.object(ConsumerOffsets, "commit", lambda *_: None)


def revives_are_forgotten() -> Planted:
    """The log is not told of them, and a new leader does not look for them."""
    take_due = Checkpoints.take_due

    def take(checkpoints: Checkpoints, *arguments: int) -> list[Checkpoint]:
        taken = take_due(checkpoints, *arguments)
        for checkpoint in taken:
            checkpoints._unsent.pop(checkpoint.key, None)
        return taken

    bug = ExitStack()
    bug.enter_context(patch.object(Checkpoints, "take_due", take))
    bug.enter_context(patch.object(ReviveService, "_without_revived", lambda _, checkpoint: checkpoint))
    return bug


def an_error_is_only_logged() -> Planted:
    save = StateSaver.save_soon

    def fail_afterwards(saver: StateSaver) -> None:
        save(saver)
        raise ValueError("after the tables were saved")

    return patch.object(StateSaver, "save_soon", fail_afterwards)


@dataclass(frozen=True)
class StackBug:
    """One bug, and what the simulation answers: a code of `chaos.sim.observer`, with a seed that finds it.

    Without a seed: not found in the first 25 or 40 seeds; see docs/testing.md for what finds it instead. `needs`: see
    `tests.sim.ranked_seeds.ranked`, for others where this seed misses it (`python -m tests.sim.find_seeds`).
    """

    name: str
    plant: Callable[[], Planted]
    codes: tuple[str, ...] = ()
    seed: int | None = None
    needs: str = ""


BUGS = (
    StackBug("A1 writable with entries undecided", writable_too_early),
    StackBug("A2 recovering member's own vote", own_vote_counts),
    StackBug("A3 filler counts alone", filler_counts_alone),
    StackBug("A4 full disk taken for a failed one", full_disk_is_a_failed_one, ("R10", "R37"), 12716, "full_disk"),
    StackBug("A5 install without a mark", install_is_not_marked),
    StackBug("A6, A18 tables do not wait for the log", tables_do_not_wait_for_the_log),
    StackBug("A7 failed sync forgotten", failed_sync_is_forgotten, ("R9",), 3949, "failed_sync"),
    StackBug("failed sync swallowed", failed_sync_is_swallowed, ("R8", "R9"), 24740, "failed_disk"),
    StackBug("failed sync tried again", failed_sync_is_tried_again, ("R8", "R9"), 8007, "failed_sync"),
    StackBug("A7 only the scanned part written again", only_the_scanned_part_is_written_again),
    StackBug(
        "A8 members with different dLegerPeers",
        other_peers_are_no_matter,
        ("R24", "R17", "R1", "R6"),
        27805,
        "other_peers",
    ),
    StackBug(
        "A9 connected member with a failed disk keeps files", failed_member_keeps_files, ("R14",), 18, "loses_a_disk"
    ),
    StackBug(
        "A10 state sent in one part",
        state_is_sent_in_one_part,
        ("R14",),
        24007,
        "has_large_tables leave_a_topic_behind",
    ),
    StackBug("A10 policies of any size", policies_of_any_size, ("R26",), 728, "has_huge_requests"),
    StackBug("A11 forgotten votes", votes_are_forgotten),
    StackBug("A17 undecided removals no matter", undecided_removals_are_no_matter, ("R16",), 66),
    StackBug("A17 install keeps queues", install_keeps_queues, ("R20",), 3178, "leave_a_topic_behind administrators"),
    StackBug("A17 units of removed topics stay", units_of_removed_topics_stay, ("R20",), 1281),
    StackBug(
        "A19 recalled and delivered", timers_are_not_held_back_for_recalls, ("R16", "R23"), 26150, "administrators"
    ),
    StackBug(
        "A19 one of two prohibitions kept", prohibitions_see_the_committed_ones_only, ("R23",), 15, "administrators"
    ),
    StackBug("A19 checkpoints outlive their group", checkpoints_outlive_their_group, ("R16",), 15, "administrators"),
    StackBug("A19 resets live in the leader's memory", resets_live_in_memory, ("R16",), 15, "administrators"),
    StackBug("A19 clone answered before the log has it", clones_are_answered_at_once, ("R23",), 4, "administrators"),
    StackBug("A19 a follower takes no reset", followers_take_no_reset, ("R14",), 15, "administrators callers"),
    StackBug("tables not written at an install", tables_are_not_written_at_an_install),
    StackBug(
        "tables not taken over at an install", tables_are_not_taken_over_at_an_install, ("R19",), 27805, "leave_behind"
    ),
    StackBug("flush not awaited", flush_is_not_awaited, ("R9",), 66),
    StackBug("sync covers what came while it ran", sync_covers_what_came_while_it_ran, ("R9",), 36),
    StackBug("folder of term and vote not synced", folder_of_term_and_vote_is_not_synced, ("R9",), 66),
    StackBug("start does not sync", start_does_not_sync, ("R9",), 66),
    StackBug("checkpoint of the log ahead", checkpoint_of_the_log_is_ahead),
    StackBug("checkpoint of the queues ahead", checkpoint_of_the_queues_is_ahead),
    StackBug("log trimmed above the checkpoint", log_is_trimmed_above_the_checkpoint, ("R20",), 12, "cut_after_trim"),
    StackBug("one entry too few cut", one_entry_too_few_is_cut, ("R5",), 4267, "cut_one_way"),
    StackBug(
        "request without an answer passed on again",
        request_without_an_answer_is_passed_on_again,
        ("R16",),
        24121,
        "callers reset_link",
    ),
    StackBug(
        "request that arrives twice served twice", request_that_arrives_twice_is_served_twice, ("R16",), 66, "callers"
    ),
    StackBug("deposed leader counts as none", deposed_leader_counts_as_none),
    StackBug("lost sends not found", lost_sends_are_not_found, ("R16",), 1708, "callers"),
    StackBug("nothing passed on", nothing_is_passed_on, ("R14",), 13008, "callers"),
    StackBug("leader not asked about groups", leader_is_not_asked_about_groups, ("R14",), 13008, "callers"),
    StackBug("damage ends the log", damage_ends_the_log, ("R21",), 13008, "rotten_entry"),
    StackBug(
        "damage behind the checkpoint looks torn",
        damage_behind_the_checkpoint_looks_torn,
        ("R21",),
        4082,
        "rotten_tail",
    ),
    StackBug("installs keep nothing", installs_keep_nothing, ("R3/R4/R10", "R37"), 17203, "rotten_and_left_behind"),
    StackBug("damaged entries stay", damaged_entries_stay, ("R14",), 945, "rotten_entry"),
    StackBug("position of an entry not checked", position_of_an_entry_is_not_checked, ("R14",), 5917, "rotten_entry"),
    StackBug("offsets lost at a failover", followers_keep_no_offsets, ("R19",), 66),
    StackBug("batch shares an offset", batches_share_an_offset_with_the_next_message, ("R16",), 16, "batch_callers"),
    StackBug("queues rebuilt one message short", queues_are_rebuilt_one_message_short, ("R20",), 66),
    StackBug("request ids used again too soon", request_ids_are_used_again_too_soon, ("R23", "R14"), 66, "callers"),
    StackBug("elections by the wall clock", elections_go_by_the_wall_clock, ("R14",), 67, "clock_jumps"),
    StackBug(
        "store times follow each step of the clock",
        store_times_follow_each_step_of_the_clock,
        ("R25",),
        552,
        "clock_jumps",
    ),
    StackBug("no other member tried", no_other_member_is_tried, ("R14",), 4471, "programs"),
    StackBug("earlier tries forgotten", earlier_tries_are_forgotten, ("R28", "R16"), 0, "programs"),
    StackBug("nobody woken", nobody_is_woken, ("R27",), 0, "programs"),
    StackBug("topics go unnoticed", topics_go_unnoticed, ("R27",), 0, "programs"),
    StackBug("read ahead counts as handled", what_is_read_ahead_counts_as_handled, ("R29", "R30"), 3257, "members"),
    StackBug("messages of a queue not in order", messages_of_a_queue_are_not_held, ("R30",), 5586, "members"),
    StackBug("locks given to whoever asks", locks_are_given_to_whoever_asks, ("R31",), 5586, "members"),
    StackBug(
        "commits before a failover forgotten", commits_before_a_failover_are_forgotten, ("R32",), 1395, "transactors"
    ),
    StackBug("unknown counts as commit", unknown_counts_as_commit, ("R32",), 276, "transactors"),
    StackBug("rollbacks store the message", rollbacks_store_the_message, ("R32",), 104, "transactors"),
    StackBug("nobody asked about transactions", nobody_is_asked_about_transactions, ("R14",), 1395, "transactors"),
    StackBug("checkpoints of POP in memory only", checkpoints_live_in_memory, ("R14",), 6583, "poppers"),
    StackBug("acknowledgements of POP in memory only", acknowledgements_live_in_memory, ("R33",), 6583, "poppers"),
    StackBug(
        "acknowledgements of what an earlier leader gave forgotten",
        acknowledgements_of_what_an_earlier_leader_gave_are_forgotten,
        ("R33",),
        6583,
        "poppers",
    ),
    StackBug("a new leader revives at once", a_new_leader_revives_at_once, ("R34",), 34, "poppers"),
    StackBug(
        "POP: clocks that are ahead no matter",
        clocks_that_are_ahead_are_no_matter,
        ("R14",),
        6583,
        "poppers clock_jumps",
    ),
    StackBug(
        "POP: a clock set back no matter", a_clock_that_is_set_back_is_no_matter, ("R14",), 6583, "poppers clock_jumps"
    ),
    StackBug("a queue gives what it gave", a_queue_gives_what_it_gave, ("R34", "R33"), 34, "poppers"),
    StackBug("revives forgotten", revives_are_forgotten, ("R35",), 34, "poppers"),
    StackBug("orders of POP in memory only", orders_live_in_memory, ("R34",), 14758, "pops_in_order"),
    StackBug(
        "an acknowledgement is of all before", an_acknowledgement_is_of_all_before, ("R36",), 5719, "pops_in_order"
    ),
    StackBug("an error is only logged", an_error_is_only_logged, ("R37",), 66),
    StackBug("received counts as committed", received_counts_as_committed, ("R20",), 66),
)
