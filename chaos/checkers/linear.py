"""Linearizability of small histories: can each operation have happened at one moment between its call and its return?

The search of Wing and Gong, with Lowe's memory of states that were tried: an operation that began before the earliest
return may come next; if none fits, the search backtracks. It is exponential in the number of overlapping operations, so
its steps are limited. Queues are independent, and are searched one by one.

It shares no rules with `operations.Judge`, which finds errors in long histories, so that each checks the other. It also
finds what the judge does not look for: sends without an answer that are stored before acknowledged ones.
"""

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ledgermq.history import Op, Operation

STEPS_MAX: Final = 200_000
_NEVER: Final = float("inf")


class Linearity(enum.Enum):
    """Whether a history is linearizable; UNKNOWN: not decided within the allowed steps."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Call:
    """One operation; `end_s` is infinite if it is unknown whether it took effect.

    Attributes:
        what: arguments and result, for the model.
    """

    begin_s: float
    end_s: float
    what: Any


Model = Callable[[Any, Any], Any]
"""Returns the next state from a state and `Call.what`; None: it cannot happen in that state. States are hashable."""


class _Done(NamedTuple):
    """The calls that are placed: all before `first`, and `first + n` for each set bit n of `window`.

    The call `first` itself is never placed, so that equal sets are equal values.
    """

    first: int = 0
    window: int = 0

    def has(self, number: int) -> bool:
        return number < self.first or bool(self.window >> (number - self.first) & 1)

    def plus(self, number: int) -> "_Done":
        first, window = self.first, self.window | 1 << (number - self.first)
        ones = (~window & (window + 1)).bit_length() - 1
        return _Done(first + ones, window >> ones)


def linearizable(calls: Sequence[Call], model: Model, initial: Any, steps_max: int = STEPS_MAX) -> Linearity:
    """Search for an order of all calls that the model allows and that keeps each call within its interval.

    Memory: about 400 bytes a step, and the model's states.
    """
    order = sorted(calls, key=lambda call: call.begin_s)
    must = sum(call.end_s < _NEVER for call in order)
    done, state, placed = _Done(), initial, 0
    path: list[tuple[int, _Done, Any]] = []
    tried: set[tuple[_Done, Any]] = set()
    at, limit_s = 0, _earliest_end(order, done)
    for _ in range(steps_max):
        if placed == must:
            return Linearity.YES
        at = _next(order, done, at, limit_s)
        if at < len(order):
            after = model(state, order[at].what)
            key = (done.plus(at), after)
            if after is not None and key not in tried:
                tried.add(key)
                path.append((at, done, state))
                done, state = key
                placed += order[at].end_s < _NEVER
                at, limit_s = done.first, _earliest_end(order, done)
                continue
            at += 1
            continue
        if not path:
            return Linearity.NO
        last, done, state = path.pop()
        placed -= order[last].end_s < _NEVER
        at, limit_s = last + 1, _earliest_end(order, done)
    return Linearity.UNKNOWN


def _earliest_end(order: Sequence[Call], done: _Done) -> float:
    """Return the earliest end of the calls that are not placed; a call that begins after it cannot come next."""
    earliest = _NEVER
    for number in range(done.first, len(order)):
        call = order[number]
        if call.begin_s > earliest:
            break
        if not done.has(number):
            earliest = min(earliest, call.end_s)
    return earliest


def _next(order: Sequence[Call], done: _Done, at: int, limit_s: float) -> int:
    """Return the index of the first call from `at` on that may come next; the number of calls if there is none."""
    while at < len(order) and order[at].begin_s <= limit_s:
        if not done.has(at):
            return at
        at += 1
    return len(order)


@dataclass(frozen=True, slots=True)
class Append:
    """A message is appended to a queue, at `offset`; None: the sender was not told where."""

    number: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class Read:
    """A message is read at an offset."""

    number: int
    offset: int


class QueuePrefix:
    """A queue up to one of its messages: that message, and the prefix before it, which longer ones share.

    Prefixes with the same messages are one object, made by `with_last`. `_skip` is a shorter prefix, so that a message
    is found in a number of steps logarithmic in the length.
    """

    __slots__ = ("_before", "_longer", "_number", "_skip", "length")

    def __init__(self, before: "QueuePrefix | None" = None, number: int = -1) -> None:
        self.length: int = 0 if before is None else before.length + 1
        self._number = number
        self._before = before
        self._skip: QueuePrefix | None = before
        self._longer: dict[int, QueuePrefix] | None = None
        skip = None if before is None else before._skip
        further = None if skip is None else skip._skip
        if before and skip and further and before.length - skip.length == skip.length - further.length:
            self._skip = further

    def with_last(self, number: int) -> "QueuePrefix":
        """Return the prefix with one more message."""
        if self._longer is None:
            self._longer = {}
        if number not in self._longer:
            self._longer[number] = QueuePrefix(self, number)
        return self._longer[number]

    def number_at(self, offset: int) -> int | None:
        """Return the number of the message at an offset; None past the end."""
        if offset >= self.length:
            return None
        queue = self
        while queue.length > offset + 1:
            skip, before = queue._skip, queue._before
            assert skip is not None and before is not None, "only the empty queue has none, and it is shorter"
            queue = skip if skip.length > offset else before
        return queue._number


def queue_model(state: QueuePrefix, what: Append | Read) -> QueuePrefix | None:
    """Model a queue of messages with known numbers, from offset 0; see `Model`."""
    if isinstance(what, Append):
        return state.with_last(what.number) if what.offset in (None, state.length) else None
    return state if state.number_at(what.offset) == what.number else None


def calls_of(operations: Iterable[Operation]) -> dict[str, list[Call]]:
    """Return the calls to each queue of a drill's history.

    A send without a known place belongs to the queue in which its message was read, if it was; a send with several
    tries may have stored further copies.
    """
    begun: dict[int, float] = {}
    ends: dict[int, Operation] = {}
    calls: dict[str, list[Call]] = {}
    seen: dict[int, set[str]] = {}
    for one in operations:
        if one.op is Op.INVOKE and one.number is not None:
            begun[one.number] = one.at_s
        elif one.op in (Op.OK, Op.FAIL, Op.INFO) and one.number is not None:
            ends[one.number] = one
        elif one.op is Op.DELIVER and one.number is not None and one.offset >= 0:
            calls.setdefault(one.queue, []).append(Call(one.at_s, one.at_s, Read(one.number, one.offset)))
            seen.setdefault(one.number, set()).add(one.queue)
    for number, begin_s in begun.items():
        end = ends.get(number)
        is_placed = end is not None and end.op is Op.OK and end.offset >= 0
        if end is not None and is_placed:
            calls.setdefault(end.queue, []).append(Call(begin_s, end.at_s, Append(number, end.offset)))
        if end is not None and (end.op is Op.FAIL or (is_placed and end.tries == 1)):
            continue
        for queue in seen.get(number, ()):
            calls[queue].append(Call(begin_s, _NEVER, Append(number, None)))
    return calls


def check_queues(operations: Iterable[Operation]) -> dict[str, Linearity]:
    """Return for each queue whether its appends and reads are linearizable."""
    found = calls_of(operations)
    return {queue: linearizable(calls, queue_model, QueuePrefix()) for queue, calls in sorted(found.items())}
