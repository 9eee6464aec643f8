"""Which brokers are alive by their heartbeats to this controller. Each controller has its own view.

Brokers send heartbeats to every controller, so that a new leading controller knows at once which brokers live. A broker
counts as dead when the connection of its last heartbeat closes, or after the silence that it named. All fields of the
newest heartbeat are used, also a shorter log, since a log may have been cut. Times are milliseconds of a clock that
stands still while this process does not run, so that a stall of this process does not count as silence.

Source: apache/rocketmq `controller/.../impl/heartbeat/DefaultBrokerHeartbeatManager.java` (5.3).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ha.controller.core.model import Candidate, Group

SILENCE_MS: Final = 10_000
"""Silence in ms after which a broker counts as dead that named none."""
NEVER_MS: Final = (1 << 63) - 1
PRIORITY: Final = (1 << 31) - 1
LIVE_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class ReplicaHeartbeat:
    """A broker's heartbeat.

    Attributes:
        silence_ms: silence after which it counts as dead.
        epoch: epoch of its last record; -1 if not sent.
        end_offset: end of its log; -1 if not sent.
        holds_lease: whether it acknowledges only while it holds a lease. RocketMQ's own brokers do not.
        ha_address: `host:port` at which it listens to slaves; empty if not sent.
        doubt_epoch: see `Candidate`.
        is_full: it has no room for messages, so a master does not hand over to it.
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
        """Note a heartbeat; return False if the table is full and the broker is not in it."""
        key = beat.name, beat.broker_id
        if key not in self._entries and len(self._entries) >= LIVE_MAX:
            return False
        self._entries[key] = _Entry(beat, now_ms, connection)
        return True

    def closed(self, connection: object) -> list[ReplicaHeartbeat]:
        """Note a closed connection; return the brokers that count as dead because of it."""
        dead = [key for key, entry in self._entries.items() if entry.connection is connection]
        return [self._entries.pop(key).beat for key in dead]

    def expire(self, now_ms: int) -> list[tuple[ReplicaHeartbeat, object]]:
        """Remove the brokers that were silent for too long; return them with their connections."""
        dead = [key for key, entry in self._entries.items() if now_ms - entry.heard_ms > entry.beat.silence_ms]
        return [(entry.beat, entry.connection) for entry in map(self._entries.pop, dead)]

    def last(self, name: str, broker_id: int) -> ReplicaHeartbeat | None:
        """Return the last heartbeat of a broker in the table."""
        entry = self._entries.get((name, broker_id))
        return None if entry is None else entry.beat

    def speaks_on(self, connection: object, name: str, broker_id: int | None) -> bool:
        """Return whether this connection brought the broker's last heartbeat; False for the id None."""
        entry = None if broker_id is None else self._entries.get((name, broker_id))
        return entry is not None and entry.connection is connection

    def is_alive(self, name: str, broker_id: int | None, now_ms: int) -> bool:
        """Return whether this broker is alive; False for the id None."""
        entry = None if broker_id is None else self._entries.get((name, broker_id))
        return entry is not None and now_ms - entry.heard_ms <= entry.beat.silence_ms

    def alive(self, name: str, ids: Iterable[int], now_ms: int) -> frozenset[int]:
        """Return those of the ids that are alive."""
        return frozenset(broker_id for broker_id in ids if self.is_alive(name, broker_id, now_ms))

    def full(self, name: str, ids: Iterable[int], now_ms: int) -> list[int]:
        """Return those of the ids that are alive and have no room for messages."""
        alive = sorted(self.alive(name, ids, now_ms))
        return [broker_id for broker_id in alive if self._entries[name, broker_id].beat.is_full]

    def candidates(self, group: Group, now_ms: int, still_ms: int) -> tuple[Candidate, ...]:
        """Return the living replicas as candidates, by id, without those that stand still if another can be elected."""
        alive = sorted(self.alive(group.name, group.replicas, now_ms))
        moving = [broker_id for broker_id in alive if not self._is_silent(group.name, broker_id, now_ms, still_ms)]
        chosen = moving if self._may_lead(group, moving) else alive
        beats = (self._entries[group.name, broker_id].beat for broker_id in chosen)
        return tuple(
            Candidate(beat.broker_id, beat.epoch, beat.end_offset, beat.priority, beat.doubt_epoch) for beat in beats
        )

    def stands_still(self, group: Group, now_ms: int, still_ms: int) -> bool:
        """Return whether the living master is silent, and a member of the in-sync set that can be elected is not."""
        master_id = group.master_id
        if master_id is None or not self.is_alive(group.name, master_id, now_ms):
            return False
        if not self._is_silent(group.name, master_id, now_ms, still_ms):
            return False
        return all(one.broker_id != master_id for one in self.candidates(group, now_ms, still_ms))

    def _is_silent(self, name: str, broker_id: int, now_ms: int, still_ms: int) -> bool:
        """Return whether a living broker is silent for too long; without leases the silence that it named counts."""
        entry = self._entries[name, broker_id]
        return entry.beat.holds_lease and now_ms - entry.heard_ms > still_ms

    def _may_lead(self, group: Group, ids: Iterable[int]) -> bool:
        sound = (one for one in ids if self._entries[group.name, one].beat.doubt_epoch is None)
        return not group.in_sync.isdisjoint(sound)
