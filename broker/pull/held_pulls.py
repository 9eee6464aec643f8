"""Held pulls: requests that found nothing new, kept until there is something, or their time is over.

    pull finds nothing -> hold(queue) --commit pass touches the queue--> tried again: answered, or held on
                                       '------- time over -------> answered

The commit pass says which queues got messages; only their pulls are looked at, for some milliseconds in one turn of the
loop. A pull whose client has not read what it was sent before is blocked until it has: its answer would only take
memory. Blocked pulls are kept apart and looked at every 20 ms.
One timer ends pulls, and looks only at those that end.
Where there is no room for one more, the connection that holds most gives some up: a client cannot keep out others.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, Protocol

from broker.giving_way import giving_way
from ledgermq.remoting.refusal import Cause, Refusal
from store.queues.consume_queue import ConsumeQueue

SWEEP_SECONDS: Final = 0.25
OF_QUEUE_MAX: Final = 10_000
"""Most held pulls of a queue: the default limit of connections, each of a consumer that reads every queue."""
OF_CONNECTION_MAX: Final = 1000
"""Most held pulls of one connection at one queue."""
_THOROUGH_SWEEPS: Final = 20
_SLICE_SECONDS: Final = 0.004
_BLOCKED_SECONDS: Final = 0.02


class HeldPull(Protocol):
    """A pull that waits. `deadline` is in seconds of the loop's clock."""

    queue: ConsumeQueue
    deadline: float

    @property
    def connection(self) -> Hashable:
        """The client's connection."""

    @property
    def is_gone(self) -> bool:
        """Whether the client's connection is closed."""

    @property
    def is_blocked(self) -> bool:
        """Whether too much waits to be read by the client."""

    def retry(self) -> bool:
        """Read again; return True if it was answered, False if it must be held on."""

    def give_up(self) -> None:
        """Answer without messages, since its time is over."""


_Holders = dict[Hashable, dict[HeldPull, None]]
"""Held pulls by their connection, each connection's oldest first."""


