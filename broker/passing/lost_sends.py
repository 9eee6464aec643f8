"""Sends whose answer was lost, or whose leader was deposed: a later leader's log says whether they are stored.

    answer lost --a later generation is decided here, or `WAIT_S` are over--> found       answered: it is stored
                                                                         '--> not found   passed on again, if decided
                                                                                     '--> answered: nobody knows

What a leader placed, and the log lacks when a later generation is decided, is never confirmed; and what was passed on
in one generation is placed in no other (`MemberRequests.greet`). So a send that is not found can be passed on again,
and is not stored twice by that. A generation is decided when one of its entries is confirmed, or, where controllers
have decided where it begins, when all before it is confirmed: a group without other senders writes no entry.

A client may use a key for several messages: it sends one object again, or tries again itself. So what is found must be
the send's own by all that the record has of it. Where only the key is the same, the sender is answered that nobody
knows.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Final, NamedTuple

from broker.append.answers import StoredPlace
from broker.passing.held_requests import Waiting
from broker.state import names
from broker.timers import Spawn
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.properties import (
    DELAY,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TRANSACTION_PREPARED,
    UNIQ_KEY,
    decode_properties,
    find_property,
)
from ledgermq.message.record import Record, decode_record, encoded_properties
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.refusal import Refusal
from store.errors import StoreError
from store.message_store import MessageStore

WAIT_S: Final = 1.0
"""Longest time for which a lost answer is looked for."""

_LOOK_S: Final = 0.01
_COUNT_MAX: Final = 8192
_BYTES_MAX: Final = 32 << 20
_TURN: Final = 256
"""Records that are read, or sends that are settled, in one turn of the loop."""

_RECORDS_MAX: Final = 64 * _TURN
"""Records among which a lost send is looked for; if there are more, its sender is answered that nobody knows."""

_FIELDS: Final = {
    RequestCode.SEND_MESSAGE: ("topic", "queueId", "properties", "batch", "bornTimestamp"),
    RequestCode.SEND_MESSAGE_V2: ("b", "e", "i", "m", "g"),
}
_TIMER: Final = "TIMER_"
"""Beginning of the names of properties for which a message waits for a time; its answer has a handle to recall it."""
_WAITING_TOPICS: Final = frozenset((names.SCHEDULE_TOPIC, names.HALF_TOPIC))


class _Identity(NamedTuple):
    """The fields that tell records of this send from those of others, besides the body.

    Attributes:
        topic, queue_id: those that the send names.
        born: when it was sent, in ms.
        waits: whether the record lies in a system topic, for a delay level or the end of a transaction. What is
            delivered from there later is another record.
    """

    topic: str
    queue_id: int
    born: str
    key: bytes
    waits: bool


class _Lost(NamedTuple):
    """A send without an answer.

    Attributes:
        generation: the only one in which it can have been placed.
        error: why there is no answer.
        deadline: seconds of the loop's clock.
        start: a record's end in the log of each later leader, too, at or before where this send lies.
    """

    waiting: Waiting
    generation: int
    error: RemotingError | Refusal
    identity: _Identity
    deadline: float
    start: int

    def made(self, record: Record) -> bool:
        """Return whether a record was placed by this send and no other one."""
        waiting = self.waiting
        return record.physical_offset >= waiting.since and record.body == waiting.command.body


class LostSends:
    """Keeps sends without an answer until it is known whether they were placed. One search of the log runs at a time.

    Args:
        answer: answers a send that is stored, which has a UNIQ_KEY and arrived at a time of the loop's clock.
        pass_on: passes a send on again that was not placed.
        tell: answers the sender that nobody knows whether it is stored.
    """

    def __init__(
        self,
        store: MessageStore,
        loop: asyncio.AbstractEventLoop,
        spawn: Spawn,
        answer: Callable[[Connection, Command, StoredPlace, bytes, float], None],
        pass_on: Callable[[Waiting], None],
        tell: Callable[[Waiting, RemotingError | Refusal], None],
    ) -> None:
        self._store = store
        self._loop = loop
        self._spawn = spawn
        self._answer = answer
        self._pass_on = pass_on
        self._tell = tell
        self._lost: dict[int, _Lost] = {}  # by the number of the request
        self._bytes = 0
        self._uncertain = 0
        self._is_watching = False

    def __len__(self) -> int:
        """Return how many sends are kept."""
        return len(self._lost)

    def take(self, waiting: Waiting, generation: int, error: RemotingError | Refusal) -> bool:
        """Keep a send whose answer was lost; return False if it cannot be looked for, or too many are kept.

        Args:
            waiting: the send.
            generation: the only one in which it can have been placed.
            error: why there is no answer.
        """
        command = waiting.command
        identity = _identity(command) if waiting.number > self._uncertain else None
        if identity is None or len(self._lost) >= _COUNT_MAX or self._bytes + waiting.size_bytes > _BYTES_MAX:
            return False
        command.body = bytes(command.body)  # a view would keep all of what was received with it
        self._bytes += waiting.size_bytes
        start = min(waiting.since, self._store.dispatched_offset)
        self._lost[waiting.number] = _Lost(waiting, generation, error, identity, self._loop.time() + WAIT_S, start)
        if not self._is_watching:
            self._is_watching = True
            self._spawn(self._watch())
        return True

    def on_cut(self, number: int) -> None:
        """Note that the log was cut below what was dispatched: sends up to that number may lie before their `since`."""
        self._uncertain = number
        self.release()

    def release(self) -> None:
        """Answer all senders that nobody knows whether their message is stored."""
        for one in filter(self._drop, list(self._lost.values())):
            self._tell(one.waiting, one.error)

    async def _watch(self) -> None:
        try:
            while self._lost:
                await asyncio.sleep(_LOOK_S)
                now, newest = self._loop.time(), self._decided_generation()
                due = [one for one in self._lost.values() if one.generation < newest or one.deadline <= now]
                if due:
                    await self._search(due, newest)
        finally:
            self._is_watching = False

    def _decided_generation(self) -> int:
        """Return the newest generation that is decided, with all before it dispatched here; 0: none."""
        end = self._store.dispatched_offset
        kept = self._store.log.generations()
        return max((one.number for one in kept if one.start_offset < end + one.is_final), default=0)

    def _drop(self, one: _Lost) -> bool:
        """Stop keeping a send; return whether it was still kept."""
        if self._lost.pop(one.waiting.number, None) is None:
            return False
        self._bytes -= one.waiting.size_bytes
        return True

    async def _search(self, sends: list[_Lost], newest: int) -> None:
        """Settle sends; `newest`: the newest generation that is decided."""
        log, keys = self._store.log, {one.identity.key for one in sends}
        wanted: defaultdict[_Identity, list[_Lost]] = defaultdict(list)
        for one in sends:
            wanted[one.identity].append(one)
        start = max(min(one.start for one in sends), log.min_offset)
        places: dict[int, StoredPlace] = {}
        seen: set[bytes] = set()
        read = 0
        try:
            for _, record in log.walk(start, self._store.dispatched_offset):
                key = find_property(encoded_properties(record), UNIQ_KEY.encode())
                if key is not None and key in keys:
                    seen.add(key)
                    found = decode_record(record, check_crc=False, topic_errors="replace")
                    identity = _identity_of(found, key)
                    alike = wanted.get(identity, [])
                    if (own := next((one for one in alike if one.made(found)), None)) is not None:
                        alike.remove(own)
                        offsets = found.physical_offset, identity.queue_id, found.queue_offset
                        places[own.waiting.number] = StoredPlace(*offsets, own.generation)
                read += 1
                if read >= _RECORDS_MAX or len(places) == len(sends):
                    break
                if read % _TURN == 0:
                    await asyncio.sleep(0)
        except (StoreError, CorruptRecordError):
            read = _RECORDS_MAX  # what lies behind is not known
        for number, one in enumerate(sends, start=1):
            if number % _TURN == 0:
                await asyncio.sleep(0)
            if not self._drop(one):  # its sender has been told meanwhile
                continue
            waiting, key, place = one.waiting, one.identity.key, places.get(one.waiting.number)
            is_absent = key not in seen and read < _RECORDS_MAX and log.min_offset <= one.start
            if place is not None:
                self._answer(waiting.connection, waiting.command, place, key, waiting.arrived)
            elif is_absent and one.generation < newest:
                self._pass_on(waiting)
            else:
                self._tell(waiting, one.error)


def _identity_of(record: Record, key: bytes) -> _Identity:
    """Return the identity of the send that has placed a record."""
    topic, queue_id, waits = record.topic, record.queue_id, record.topic in _WAITING_TOPICS
    if waits:
        properties = record.property_map
        number = properties.get(REAL_QUEUE_ID, "")
        topic, queue_id = properties.get(REAL_TOPIC, ""), int(number) if number.isdecimal() else -1
    return _Identity(topic, queue_id, str(record.born_timestamp), key, waits)


def _identity(command: Command) -> _Identity | None:
    """Return the identity of a send of one message; None if it cannot be looked for."""
    fields = _FIELDS.get(command.code)
    if fields is None or command.is_oneway:
        return None
    topic, queue_id, encoded, batch, born = (command.ext.get(name, "") for name in fields)
    properties = decode_properties(encoded)
    key = properties.get(UNIQ_KEY)
    if not key or not queue_id.isdecimal() or batch.lower() == "true" or topic.startswith("%"):
        return None
    if any(name.startswith(_TIMER) for name in properties):
        return None
    waits = properties.get(DELAY, "0") != "0" or properties.get(TRANSACTION_PREPARED) == "true"
    return _Identity(topic, int(queue_id), born, key.encode(errors="replace"), waits)
