"""The members of the group, and the queues that are ours by the allocation that all members compute.

    heartbeat to all brokers -> a leader's list of members (38) -> average allocation -> our queues of each topic
         again: every 20 s, when a broker notifies a change of the group (40), when a route or a leader changes

A new leader is not asked for 2 s: the members send it heartbeats within a second, and an incomplete list would assign
the same queue to two of them.

Source: apache/rocketmq `client/.../impl/consumer/RebalanceImpl.java` (rebalanceByTopic).
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from ledgermq.client.core.answers import ask, read_body
from ledgermq.client.core.session import Session
from ledgermq.client.errors import LedgerMQError
from ledgermq.client.group.subscription import RETRY_TOPIC_PREFIX, Subscription
from ledgermq.remoting.allocation import allocate_averagely
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.route import MessageQueue, TopicRoute

_log: Final = logging.getLogger(__name__)

INTERVAL_S: Final = 20.0
WARN_AFTER_S: Final = 10.0  # without an answer about the group's members
RETRY_S: Final = 1.0
SETTLING_S: Final = 2.0
TIMEOUT_S: Final = 3.0
MEMBERS_OR_NONE: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR})  # an unknown group has no members

OnQueues = Callable[[str, tuple[MessageQueue, ...], bool], Awaitable[None]]


class Membership:
    """Keeps our share of the queues up to date.

    Args:
        on_queues: called with a topic, its queues that are ours from now on, and whether we are the only member;
            returns when the topic's other queues are given up.

    Attributes:
        first_share: set once every topic was shared out, or is unknown to the nameservers (retry topics aside).
    """

    def __init__(
        self, session: Session, group: str, subscriptions: Mapping[str, Subscription], on_queues: OnQueues
    ) -> None:
        self._session = session
        self._group = group
        self._subscriptions = subscriptions
        self._on_queues = on_queues
        self.first_share = asyncio.Event()
        self._due = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._settled_at: dict[str, float] = {}
        self._logged_unknown: set[str] = set()
        self._unanswered_since: float | None = None

    def rebalance_soon(self) -> None:
        """Share out the queues again soon, since the group, a route or a leader has changed."""
        self._due.set()

    def leader_changed(self, broker: str, leader: str | None) -> None:
        """Do not ask a new leader for 2 s, until it knows the members; the first leader is asked at once."""
        if broker in self._settled_at:
            self._settled_at[broker] = self._loop.time() + SETTLING_S
        elif leader is not None:
            self._settled_at[broker] = self._loop.time()
        self.rebalance_soon()

    async def run(self) -> None:
        """Share out at every change and every 20 s, until cancelled."""
        while True:
            self._due.clear()
            missing = [topic for topic in self._subscriptions if not await self._share_out(topic)]
            if all(topic.startswith(RETRY_TOPIC_PREFIX) for topic in missing):
                self.first_share.set()
            self._warn_when_unanswered(missing)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if missing else INTERVAL_S):  # see routes._wait_for
                    await self._due.wait()

    async def _share_out(self, topic: str) -> bool:
        """Take over our queues of one topic; return False if they cannot be known now, so that nothing changes."""
        route = self._session.routes.route(topic)
        if route is None:
            return self._is_unknown(topic)  # a route that comes later calls `rebalance_soon`
        try:
            members = await self._members(route)
        except LedgerMQError as failure:
            _log.debug("members of %s: %s", self._group, failure)
            return False
        if members is None:
            return False
        ours = allocate_averagely(self._session.client_id, members, route.read_queues)
        await self._on_queues(topic, ours, len(members) == 1)
        return True

    def _warn_when_unanswered(self, missing: list[str]) -> None:
        """Warn that no broker returns the group's members: until one does, no queue is assigned or revoked."""
        now = self._loop.time()
        if not missing:
            self._unanswered_since = None
        elif self._unanswered_since is None:
            self._unanswered_since = now
        elif now - self._unanswered_since >= WARN_AFTER_S:
            self._unanswered_since = now
            _log.warning(
                "group %s: no broker returns the members of the group, so queues of %s cannot be assigned",
                self._group,
                ", ".join(missing),
            )

    def _is_unknown(self, topic: str) -> bool:
        """Return whether the nameservers know no route for the topic; logged once, since the name may be misspelt."""
        failure = self._session.routes.failure(topic)
        if failure is None:
            return False
        if topic not in self._logged_unknown:
            self._logged_unknown.add(topic)
            comes_by_itself = topic.startswith(RETRY_TOPIC_PREFIX)
            _log.log(logging.DEBUG if comes_by_itself else logging.WARNING, "group %s waits: %s", self._group, failure)
        return True

    async def _members(self, route: TopicRoute) -> list[str] | None:
        """Return client ids of the group's members; None when no leader that may be asked knows us."""
        now = self._loop.time()
        leaders = {broker: self._session.routes.leader(broker) for broker in route.brokers}
        settled = [a for b, a in leaders.items() if a is not None and self._settled_at.get(b, now) <= now]
        if not settled:
            return None
        address = random.choice(settled)
        members = await self._ask(address)
        if self._session.client_id not in members and await self._session.heartbeats.send(address):
            members = await self._ask(address)
        return members if self._session.client_id in members else None

    async def _ask(self, address: str) -> list[str]:
        command = Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext={"consumerGroup": self._group})
        answer = await ask(self._session.remoting, address, command, TIMEOUT_S, MEMBERS_OR_NONE)
        return [] if answer.code == ResponseCode.SYSTEM_ERROR else read_members(address, answer.body)


class AllQueues:
    """The counterpart of `Membership` for broadcasting: all queues of all topics are assigned to this consumer."""

    def __init__(
        self, session: Session, group: str, subscriptions: Mapping[str, Subscription], on_queues: OnQueues
    ) -> None:
        self._session = session
        self._group = group
        self._subscriptions = subscriptions
        self._on_queues = on_queues
        self._due = asyncio.Event()
        self.first_share = asyncio.Event()

    def rebalance_soon(self) -> None:
        """Assign the queues again soon, since a route has changed."""
        self._due.set()

    def leader_changed(self, broker: str, leader: str | None) -> None:
        """Do nothing: all queues are assigned to this consumer, whichever node leads."""

    async def run(self) -> None:
        """Follow the routes, until cancelled."""
        while True:
            self._due.clear()
            routes = self._session.routes
            for topic in self._subscriptions:
                route = routes.route(topic)
                if route is not None:
                    await self._on_queues(topic, route.read_queues, True)
            if all(routes.route(topic) or routes.failure(topic) for topic in self._subscriptions):
                self.first_share.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if self.first_share.is_set() else RETRY_S):
                    await self._due.wait()


def read_members(address: str, body: bytes | memoryview) -> list[str]:
    """Return client ids from the body of an answer to 38.

    Raises:
        UndecodableError: not JSON, or not of that shape.
    """
    return read_body(address, "members of a group", body, lambda data: [str(one) for one in data["consumerIdList"]])