class HeldPulls:
    """All held pulls by queue, and by the time they end.

    Args:
        clock: seconds, the clock of the deadlines.
        later: calls a function after a number of seconds.
    """

    def __init__(self, clock: Callable[[], float], later: Callable[[float, Callable[[], None]], object]) -> None:
        self._clock = clock
        self._later = later
        self._held: dict[ConsumeQueue, list[HeldPull]] = {}
        self._ready: OrderedDict[HeldPull, None] = OrderedDict()  # to be tried again, in this order; not in `_held`
        self._blocked: dict[HeldPull, None] = {}  # tried, and found blocked; neither in `_held` nor in `_ready`
        self._is_trying = False
        self._is_resting = False  # the timer of those blocked runs
        self._of_queue: Counter[ConsumeQueue] = Counter()
        self._holders: dict[ConsumeQueue, _Holders] = {}
        self._all_holders: _Holders = {}
        self._ends: dict[int, dict[HeldPull, None]] = {}  # by the sweep that ends them, so that none looks at all
        self._count = 0
        self._sweeps = 0

    def __len__(self) -> int:
        return self._count

    def now(self) -> float:
        """Present time on the clock of the deadlines."""
        return self._clock()

    def make_room(self, pull: HeldPull, count_max: int) -> None:
        """Make room for one more pull: each takes memory, and each new message has all of its queue tried.

        Args:
            pull: the one more.
            count_max: most held pulls in all.

        Raises:
            Refusal: BUSY, its connection holds as many as any other.
        """
        holders = self._holders.get(pull.queue, {})
        if (own := len(holders.get(pull.connection, ()))) >= OF_CONNECTION_MAX:
            raise _busy(f"{own} pulls of this connection wait for messages of this queue already")
        if (count := self._of_queue[pull.queue]) >= OF_QUEUE_MAX:
            self._give_way(pull, holders, f"{count} pulls wait for messages of this queue already")
        if self._count >= count_max:
            self._give_way(pull, self._all_holders, f"{self._count} pulls wait for messages already (maxHeldPulls)")

    def _give_way(self, pull: HeldPull, holders: _Holders, remark: str) -> None:
        """Answer some of the oldest pulls of the connection that holds most, if it holds more than one that needs room.

        Raises:
            Refusal: BUSY, with the remark.
        """
        chosen = dict.fromkeys(giving_way(holders, pull.connection))
        if not chosen:
            raise _busy(remark)
        self._drop(chosen)
        for one in chosen:
            if not one.is_gone:
                one.give_up()

    def hold(self, pull: HeldPull) -> None:
        """Hold a pull until its queue gets messages or its deadline, which does not change, is over."""
        self._held.setdefault(pull.queue, []).append(pull)
        self._ends.setdefault(int(pull.deadline / SWEEP_SECONDS), {})[pull] = None
        self._of_queue[pull.queue] += 1
        for holders in (self._holders.setdefault(pull.queue, {}), self._all_holders):
            holders.setdefault(pull.connection, {})[pull] = None
        self._count += 1

    def wake(self, queues: Iterable[ConsumeQueue]) -> None:
        """Try the pulls of these queues, which have new messages, again: at once or in the next turns of the loop."""
        if not self._held:
            return
        for queue in queues:
            if (pulls := self._held.pop(queue, None)) is not None:
                self._ready.update(dict.fromkeys(pulls))
        if self._ready and not self._is_trying:
            self._try()

    def wake_all(self) -> None:
        """Try all pulls again, at once or in the next turns of the loop."""
        self.wake(list(self._held))

    def sweep(self) -> None:
        """Answer pulls whose time is over, and drop those of closed connections. Call it every `SWEEP_SECONDS`.

        Closed connections are looked for in one of `_THOROUGH_SWEEPS` sweeps.
        """
        now = self._clock()
        last = int(now / SWEEP_SECONDS)
        is_thorough = self._sweeps % _THOROUGH_SWEEPS == 0
        self._sweeps += 1
        ends = [end for end in self._ends if is_thorough or end <= last]
        due = (pull for end in ends for pull in self._ends[end] if pull.deadline <= now or pull.is_gone)
        over = {pull: None for pull in due if pull.is_gone or not pull.is_blocked}
        self._drop(over)
        for pull in over:
            if not pull.is_gone:
                pull.give_up()

    def release(self, queues: Iterable[ConsumeQueue] | None = None) -> None:
        """Answer the pulls of these queues now (all when None): the topic goes, or the broker stops."""
        chosen = None if queues is None else dict.fromkeys(queues)
        pulls = [pull for pull in (*self._ready, *self._blocked) if chosen is None or pull.queue in chosen]
        for queue in list(self._held if chosen is None else chosen):
            pulls += self._held.pop(queue, ())
        for pull in pulls:
            self._ready.pop(pull, None)
            self._blocked.pop(pull, None)
            self._forget_end(pull)
            if not pull.is_gone:
                pull.give_up()

    def _try(self) -> None:
        """Try for a slice of time; go on in the next turn. When all were tried, let the blocked ones rest."""
        self._is_trying = True
        until = time.perf_counter() + _SLICE_SECONDS
        try:
            while self._ready:
                pull, _ = self._ready.popitem(last=False)
                if not pull.is_gone and pull.is_blocked:
                    self._blocked[pull] = None
                elif pull.is_gone or pull.retry():
                    self._forget_end(pull)
                else:
                    self._held.setdefault(pull.queue, []).append(pull)
                if time.perf_counter() > until:
                    break
        finally:
            self._is_trying = bool(self._ready)
            if self._is_trying:
                self._later(0.0, self._try)
            elif self._blocked and not self._is_resting:
                self._is_resting = True
                self._later(_BLOCKED_SECONDS, self._try_blocked)

    def _try_blocked(self) -> None:
        self._is_resting = False
        self._ready.update(self._blocked)
        self._blocked.clear()
        if self._ready and not self._is_trying:
            self._try()

    def _drop(self, pulls: Mapping[HeldPull, None]) -> None:
        for queue in dict.fromkeys(pull.queue for pull in pulls):
            # A failed retry left the pulls of its queue only in `_ends`.
            left = [pull for pull in self._held.pop(queue, ()) if pull not in pulls]
            if left:
                self._held[queue] = left
        for pull in pulls:
            self._ready.pop(pull, None)
            self._blocked.pop(pull, None)
            self._forget_end(pull)

    def _forget_end(self, pull: HeldPull) -> None:
        end = int(pull.deadline / SWEEP_SECONDS)
        pulls = self._ends[end]
        del pulls[pull]
        holders = self._holders[pull.queue]
        for held in (holders, self._all_holders):
            del held[pull.connection][pull]
            if not held[pull.connection]:
                del held[pull.connection]
        if not holders:
            del self._holders[pull.queue]
        self._of_queue[pull.queue] -= 1
        if not self._of_queue[pull.queue]:
            del self._of_queue[pull.queue]
        self._count -= 1
        if not pulls:
            del self._ends[end]


def _busy(remark: str) -> Refusal:
    return Refusal(Cause.BUSY, remark, retry_after_ms=1000)
