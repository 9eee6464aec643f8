"""CommittedLog: what the committed entries mean, computed without the product's code: topics, queues and tables.

    entry --> record --> the n-th message of a queue in the present life of its topic must have queue offset n
                    '--> state record: topics made and removed, offsets of groups

Every replica must show exactly this: `fault_of_queues` reads a store as consumers do.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from broker.state import names
from broker.transactions.halves import CHECK_TIMES
from chaos.sim.errors import SafetyViolation
from dledger.log.entry import HEADER_SIZE
from dledger.log.store_clock import HOLD_MS
from ledgermq.message.flags import TRANSACTION_PREPARED
from ledgermq.message.pop_handle import is_retry_topic
from ledgermq.message.properties import REAL_TOPIC
from ledgermq.message.record import Record, decode_record
from store.message_store import MessageStore
from store.queues.queue_reader import GetStatus

Key = tuple[str, int]
Place = tuple[str, int, int]
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class CommittedMessage:
    """A committed message: its physical offset, and its body."""

    physical_offset: int
    body: bytes


@dataclass(slots=True)
class Life:
    """A queue from the creation to the removal of its topic, at physical offset `removed_at`. Offsets count from 0."""

    messages: list[CommittedMessage] = field(default_factory=list)
    removed_at: int | None = None


@dataclass(frozen=True, slots=True)
class Tables:
    """The topics, and the offsets by `topic@group` and queue id, as of physical offset `begin`."""

    begin: int
    topics: frozenset[str]
    offsets: dict[str, dict[str, int]]


class CommittedLog:
    """The accounts (`chaos.sim.observer.Accounts`) of a group of brokers.

    Attributes:
        indexes: by the physical offset of its record, each committed entry.
        forbidden: by group and topic, the bits of what the group may not do.
        counted_until_us: time until which the work of each turn of a broker's loop is counted, after a huge request.
        deleted_to: highest physical offset below which some member has deleted its log.
        reached_offset: highest physical offset up to which some member may have dispatched.
        reign_count: number of times a leader became writable.
        removed_groups: groups whose removal was acknowledged, and which have taken nothing since.
        transactions: topic and body of each message that was sent by a transaction.
        commits: bodies of those whose program has committed.
        on_copy: called with a copy in a retry topic and its original, when the copy is committed.
        on_change: called with a change of the tables and its physical offset, when it is committed.
    """

    def __init__(self) -> None:
        self._payloads: list[bytes] = []
        self._lives: dict[Key, list[Life]] = {}
        self._tables = [Tables(-1, frozenset(), {})]
        self.indexes: dict[int, int] = {}
        self._stored_ms = 0
        self._copies: Counter[tuple[str, bytes]] = Counter()
        self._allowed: dict[tuple[str, bytes], int | None] = {}
        self._recalled: set[tuple[str, bytes]] = set()
        self._moved: dict[str, dict[str, int]] = {}
        self.forbidden: dict[str, dict[str, int]] = {}
        self.removed_groups: set[str] = set()
        self.transactions: set[tuple[str, bytes]] = set()
        self.commits: set[bytes] = set()
        self._halves: dict[tuple[str, bytes], list[int]] = {}
        self._copied: set[tuple[str, int]] = set()
        self.on_copy: Callable[[Record, Record], None] = _tell_nobody
        self.on_change: Callable[[dict[str, Any], int], None] = _tell_nobody
        self.counted_until_us = 0
        self.deleted_to = self.reached_offset = self.reign_count = 0

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy, without the callbacks of this run's programs."""
        return {**self.__dict__, "on_copy": _tell_nobody, "on_change": _tell_nobody}

    def enter(self, index: int, payload: bytes) -> str | None:
        """Take the next committed entry; return what is wrong with its place in its queue, or None.

        Raises:
            SafetyViolation: R25, its store time is at most `HOLD_MS` before the last one; R32, it is the message of a
                transaction that is not committed, or is there more often than its half message; R35, it is the second
                copy of one message in a retry topic.
        """
        record = decode_record(payload[HEADER_SIZE:])
        fall_ms, self._stored_ms = self._stored_ms - record.store_timestamp, record.store_timestamp
        if 0 < fall_ms <= HOLD_MS:
            raise SafetyViolation("R25", f"the store time of the entry {index} is {fall_ms} ms before the last one")
        self._payloads.append(payload)
        self.indexes[record.physical_offset] = index
        if record.sys_flag & TRANSACTION_PREPARED:  # set in rolled-back messages, too
            return None
        if not (record.topic in self.topics or names.is_system_topic(record.topic)):
            return f"a message of {record.topic}, which was removed before it"
        messages = self.present_life((record.topic, record.queue_id)).messages
        if record.queue_offset != len(messages):
            where = f"{record.topic}/{record.queue_id}"
            return f"queue offset {record.queue_offset} of {where}, of which the queue has {len(messages)} already"
        if record.topic == names.HALF_TOPIC and CHECK_TIMES not in record.property_map:
            sent = record.property_map[REAL_TOPIC], record.body
            self._halves.setdefault(sent, []).append(record.physical_offset)
        elif not names.is_system_topic(record.topic):
            sent = record.topic, record.body
            self._copies[sent] += 1
            self._check_transaction(*sent)
            if record.prepared_transaction_offset and is_retry_topic(record.topic):
                self._check_copy(record)
            if fault := self._fault_of_copies(*sent):
                return fault
            if sent in self._recalled:
                return f"the message {record.body!r} of {record.topic}, which was recalled"
        messages.append(CommittedMessage(record.physical_offset, record.body))
        if record.topic == names.STATE_TOPIC:
            return self._change(record.physical_offset, json.loads(record.body))
        if is_retry_topic(record.topic) and _group_of(record.topic) in self.removed_groups:
            return f"a message for {record.topic}, which its group had taken before it was removed"
        return None

    def forget_above(self, index: int) -> None:
        """Forget the entries above `index`, which may be lost, as the node has reported."""
        payloads = self._payloads[: index + 1]
        self.__init__()  # type: ignore[misc]
        for number, payload in enumerate(payloads):
            self.enter(number, payload)

    @property
    def topics(self) -> frozenset[str]:
        """The topics after the last committed entry."""
        return self._tables[-1].topics

    def present_life(self, key: Key) -> Life:
        """Return the queue's life after the last committed entry."""
        lives = self._lives.setdefault(key, [Life()])
        if lives[-1].removed_at is not None:
            lives.append(Life())
        return lives[-1]

    @property
    def offsets(self) -> dict[str, dict[str, int]]:
        """The offsets by `topic@group` and queue id, after the last committed entry."""
        return self._tables[-1].offsets

    def note_recalled(self, topic: str, body: bytes) -> bool:
        """Note that a recall was acknowledged; return False if the message had been delivered before."""
        self._recalled.add((topic, body))
        return (topic, body) not in self._copies

    def allow(self, topic: str, body: bytes, copies: int | None) -> str | None:
        """Note how often a message may be stored (default once; None: any number); return what breaks that already."""
        self._allowed[topic, body] = copies
        return self._fault_of_copies(topic, body)

    def copies(self, topic: str, body: bytes) -> int:
        """Return how often a message is committed."""
        return self._copies[topic, body]

    def lacks(self, topic: str, body: bytes) -> bool:
        """Return whether a half message is stored without its message, unless the log has deleted the half message."""
        halves = self._halves.get((topic, body), ())
        return self.copies(topic, body) == 0 and any(at >= self.deleted_to for at in halves)

    def has_half(self, topic: str, body: bytes) -> bool:
        """Return whether a half message is committed."""
        return (topic, body) in self._halves

    def _check_transaction(self, topic: str, body: bytes) -> None:
        halves, copies = len(self._halves.get((topic, body), ())), self._copies[topic, body]
        if (topic, body) not in self.transactions:  # a copy in a retry topic is another message
            return
        if body not in self.commits:
            raise SafetyViolation("R32", f"{body!r} is there, and its transaction is not committed")
        self._allowed[topic, body] = None
        if copies > halves:
            raise SafetyViolation("R32", f"{body!r} is there {copies} times, and its half message {halves} times")

    def _check_copy(self, copy: Record) -> None:
        origin = copy.prepared_transaction_offset
        if (copy.topic, origin) in self._copied:
            raise SafetyViolation("R35", f"the message at {origin} of the log has another copy in {copy.topic}")
        self._copied.add((copy.topic, origin))
        self._allowed[copy.topic, copy.body] = None  # a copy may itself be copied
        self.on_copy(copy, decode_record(self._payloads[self.indexes[origin]][HEADER_SIZE:]))

    def _fault_of_copies(self, topic: str, body: bytes) -> str | None:
        stored, allowed = self._copies[topic, body], self._allowed.get((topic, body), 1)
        if allowed is None or stored <= allowed:
            return None
        return f"the message {body[:20]!r} of {topic} is there {stored} times, where {allowed} are allowed"

    def skip(self, key: Key, at: int, is_over: Callable[[int], bool], deleted_to: int | None = None) -> int:
        """Return the first queue offset, from `at` on, whose message is neither over nor deleted.

        `deleted_to`: physical offset below which messages count as deleted; None: `self.deleted_to`.
        """
        messages = self.present_life(key).messages
        deleted_to = self.deleted_to if deleted_to is None else deleted_to
        while at < len(messages) and (is_over(at) or messages[at].physical_offset < deleted_to):
            at += 1
        return at

    def note_moved(self, topic: str, group: str) -> bool:
        """Note that moved offsets of a group were acknowledged; return False if the log does not have them."""
        key = f"{topic}@{group}"
        self._moved[key] = dict(self.offsets.get(key, {}))
        return bool(self._moved[key])

    def _change(self, at: int, change: dict[str, dict[str, Any]]) -> str | None:
        for group, bits in change.get("forbidden", {}).items():
            self.forbidden[group] = bits or {}
        for key, resets in change.get("resets", {}).items():
            for queue, offset in (resets or {}).items():
                if offset is None:
                    self._moved.get(key, {}).pop(queue, None)
        topics, offsets = set(self.topics), dict(self._tables[-1].offsets)
        for topic, settings in change.get("topics", {}).items():
            if settings is not None:
                topics.add(topic)
                continue
            topics.discard(topic)
            offsets = {key: queues for key, queues in offsets.items() if key.partition("@")[0] != topic}
            for (name, _), lives in self._lives.items():
                if name == topic and lives[-1].removed_at is None:
                    lives[-1].removed_at = at
        for key, queues in change.get("offsets", {}).items():
            if queues is None:
                offsets.pop(key, None)
            else:
                offsets[key] = {**offsets.get(key, {}), **queues}
                for queue, moved_to in self._moved.get(key, {}).items():
                    if queues.get(queue, moved_to) != moved_to:
                        return f"offset {queues[queue]} of {key}, queue {queue}, which was moved to {moved_to}"
        self._tables.append(Tables(at, frozenset(topics), offsets))
        self.on_change(change, at)
        return None

    # -- what a replica must show

    def holds(self, key: Key, queue_offset: int, physical_offset: int, body: bytes) -> bool:
        """Return whether a message is committed at this place of its queue, in any life of it."""
        wanted = CommittedMessage(physical_offset, body)
        return any(life.messages[queue_offset : queue_offset + 1] == [wanted] for life in self._lives.get(key, ()))

    def fault_of_tables(self, topics: dict[str, object], offsets: dict[str, dict[int, int]], end: int) -> str | None:
        """Return what is wrong with tables to which everything before `end` was applied; None if nothing."""
        tables = next(tables for tables in reversed(self._tables) if tables.begin < end)
        if topics.keys() != tables.topics:
            return f"the topics up to {end} are {sorted(topics)}, committed are {sorted(tables.topics)}"
        found = {key: {str(queue_id): offset for queue_id, offset in queues.items()} for key, queues in offsets.items()}
        if found != tables.offsets:
            return f"the offsets up to {end} are {found}, committed are {tables.offsets}"
        return None

    def fault_of_queues(self, store: MessageStore, removed_to: int) -> str | None:
        """Return what consumers of a replica would see wrongly in everything it has dispatched; None if nothing.

        A start may find less dispatched than an earlier process of the node had: queues of topics whose removal lies
        before `removed_to` may be missing, or begin later; they are removed once more before the node can lead.
        """
        end = store.dispatched_offset
        tables = next(tables for tables in reversed(self._tables) if tables.begin < end)
        for key, lives in self._lives.items():
            life = next((life for life in lives if life.removed_at is None or life.removed_at >= end), None)
            if life is not None and life.removed_at is not None and life.removed_at < removed_to:
                continue
            messages = [] if life is None else [one for one in life.messages if one.physical_offset < end]
            if key[0] in tables.topics or names.is_system_topic(key[0]):
                fault = _fault_of_queue(store, key, messages)
            else:
                queue = store.queues.find(*key)
                is_gone = queue is None or queue.max_offset == 0
                fault = None if is_gone else f"is there, {queue}, its topic is not"
            if fault is not None:
                return f"{key[0]}/{key[1]} {fault}"
        return None


