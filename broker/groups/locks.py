"""Queue locks of orderly consumers: only one client at a time may consume a queue for a group.

    locked or renewed          valid for 60 s
    the client leaves          its locks are free at once
    its last connection ends   its locks are free after the grace time, unless the same client comes back before; after
                               1.5 s if those to several members ended at once. A pull of a locked queue shows that it
                               lives: its next heartbeat is awaited

Locks are not replicated: the leader tells the other members of them (`broker.groups.shared_locks`), so that the next
one knows who has which queue. A client asks for each of its queues every 20 s.

Source: apache/rocketmq `broker/.../client/rebalance/RebalanceLockManager.java`, which knows only the 60 s.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from ledgermq.remoting.route import MessageQueue

LIFE_SECONDS = 60.0
_HEARTBEAT_SECONDS = 35.0
"""Seconds for which a client on a new connection may stay unknown: only its heartbeat, every 30 s, has its id."""

_DIED_GRACE_S = 1.5
_EXPIRED_A_STEP: Final = 128

LOCKS_MAX = 262_144
"""Most locks of all groups; further queues are not locked."""


OnChange = Callable[[str, str, Sequence[MessageQueue] | None, bool], None]
"""Called with a group, a client, and queues that it has locked (True) or freed (False); None: all that it had."""


class GroupLocks:
    """The locks of all groups.

    Args:
        clock: returns monotonic seconds.
        grace_s: how long a client without connections keeps its locks; less if it has died.

    Attributes:
        on_change: called for what is locked, renewed and freed here; not for what expires.
    """

    def __init__(self, clock: Callable[[], float], grace_s: float = 4.0) -> None:
        self._clock = clock
        self._grace_s = grace_s
        # By group: client, and end; the locks of a group are in the order of their ends.
        self._held: dict[str, dict[MessageQueue, tuple[str, float]]] = {}
        self._of_client: dict[tuple[str, str], dict[MessageQueue, None]] = {}  # group and client: its queues, in order
        self._count = 0  # of all groups
        self._gone: dict[tuple[str, str], float] = {}  # group and client: when its locks are free
        self.on_change: OnChange = lambda _group, _client_id, _queues, _is_locked: None

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Lock or renew those queues that are free or locked by this client; return them."""
        now = self._clock()
        self.found(group, client_id)
        locked = [queue for queue in queues if self._lock(group, client_id, queue, now)]
        if locked:
            self.on_change(group, client_id, locked, True)
        return locked

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Unlock those of the queues that this client has locked."""
        held = self._held.get(group, {})
        freed = [queue for queue in queues if queue in held and held[queue][0] == client_id]
        for queue in freed:
            self._free(group, queue)
        if freed:
            self.on_change(group, client_id, freed, False)

    def left(self, group: str, client_id: str) -> None:
        """Free the locks of a client that has left the group."""
        self._gone.pop((group, client_id), None)
        queues = list(self._of_client.get((group, client_id), ()))
        for queue in queues:
            self._free(group, queue)
        if queues:
            self.on_change(group, client_id, None, False)

    def learn(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Take over that the client has locked or renewed these queues, as the leader says, whoever had them before."""
        now = self._clock()
        for queue in queues:
            if queue in self._held.get(group, {}) or self._count < LOCKS_MAX:
                self._give(group, client_id, queue, now)

    def held(self) -> Iterator[tuple[str, str, list[MessageQueue]]]:
        """Yield each group, each client that has locked queues in it, and these queues."""
        for (group, client_id), queues in self._of_client.items():
            yield group, client_id, list(queues)

    def lost(self, group: str, client_id: str, *, has_died: bool = False) -> float | None:
        """Note that the client has no connection any more; return in how many seconds its locks are free.

        None: it has no locks.
        """
        if (group, client_id) not in self._of_client:
            return None
        grace_s = min(self._grace_s, _DIED_GRACE_S) if has_died else self._grace_s
        self._gone[group, client_id] = self._clock() + grace_s
        return grace_s

    def found(self, group: str, client_id: str) -> None:
        """Note that the client is known to live: it keeps its locks."""
        self._gone.pop((group, client_id), None)

    def pulled(self, group: str, queue: MessageQueue) -> None:
        """Keep the locks of the client that pulls this queue, its holder, until it sends its next heartbeat."""
        holder = self._held.get(group, {}).get(queue)
        if holder is not None and (group, holder[0]) in self._gone:
            self._gone[group, holder[0]] = self._clock() + _HEARTBEAT_SECONDS

    @property
    def any_lost(self) -> bool:
        """Whether any client with locks has no connection."""
        return bool(self._gone)

    def free_in(self, group: str, client_id: str) -> float | None:
        """Return in how many seconds the locks of a client without a connection are free.

        They are free if the result is 0 or less. None: the client is back.
        """
        free_at = self._gone.get((group, client_id))
        return None if free_at is None else free_at - self._clock()

    def is_locked(self, group: str) -> bool:
        """Return whether any queue of the group is locked: the group then consumes in order."""
        now = self._clock()
        return any(until > now for _, until in self._held.get(group, {}).values())

    def follow(self) -> None:
        """Stop to count the grace times of clients: another node leads.

        The locks stay, in case that this node leads again.
        """
        self._gone.clear()

    def clear(self) -> None:
        """Forget all locks."""
        self._held.clear()
        self._of_client.clear()
        self._count = 0
        self._gone.clear()

    def expire(self) -> Iterator[None]:
        """Forget, in steps, locks that have expired, and clients that have none."""
        now = self._clock()
        for group in tuple(self._held):
            while expired := self._expired(group, now):
                for queue in expired:
                    self._free(group, queue)
                yield
            yield
        self._gone = {key: free_at for key, free_at in self._gone.items() if key in self._of_client}

    def _expired(self, group: str, now: float) -> list[MessageQueue]:
        """Return the first queues of a group whose locks have expired."""
        held = self._held.get(group, {})
        return [queue for queue, (_, until) in islice(held.items(), _EXPIRED_A_STEP) if until <= now]

    def _lock(self, group: str, client_id: str, queue: MessageQueue, now: float) -> bool:
        holder = self._held.get(group, {}).get(queue)
        if holder is None:
            if self._count >= LOCKS_MAX:
                return False
        elif holder[0] != client_id and holder[1] > now and not self._is_gone(group, holder[0]):
            return False
        self._give(group, client_id, queue, now)
        return True

    def _is_gone(self, group: str, client_id: str) -> bool:
        left_s = self.free_in(group, client_id)
        return left_s is not None and left_s <= 0

    def _give(self, group: str, client_id: str, queue: MessageQueue, now: float) -> None:
        """Give the queue to the client, whoever has it."""
        if queue not in self._of_client.get((group, client_id), ()):
            self._free(group, queue)
            self._of_client.setdefault((group, client_id), {})[queue] = None
            self._count += 1
        held = self._held.setdefault(group, {})
        held.pop(queue, None)
        held[queue] = (client_id, now + LIFE_SECONDS)

    def _free(self, group: str, queue: MessageQueue) -> None:
        held = self._held.get(group, {})
        if queue not in held:
            return
        client_id, _ = held.pop(queue)
        if not held:
            del self._held[group]
        own = self._of_client[group, client_id]
        del own[queue]
        if not own:
            del self._of_client[group, client_id]
        self._count -= 1
