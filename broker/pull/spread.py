"""Which of the brokers that elect a leader consumers read a queue from: each answer to a pull says it.

This is so in a Raft group, and with `slaveReadEnable` where controllers elect: the master leads, its slaves follow.

    leader      each queue has a home among the followers that lack little, and its readers are sent there; the leader
                keeps them only where there is none. One that came back lately is a home only if no other can be, since
                routes of clients lack it
    follower    keeps its readers, through elections too, until it lacks much or has known no leader for some seconds
    stopping    all readers go to other members, those that wait at once

So the death of a leader touches no reader, and that of a follower only those of its own queues.

Clients ask for routes every 30 s: to them, broker 0 is the leader of then. A leader that was elected since and keeps
readers for a moment suggests itself by its own id; with broker 0, they would go to a node that is dead or stands still.
"""

from collections.abc import Callable
from typing import Final
from zlib import crc32

from broker.config import BrokerConfig
from broker.role import Role
from store.queues.consume_queue import ConsumeQueue
from store.replicated_log import ReplicatedLog

LOOK_SECONDS: Final = 0.25
"""Seconds between two looks at the members."""

MOVE_SECONDS: Final = 1.0
"""Longest hold, in seconds, of a pull whose consumer is to read from another member: the answer tells it so."""

ROUTES_S: Final = 35.0
"""All clients have routes that are not older, in seconds."""

_LEADER: Final = "0"
_JOINS_S: Final = 5.0
"""Followers that are level so soon after an election have been there all the time."""

_LEADERLESS_MAX_S: Final = 5.0
_KEPT_MAX: Final = 100_000


class ReadSpread:
    """The suggestions of one broker (`suggestWhichBrokerId`). Where readers are not spread, it is broker 0.

    Args:
        clock: seconds.
        leave: answers all pulls that wait here at once; called when no reader may stay.
        move: tries all pulls that wait here again, in slices; called when this node has begun to send readers away.

    Attributes:
        keeps_readers: pulls may wait here; else they are answered at once, so that their readers go elsewhere.
    """

    def __init__(
        self,
        config: BrokerConfig,
        role: Role,
        log: ReplicatedLog,
        clock: Callable[[], float],
        leave: Callable[[], None],
        move: Callable[[], None],
    ) -> None:
        self._config = config
        self._role = role
        self._log = log
        self._clock = clock
        self._leave = leave
        self._move = move
        self.keeps_readers = True
        self._is_stopping = False
        self._leader_known_at = clock()
        self._for_all: str | None = _LEADER  # the suggestion for every queue; None: by its home
        self._leads_since: float | None = None
        self._level_since: dict[int, float] = {}  # the followers that lack little, while this node leads
        self._homes: list[int] = []  # those of them that are read from
        self._by_queue: dict[ConsumeQueue, str] = {}

    @property
    def is_on(self) -> bool:
        """Whether readers are spread."""
        config, role = self._config, self._role
        return config.spread_reads and (role.is_member or (config.slave_read and role.is_in_election))

    def suggested(self, queue: ConsumeQueue) -> str:
        """Return the id of the broker to read this queue from next, in decimal; 0 is the leader."""
        if self._for_all is not None:
            return self._for_all
        found = self._by_queue.get(queue)
        if found is None:
            if len(self._by_queue) >= _KEPT_MAX:
                self._by_queue.clear()
            found = self._by_queue[queue] = self._choose(queue)
        return found

    def is_elsewhere(self, queue: ConsumeQueue) -> bool:
        """Whether readers of this queue are sent away from this node, which leads."""
        return self._for_all is None and self.suggested(queue) != _LEADER

    def look(self) -> None:
        """Look who may be read now; call it every `LOOK_SECONDS` and when the role has changed."""
        self.keeps_readers = True
        if not self.is_on:
            self._for_all = _LEADER
        elif self._role.writable:
            self._look_as_leader()
        else:
            self._leads_since = None
            self._look_as_follower()

    def stop(self) -> None:
        """This broker stops soon: send its readers elsewhere."""
        self._is_stopping = True
        self.look()
        self._leave()

    def _look_as_leader(self) -> None:
        now = self._leader_known_at = self._clock()
        if self._leads_since is None:
            self._leads_since = now
            self._level_since = {}
        began, all_know = self._leads_since, now - ROUTES_S
        level = (r.broker_id for r in self._log.replicas() if r.is_level and r.broker_id > 0)
        self._level_since = {broker_id: self._level_since.get(broker_id, now) for broker_id in level}
        known = [one for one, since in self._level_since.items() if since < max(began + _JOINS_S, all_know)]
        # in a ring from its own id: where each machine leads a group, each is the first home of one other group
        own = self._config.follower_id
        homes = sorted(known or self._level_since, key=lambda broker_id: (broker_id < own, broker_id))
        if homes != self._homes:
            self._homes = homes
            self._by_queue.clear()
        itself = _LEADER if began < all_know else str(own)
        before, self._for_all = self._for_all, None if homes else itself
        if homes and before is not None:
            self._move()

    def _look_as_follower(self) -> None:
        now = self._clock()
        if self._role.is_known:
            self._leader_known_at = now
        is_cut_off = now - self._leader_known_at > _LEADERLESS_MAX_S
        before = self._for_all
        self.keeps_readers = not (self._is_stopping or is_cut_off) and self._log.readiness().is_level
        self._for_all = str(self._config.follower_id) if self.keeps_readers else _LEADER
        if not self.keeps_readers and before != _LEADER:
            self._leave()

    def _choose(self, queue: ConsumeQueue) -> str:
        return str(self._homes[(crc32(queue.topic.encode()) + queue.queue_id) % len(self._homes)])
