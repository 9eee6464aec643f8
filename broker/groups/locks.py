"""Queue locks of orderly consumers: only one client at a time may consume a queue for a group.

A lock is valid for 60 s after its last renewal. Locks are not replicated: a new leader gives them out again, and a
client asks for each of its queues every 20 s.

Source: apache/rocketmq `broker/.../client/rebalance/RebalanceLockManager.java`.
"""

from collections.abc import Callable, Iterable

from ledgermq.remoting.codec.java_json import QueueId

LIFE_SECONDS = 60.0


class QueueLocks:
    """The locks of all groups; `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[tuple[str, QueueId], tuple[str, float]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[QueueId]) -> list[QueueId]:
        """Lock or renew those queues that are free or locked by this client; return them."""
        now = self._clock()
        return [queue for queue in queues if self._lock(group, client_id, queue, now)]

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueId]) -> None:
        """Unlock those of the queues that this client has locked."""
        for queue in queues:
            holder = self._held.get((group, queue))
            if holder is not None and holder[0] == client_id:
                del self._held[group, queue]

    def is_locked(self, group: str) -> bool:
        """Whether any queue of the group is locked: then it consumes in order."""
        now = self._clock()
        return any(name == group and until > now for (name, _), (_, until) in self._held.items())

    def clear(self) -> None:
        """Forget all locks, since this node stopped leading, and the next leader gives out its own."""
        self._held.clear()

    def expire(self) -> None:
        """Forget locks that have expired."""
        now = self._clock()
        self._held = {key: holder for key, holder in self._held.items() if holder[1] > now}

    def _lock(self, group: str, client_id: str, queue: QueueId, now: float) -> bool:
        holder = self._held.get((group, queue))
        if holder is not None and holder[0] != client_id and holder[1] > now:
            return False
        self._held[group, queue] = (client_id, now + LIFE_SECONDS)
        return True