def _tell_nobody(*_: object) -> None: ...


def _group_of(retry_topic: str) -> str:
    return retry_topic.removeprefix(names.RETRY_PREFIX).partition("_")[0].partition(names.POP_RETRY_V2)[0]


def _fault_of_queue(store: MessageStore, key: Key, messages: list[CommittedMessage]) -> str | None:
    queue = store.queues.find(*key)
    if queue is None:
        return f"is not there, with {len(messages)} messages" if messages else None
    if queue.max_offset != len(messages):
        return f"ends at {queue.max_offset}, {len(messages)} messages are committed"
    first = store.log.min_offset
    offset = next((number for number, one in enumerate(messages) if one.physical_offset >= first), len(messages))
    while offset < len(messages):
        found = store.reader.get(queue, offset, _AT_ONCE, 1 << 20)
        if found.status is not GetStatus.FOUND or not found.records:
            return f"gives {found.status.name} at {offset}, it ends at {len(messages)}"
        for record in map(decode_record, found.records):
            wanted = messages[offset] if offset < len(messages) else None
            if (record.topic, record.queue_id) != key or record.queue_offset != offset or wanted is None:
                place = f"{record.topic}/{record.queue_id}/{record.queue_offset}"
                return f"gives the message of {place} at {offset}"
            if (record.physical_offset, record.body) != (wanted.physical_offset, wanted.body):
                return f"gives another message at {offset} than was committed there"
            offset += 1
    return None
