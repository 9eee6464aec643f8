"""Bugs that break a promise, one wrong decision in shipping code each, and the test that finds it.

The first table of docs/testing.md names the promise that each of them breaks.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple
from unittest.mock import AsyncMock, Mock, patch

from broker.delay.deliveries import Deliveries
from broker.pull.processor import PullProcessor
from broker.state.offsets import ConsumerOffsets
from broker.state.saver import StateSaver
from broker.state.tables import ReplicatedState, StateChange
from broker.transactions.topics import TransactionTopics
from chaos.sim.observer import Observer
from dledger.core import voting
from dledger.core.follower import Follower
from dledger.core.leader import Leader
from dledger.core.messages import HardState, VoteRequest
from dledger.core.progress import PeerProgress
from dledger.core.raft import Raft
from dledger.core.roles import SoftState
from dledger.core.state import NodeState
from dledger.errors import WrongDirectoryError
from dledger.log import identity
from dledger.log.entry import INDEX_UNIT_SIZE, EntryHeader, body_fault, check_span
from dledger.log.entry_log import EntryLog
from dledger.log.hard_state import HardStateFile
from dledger.log.recovery import EntryScan, RecoveredEntries
from dledger.log_events import LogEvents
from dledger.peers.link import PeerLink
from dledger.raft_log import RaftLog
from ha.controller.answers import master_fields
from ha.controller.core.commands import AlterSet, Elect
from ha.controller.core.model import Group
from ha.controller.quorum.journal import QuorumJournal
from ha.core.copies import Copies
from ha.core.lease import Grants
from ledgermq.client.consumer.sending_back import SendingBack
from ledgermq.client.core.calls import Calls
from ledgermq.client.producer.send_request import SendPlan
from ledgermq.remoting.codec import frame
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.serving import line
from store.directory.store_directory import StoreDirectory
from store.files.mapped_file import MappedFile
from store.log.flusher import FlushMode
from store.record_tails import Tails
from tests.sim import mutants

Planted = AbstractContextManager[Any]

RAFT: Final = "tests/dledger/core/test_raft_paper.py"
SCENE: Final = "tests/dledger/core/test_raft_transcripts.py::test_transcript_is_what_the_nodes_do"
IMAGES: Final = "tests/store/crash/test_seeded_bugs.py::test_the_bug_is_found"


class Bug(NamedTuple):
    """A bug, and the node id of the test that finds it. Without `plant` that test plants the bug itself."""

    test: str
    plant: Callable[[], Planted] | None = None


def put(owner: Any, name: str, value: Any) -> Callable[[], Planted]:
    """Replace an attribute of a class, or of a module."""
    return partial(patch.object, owner, name, value)


# -- Raft


def count_the_leader_only(leader: Leader) -> int:
    return leader._state.counted_index


def count_all(leader: Leader) -> int:
    return min([leader._state.counted_index, *(peer.durable_index for peer in leader.peers.values())])


def acknowledge_late_batches(log: RaftLog, _waiting: int) -> Any:
    return log._events.receipt()


def acknowledge_when_deposed(events: LogEvents, state: SoftState) -> None:
    events.soft = state
    events.batches.complete(1 << 62, events.receipt)
    events.tell_role()


def vote_while_recovering(state: NodeState, request: VoteRequest, *, has_leader: bool) -> Any:
    with patch.object(state, "recovering", False):
        return voting.decide_vote(state, request, has_leader=has_leader)


def forget_no_acknowledgement(progress: PeerProgress) -> None:
    progress.recovering = True


def become_sound_at_once(follower: Follower) -> None:
    if follower._state.knows_its_votes:
        follower._state.become_sound(follower.leader_id)


def halt_in_office(raft: Raft) -> None:
    raft.is_halted = True


def stall_in_office(raft: Raft, *, is_stalled: bool) -> None:
    raft.state.stalled = is_stalled


def only_note_the_loss(raft: Raft, peer: str) -> None:
    raft.state.lost_links.add(peer)


def read_anything(log: RaftLog, physical_offset: int, size_bytes: int) -> memoryview:
    return log._entries.data.slice(physical_offset, size_bytes)


append_span = EntryLog.append_span


def change_the_last_byte(log: EntryLog, span: Any) -> None:
    append_span(log, span)
    file = log.data.files[-1]
    file.write_over(file.write_position - 1, memoryview(b"?"))


def scan_nothing(_: EntryScan, position: int, first_index: int, *__: Any) -> RecoveredEntries:
    return RecoveredEntries(first_index - 1, position)


def want_a_crc(view: Any, offset: int, header: Any, *, records: bool) -> str | None:
    fault = body_fault(view, offset, header, records=records)
    return fault or (None if header.body_crc else "there is no CRC")


def units_without_a_term(data: Any, first_index: int, last_index: int, term: int, start_position: int) -> bytearray:
    units = check_span(data, first_index, last_index, term, start_position)
    for end in range(INDEX_UNIT_SIZE, len(units) + 1, INDEX_UNIT_SIZE):
        units[end - 8 : end] = bytes(8)
    return units


open_identity = identity.open_identity


fault_of, trim = EntryScan._fault, RaftLog.trim


def let_terms_fall(scan: EntryScan, file: MappedFile, offset: int, header: EntryHeader, index: int) -> str | None:
    with patch.object(scan, "_term", min(scan._term, header.term)):
        return fault_of(scan, file, offset, header, index)


@contextmanager
def terms_fall() -> Iterator[None]:
    with (
        patch.object(EntryScan, "_fault", let_terms_fall),
        patch.object(EntryScan, "_wrong_term", Mock(return_value=None)),
    ):
        yield


def trim_what_is_not_durable(log: RaftLog, before: int) -> int:
    with patch.object(RaftLog, "flushed_offset", 1 << 62):
        return trim(log, before)


def report_before_the_write(states: HardStateFile, state: HardState, done: Callable[[], None]) -> None:
    done()
    states._worker.put((state, lambda: None))


def take_any_directory(directory: Any, cluster: str, group: str, node_id: str) -> Any:
    try:
        return open_identity(directory, cluster, group, node_id)
    except WrongDirectoryError:
        return identity.MemberIdentity(cluster, group, node_id, "1"), False


@contextmanager
def never_complain() -> Iterator[None]:
    with patch.object(Observer, "_expect"), patch("tests.sim.test_mutants.SEED_LIMIT", 1):
        yield


# -- masters, slaves and controllers

elect, alter, add_entry = Elect.apply, AlterSet.apply, QuorumJournal.add


def keep_the_epoch(command: Elect, group: Any) -> Any:
    after, outcome = elect(command, group)
    if group is not None and after is not None and group.master_epoch:
        after = replace(after, master_epoch=group.master_epoch)
    return after, outcome


def take_any_proposal(command: AlterSet, group: Any) -> Any:
    return alter(replace(command, set_epoch=group.set_epoch), group)


def add_without_a_sync(journal: QuorumJournal, command: bytes, index: int, term: int) -> None:
    with patch("os.fdatasync"):
        add_entry(journal, command, index, term)


def fields_without_an_epoch(group: Group, **form: bool) -> dict[str, str]:
    return {name: value for name, value in master_fields(group, **form).items() if name != "masterEpoch"}


def free_at_once(_grants: Grants, _name: str, _holder: int) -> float:
    return 0.0


# -- what a new leader knows

apply_change, restart_topics = ReplicatedState.apply, TransactionTopics.restart


def apply_no_offsets(state: ReplicatedState, change: StateChange, timestamp: int, physical_offset: int = 0) -> None:
    apply_change(state, replace(change, offsets={}), timestamp, physical_offset)


def tell_and_forget(offsets: ConsumerOffsets) -> None:
    offsets._unsent.clear()
    waiting, offsets._waiting = offsets._waiting, []
    for done in waiting:
        done(None)


def find_no_deliveries(_: Deliveries, then: Callable[[], None]) -> None:
    then()


def begin_at_the_end(topics: TransactionTopics, _half_start: int, _op_start: int) -> None:
    restart_topics(topics, 1 << 62, 1 << 62)


# -- clients, frames and files


def end_the_connection(connection: Connection, _command: Any, error: Exception) -> None:
    connection.abort(repr(error))


def serve_all_at_once(connection: line.WaitingConnection) -> bool:
    while connection.serve_some():
        pass
    return False


def code_of_an_illegal_message(refusal: Refusal) -> int:
    return 13 if refusal.cause is Cause.NOT_LEADER else refusal.cause.code


def commit_anywhere(pulls: PullProcessor, topic: str, group: str, queue_id: int, offset: int) -> None:
    pulls._offsets.commit(topic, group, queue_id, offset)


def note_only_that_tables_are_saved(saver: StateSaver) -> None:
    saver.saved_offset = saver._state.applied_offset


@contextmanager
def send_nothing_back() -> Iterator[None]:
    with patch.object(SendingBack, "send_back", AsyncMock()), patch("tests.client.fake.WAIT_S", 0.5):
        yield


async def give_up(_calls: Calls, _plan: Any, _target: Any, failure: Exception, *_: Any) -> None:
    raise failure


make_command = SendPlan.command


def new_id_for_each_try(plan: SendPlan, target: Any) -> Any:
    (old,) = plan.message_ids
    first, last = plan.ext["i"].split(old)
    plan.message_ids = (old[:-2] + f"{int(old[-2:], 16) ^ 1:02X}",)
    plan.ext["i"] = first + plan.message_ids[0] + last
    return make_command(plan, target)


json_fields = frame._json_fields


def sorted_fields(command: Any) -> dict[str, Any]:
    return dict(sorted(json_fields(command).items(), reverse=True))


tags_codes = Tails.tags_codes


def no_tags(tails: Tails) -> Any:
    codes, known = tags_codes(tails)
    return codes * 0, known


BUGS: Final[dict[str, Bug]] = {
    "an entry counts as committed when one member has it": Bug(
        f"{RAFT}::test_an_entry_is_committed_when_a_majority_holds_it",
        put(Leader, "_quorum_index", count_the_leader_only),
    ),
    "a member votes for a log that lacks entries": Bug(
        f"{RAFT}::test_votes_go_only_to_logs_that_are_up_to_date", put(voting, "is_up_to_date", mutants.any_log_will_do)
    ),
    "an entry of an earlier term is committed by counting": Bug(
        f"{RAFT}::test_entries_of_earlier_terms_are_not_committed_by_counting",
        put(Leader, "advance_commit", mutants.commit_old_terms_by_counting),
    ),
    "a member that does not lead refuses with a code after which clients do not try elsewhere": Bug(
        "tests/remoting/test_server.py::test_a_refusal_is_answered_with_its_hints",
        put(Refusal, "code", property(code_of_an_illegal_message)),
    ),
    "a start looks for nothing behind the checkpoint": Bug(
        "tests/dledger/test_log_crashes.py::test_what_a_start_finds_is_durable_when_it_returns",
        put(EntryScan, "run", scan_nothing),
    ),
    "Raft members do not wait for their disks": Bug(
        "tests/cli/test_config_load.py::test_raft_mode_flushes_before_it_counts_unless_told_otherwise",
        partial(patch, "node.config.FlushMode", Mock(SYNC=FlushMode.ASYNC)),
    ),
    "a sync of a file does nothing": Bug(f"{IMAGES}[raft-flush_not_awaited]"),
    "acknowledgements do not wait for the disk": Bug(
        "tests/sim/test_mutants.py::test_the_simulation_finds_a_seeded_bug_that_the_healthy_core_does_not_have"
        "[ack-before-durable]"
    ),
    "the observer never complains": Bug(
        "tests/sim/test_mutants.py::test_the_simulation_finds_a_seeded_bug_that_the_healthy_core_does_not_have"
        "[ack-before-durable]",
        never_complain,
    ),
    "a send that waits too long for a majority is acknowledged": Bug(
        "tests/dledger/test_raft_log.py::test_a_batch_without_a_quorum_is_refused_in_time_with_the_numbers",
        put(RaftLog, "_no_quorum", acknowledge_late_batches),
    ),
    "waiting sends are acknowledged when their leader is deposed": Bug(
        "tests/dledger/test_raft_log.py::test_batches_waiting_on_a_deposed_leader_are_refused_with_leader_changed",
        put(LogEvents, "on_role", acknowledge_when_deposed),
    ),
    "lower terms are not compared": Bug(
        "tests/nameserver/test_routes.py::test_a_lower_term_never_takes_the_route_back",
        partial(patch, "nameserver.core.election._check_term"),
    ),
    "offsets in state records are not applied": Bug(
        "tests/broker/test_raft_brokers.py::test_a_new_leader_knows_topics_offsets_and_messages_and_goes_on",
        put(ReplicatedState, "apply", apply_no_offsets),
    ),
    "reported offsets never come into the log": Bug(
        "tests/broker/test_raft_brokers.py::test_leadership_is_handed_over_on_request_with_the_last_offsets",
        put(ConsumerOffsets, "send", tell_and_forget),
    ),
    "a new leader finds no deliveries behind the mark": Bug(
        "tests/broker/delay/test_timer_deliveries.py::test_a_delivery_without_progress_is_found_and_one_with_it_is_not",
        put(Deliveries, "scan", find_no_deliveries),
    ),
    "a new leader looks for half messages behind the last one only": Bug(
        "tests/broker/transactions/test_transactions.py::test_open_and_decided_transactions_are_known_after_a_restart",
        put(TransactionTopics, "restart", begin_at_the_end),
    ),
    "a case that did not run counts as passed": Bug(
        "tests/interop/test_scoring.py::test_a_case_that_was_asked_for_and_did_not_run_is_owed",
        partial(patch, "tests.interop.test_scoring.with_missing", lambda ours, *_: ours),
    ),
    "an exception of a handler ends the connection": Bug(
        "tests/remoting/test_server.py::test_a_failing_handler_is_answered_by_name_without_a_traceback",
        put(Connection, "fail", end_the_connection),
    ),
    "a long list is parsed before it is refused": Bug(
        "tests/broker/test_bounds_of_requests.py::test_a_list_that_is_too_long_is_refused_before_it_is_parsed",
        partial(patch, "ledgermq.remoting.codec.lenient_json.check_count"),
    ),
    "all that one connection sent is served at once": Bug(
        "tests/remoting/serving/test_line.py::test_others_are_served_between_the_requests_that_one_sent_at_once",
        put(line, "serve_for_a_slice", serve_all_at_once),
    ),
    "a group may have offsets of any number of queues": Bug(
        "tests/broker/test_bounds_of_requests.py::test_a_group_has_offsets_of_at_most_so_many_queues",
        put(ConsumerOffsets, "has_room", Mock(return_value=True)),
    ),
    "something of every request is kept": Bug(
        "tests/fuzz/test_fuzz.py::test_a_fault_planted_in_a_node_is_found[growth]"
    ),
    "a follower changes the last byte of what it gets": Bug(
        "tests/dledger/test_raft_log.py::test_logs_are_equal_byte_for_byte_over_many_files",
        put(EntryLog, "append_span", change_the_last_byte),
    ),
    "an election keeps the epoch": Bug(
        "tests/ha/controller/test_machine.py::test_of_the_living_members_the_best_wins",
        put(Elect, "apply", keep_the_epoch),
    ),
    "two proposals for one epoch are accepted": Bug(
        "tests/ha/controller/test_machine.py::test_two_proposals_for_one_epoch_make_one_set",
        put(AlterSet, "apply", take_any_proposal),
    ),
    "a controller does not sync its journal": Bug(
        "tests/ha/controller/test_journal.py::test_an_entry_is_on_the_disk_before_it_is_in_the_journal",
        put(QuorumJournal, "add", add_without_a_sync),
    ),
    "answers of a controller lack the master's epoch": Bug(
        "tests/ha/controller/test_golden.py::test_each_answer_is_rocketmqs_but_for_what_is_listed",
        partial(patch, "ha.controller.requests.master_fields", fields_without_an_epoch),
    ),
    "a copy is not written": Bug(
        "tests/dledger/test_log.py::test_the_scrub_finds_rot_and_a_copy_repairs_it",
        put(MappedFile, "write_over", Mock()),
    ),
    "the log ends at a damaged entry": Bug(
        "tests/dledger/test_log.py::test_a_bad_committed_entry_blocks_what_follows_it_until_it_is_repaired",
        put(EntryScan, "_judge", Mock(return_value=0)),
    ),
    "a member in doubt votes": Bug(
        f"{SCENE}[recovering]", partial(patch, "dledger.core.member.decide_vote", vote_while_recovering)
    ),
    "what a member acknowledged before it was in doubt counts": Bug(
        f"{RAFT}::test_what_a_member_acknowledged_before_it_recovered_does_not_count",
        put(PeerProgress, "forget", forget_no_acknowledgement),
    ),
    "a member in doubt counts again with the first entry that it takes": Bug(
        f"{SCENE}[recovering]", put(Follower, "_recover", become_sound_at_once)
    ),
    "a leader whose disk failed stays in office": Bug(f"{SCENE}[disk_stall]", put(Raft, "halt", halt_in_office)),
    "a leader whose disk has stalled stays in office": Bug(
        f"{SCENE}[disk_stall]", put(Raft, "disk_stalled", stall_in_office)
    ),
    "units have no hash of the tag": Bug(
        "tests/store/log/test_golden_store.py::test_queue_files_made_again_equal_javas_byte_for_byte",
        put(Tails, "tags_codes", no_tags),
    ),
    "records have no CRC": Bug(
        "tests/message/test_golden_records.py::test_a_draft_of_it_is_written_as_upstream_wrote_it",
        partial(patch, "ledgermq.message.draft.crc32", lambda *_: 0),
    ),
    "the members of a header are in another order": Bug(
        "tests/remoting/test_golden_frames.py::test_decodes_and_encodes_back", put(frame, "_json_fields", sorted_fields)
    ),
    "a start cuts one record too many": Bug(f"{IMAGES}[classic-sync-one_record_too_many_cut]"),
    "an entry without a CRC, as Java writes it, counts as damaged": Bug(
        "tests/dledger/test_golden_dledger.py::test_every_entry_and_index_unit_equals_the_manifest",
        partial(patch, "dledger.log.recovery.body_fault", want_a_crc),
    ),
    "index units have no term": Bug(
        "tests/dledger/test_golden_dledger.py::test_appending_java_s_entries_as_spans_makes_java_s_files",
        partial(patch, "dledger.log.entry_log.check_span", units_without_a_term),
    ),
    "an error of the configuration is not caught": Bug(
        "tests/cluster/test_bad_input.py::test_an_unknown_key_is_refused_with_its_place_and_the_nearest_one",
        partial(patch, "cli.main.CommandError", ZeroDivisionError),
    ),
    "another group's directory is taken": Bug(
        "tests/dledger/test_raft_log_faults.py::test_a_directory_of_another_node_or_group_is_refused_and_left_alone",
        partial(patch, "dledger.log.raft_files.open_identity", take_any_directory),
    ),
    "tables are read when the log is open already": Bug(
        "tests/broker/test_broker.py::test_a_start_that_the_tables_refuse_changes_no_file",
        put(StoreDirectory, "check", Mock()),
    ),
    "a send without an answer is not sent again": Bug(
        "tests/client/producer/test_producer_failures.py"
        "::test_a_send_whose_answer_is_lost_is_sent_again_under_the_same_id",
        put(Calls, "_after_failure", give_up),
    ),
    "each try of a send has an id of its own": Bug(
        "tests/client/producer/test_producer_failures.py"
        "::test_a_send_whose_answer_is_lost_is_sent_again_under_the_same_id",
        put(SendPlan, "command", new_id_for_each_try),
    ),
    "a slave that is behind counts as a copy": Bug(
        "tests/ha/core/test_copies.py::test_a_promise_holds_when_as_many_copies_as_wanted_have_it",
        put(Copies, "_least", staticmethod(lambda _count, _acks, local: local)),
    ),
    "bytes above the confirm offset are read": Bug(
        "tests/dledger/test_raft_log.py::test_bytes_that_are_not_confirmed_are_not_read_by_their_offset",
        put(RaftLog, "read", read_anything),
    ),
    "a successor does not wait for the end of the lease": Bug(
        "tests/ha/core/test_lease.py::test_a_successor_waits_until_the_lease_is_over_on_a_slow_clock",
        put(Grants, "free_s", free_at_once),
    ),
    "a closed connection starts no election": Bug(f"{SCENE}[lost_link]", put(Raft, "peer_lost", only_note_the_loss)),
    "entries are read without a check": Bug(
        "tests/dledger/test_raft_disk.py::test_an_entry_that_rotted_before_the_start_is_never_served",
        partial(patch, "dledger.raft_log.is_sound", return_value=True),
    ),
    "bodies of rare forms of records are not checked": Bug(
        "tests/store/queues/test_batch_fields.py::test_a_rotten_body_is_found_in_every_form_of_record",
        partial(patch, "store.recovery.record_batches.check_record"),
    ),
    "entries of an earlier term are found behind those of a later one": Bug(
        "tests/dledger/test_log_crashes.py::test_recovery_cuts_where_the_term_falls", terms_fall
    ),
    "term and vote are reported before they are written": Bug(
        "tests/dledger/test_raft_disk.py::test_a_term_is_reported_when_it_is_written_and_not_before",
        put(HardStateFile, "save", report_before_the_write),
    ),
    "files are deleted above what is durable": Bug(
        "tests/dledger/test_raft_disk.py::test_old_files_are_kept_until_what_follows_them_is_durable",
        put(RaftLog, "trim", trim_what_is_not_durable),
    ),
    "frames of a peer's earlier connection are heard": Bug(
        "tests/dledger/test_transport.py"
        "::test_nothing_of_a_peers_earlier_connection_is_heard_after_the_hello_of_its_next_one",
        put(PeerLink, "is_latest", Mock(return_value=True)),
    ),
    "a follower takes the offset that a pull reports": Bug(
        "tests/broker/pull/test_pull.py::test_the_offset_that_a_pull_reports_is_taken_by_the_leader_only",
        put(PullProcessor, "_commit", commit_anywhere),
    ),
    "installed tables are not written": Bug(
        "tests/broker/state/test_tables_behind_log.py::test_a_save_under_way_does_not_undo_an_install",
        put(StateSaver, "install", note_only_that_tables_are_saved),
    ),
    "a message that cannot be sent back counts as handled": Bug(
        "tests/client/consumer/test_handling.py::test_what_cannot_be_sent_back_stays_unhandled_and_is_tried_again",
        send_nothing_back,
    ),
    "an entry waits for the slowest member": Bug(
        f"{RAFT}::test_an_entry_is_committed_when_a_majority_holds_it", put(Leader, "_quorum_index", count_all)
    ),
}
