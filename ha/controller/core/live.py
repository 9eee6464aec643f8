"""Which broker processes are alive, by their heartbeats to this controller: its own view, which is not agreed on.

Each controller hears every broker, so that a new leader knows at once. A broker is dead when the connection of its
last heartbeat closed, or after the silence that it named itself. The newest heartbeat counts in everything that it
says: after a truncation a log is shorter.

Times are milliseconds of a clock that stands still while this process does not run: a stall of ours is not the
silence of a broker.

Source: apache/rocketmq `controller/.../impl/heartbeat/DefaultBrokerHeartbeatManager.java` (5.3).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ha.controller.core.model import Candidate

SILENCE_MS: Final = 10_000
"""After which a broker is dead that did not name its own time."""
PRIORITY: Final = (1 << 31) - 1
LIVE_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class ReplicaHeartbeat:
    """A broker's heartbeat.

    Attributes:
        silence_ms: after which it is dead.
        epoch: of its last record; -1 when it did not say.
        end_offset: end of its log; -1 likewise.
        holds_lease: whether it acknowledges only while it holds a lease. RocketMQ's own brokers do not.
        ha_address: `host:port` at which it listens to slaves; empty when it did not say.
        doubt_epoch: see `Candidate`.
        is_full: it has no room for messages: a master does not hand over to it.
    """

    name: str
    broker_id: int
    address: str
    silence_ms: int = SILENCE_MS
    epoch: int = -1
    end_offset: int = -1
    confirm_offset: int = -1
    priority: int = PRIORITY
    holds_lease: bool = False
    ha_address: str = ""
    doubt_epoch: int | None = None
    is_full: bool = False


@dataclass(slots=True)
class _Entry:
    beat: ReplicaHeartbeat
    heard_ms: int
    connection: object


class LiveBrokers:
    """The table, by broker name and id."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, int], _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def hear(self, beat: ReplicaHeartbeat, now_ms: int, connection: object) -> bool:
        """A heartbeat arrived; returns False when the table is full and the broker is not in it."""
        key = beat.name, beat.broker_id
        if key not in self._entries and len(self._entries) >= LIVE_MAX:
            return False
        self._entries[key] = _Entry(beat, now_ms, connection)
        return True

    def closed(self, connection: object) -> list[ReplicaHeartbeat]:
        """A connection closed; returns who is dead by that."""
        dead = [key for key, entry in self._entries.items() if entry.connection is connection]
        return [self._entries.pop(key).beat for key in dead]

    def expire(self, now_ms: int) -> list[tuple[ReplicaHeartbeat, object]]:
        """Take out who was silent too long; returns them with their connections."""
        dead = [key for key, entry in self._entries.items() if now_ms - entry.heard_ms > entry.beat.silence_ms]
        return [(entry.beat, entry.connection) for entry in map(self._entries.pop, dead)]

    def last(self, name: str, broker_id: int) -> ReplicaHeartbeat | None:
        """The last heartbeat of a broker in the table."""
        entry = self._entries.get((name, broker_id))
        return None if entry is None else entry.beat

    def speaks_on(self, connection: object, name: str, broker_id: int | None) -> bool:
        """Whether this connection brought the last heartbeat of a broker in the table; nobody has the id None."""
        entry = None if broker_id is None else self._entries.get((name, broker_id))
        return entry is not None and entry.connection is connection

    def is_alive(self, name: str, broker_id: int | None, now_ms: int) -> bool:
        """Whether this broker is alive; nobody has the id None."""
        entry = None if broker_id is None else self._entries.get((name, broker_id))
        return entry is not None and now_ms - entry.heard_ms <= entry.beat.silence_ms

    def alive(self, name: str, ids: Iterable[int], now_ms: int) -> frozenset[int]:
        """Those of the ids that are alive."""
        return frozenset(broker_id for broker_id in ids if self.is_alive(name, broker_id, now_ms))

    def full(self, name: str, ids: Iterable[int], now_ms: int) -> list[int]:
        """Those of the ids that are alive and have no room for messages."""
        alive = sorted(self.alive(name, ids, now_ms))
        return [broker_id for broker_id in alive if self._entries[name, broker_id].beat.is_full]

    def candidates(self, name: str, ids: Iterable[int], now_ms: int) -> tuple[Candidate, ...]:
        """The living ones as candidates, by id."""
        beats = (self._entries[name, broker_id].beat for broker_id in sorted(self.alive(name, ids, now_ms)))
        return tuple(
            Candidate(beat.broker_id, beat.epoch, beat.end_offset, beat.priority, beat.doubt_epoch) for beat in beats
        )
