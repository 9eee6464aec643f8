"""The routes of the topics in use, and the leader of each broker name, kept up to date.

    nameserver --(held request, else polling)--> route of a topic --> leader by broker name --> wake waiting calls
    a failed request --(report_failure)--> ask again at once; a refusal's hint is used until a route names a leader
    no nameserver answers, and the leader fails --> the other members of the last route are tried in turn: each
                                                    either leads, or refuses with a hint at the leader

The last known route stays in use until a nameserver returns a newer one. One task per topic; on the loop's thread only.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ledgermq.client.core.nameservers import Nameservers, RouteAnswer
from ledgermq.client.errors import LedgerMQError, NoRouteError, NotLeaderError, UnreachableError
from ledgermq.remoting.route import TopicRoute

_log: Final = logging.getLogger(__name__)

TEMPLATE_TOPIC: Final = "TBW102"
AUTO_CREATED_QUEUE_COUNT: Final = 4
POLL_S: Final = 30.0
POLL_UNKNOWN_S: Final = 2.0
HOLD_S: Final = 25.0
FETCH_GAP_S: Final = 0.02
ASK_AGAIN_S: Final = 0.05  # interval while calls wait whose leader has just failed
FETCH_GAP_MAX_S: Final = 0.3  # longest interval while no nameserver returns a route

OnLeader = Callable[[str, str | None], None]
OnRoute = Callable[[TopicRoute], None]


@dataclass(slots=True)
class _Followed:
    """A topic whose route is kept up to date."""

    topic: str
    answer: RouteAnswer | None = None
    failure: NoRouteError | None = None
    template_route: TopicRoute | None = None  # the route of the template topic, as a route of this topic
    reports: int = 0  # failures reported since the route last changed
    wanted: asyncio.Event = field(default_factory=asyncio.Event)  # set: ask the nameservers now
    task: asyncio.Task[None] | None = None


class Routes:
    """Routes and leaders.

    Args:
        nameservers: the nameservers to ask.
        on_leader: called with a broker name and the address of its new leader (None: it has none now).
        on_route: called with each new route.

    Attributes:
        revision: grows with every change of a route or a leader.
    """

    def __init__(self, nameservers: Nameservers, on_leader: OnLeader, on_route: OnRoute) -> None:
        self._nameservers = nameservers
        self._on_leader = on_leader
        self._on_route = on_route
        self._loop = asyncio.get_running_loop()
        self._topics: dict[str, _Followed] = {}
        self._routed: dict[str, str | None] = {}
        self._hints: dict[str, tuple[str, str]] = {}  # broker name -> supposed leader, and who named it or failed
        self._leaders: dict[str, str | None] = {}
        self._waiters: dict[asyncio.Future[None], str | None] = {}  # woken in order of arrival
        self._asking: asyncio.TimerHandle | None = None  # timer, runs while a waiter names a topic
        self.revision = 0

    # -- asking

    def route(self, topic: str) -> TopicRoute | None:
        """Return the newest known route of a topic, or None. The first call begins to follow the topic."""
        followed = self._topics.get(topic) or self._follow(topic)
        return followed.answer.route if followed.answer else None

    def route_or_template(self, topic: str) -> TopicRoute | None:
        """Return the topic's own route, else that of the template topic TBW102, whose brokers create the topic.

        None while neither is known.
        """
        own = self.route(topic)
        if own is not None:
            return own
        lender = self.route(TEMPLATE_TOPIC)
        followed = self._topics[topic]
        if lender is None or followed.failure is None:  # only after the topic itself was asked for
            return None
        if followed.template_route is None or followed.template_route.brokers is not lender.brokers:
            followed.template_route = lender.for_topic(topic, AUTO_CREATED_QUEUE_COUNT)
        return followed.template_route

    def failure(self, topic: str) -> NoRouteError | None:
        """Return why there is no route; None when there is one, or while the first answer is awaited."""
        followed = self._topics.get(topic)
        return followed.failure if followed else None

    def leader(self, broker: str) -> str | None:
        """Return address of the leader of this broker name; None while none is known."""
        return self._leaders.get(broker)

    def addresses(self) -> Mapping[str, str]:
        """Return the broker name of every broker address in the routes of the topics followed."""
        found = {}
        for followed in self._topics.values():
            for broker in followed.answer.route.brokers.values() if followed.answer else ():
                found.update(dict.fromkeys(broker.addresses.values(), broker.name))
        return found | {address: broker for broker, address in self._leaders.items() if address is not None}

    # -- failures

    def report_failure(self, topic: str, broker: str, address: str, failure: LedgerMQError) -> None:
        """Handle a failed request to the leader of `broker` at `address`: find out at once who leads instead."""
        if isinstance(failure, NotLeaderError) and failure.leader_hint not in (None, address):
            assert failure.leader_hint is not None, "just compared"
            self._hints[broker] = (failure.leader_hint, address)
        else:
            if self._hints.get(broker, ("",))[0] == address:
                del self._hints[broker]
            if isinstance(failure, NotLeaderError | UnreachableError):
                self._suppose_leader(self._topics.get(topic), broker, address)
        self._settle_leader(broker)
        self.refresh(topic)

    def _suppose_leader(self, followed: _Followed | None, broker: str, failed: str) -> None:
        """Suppose that the next member of the last known route leads, while no nameserver answers."""
        if followed is None or followed.answer is None or followed.failure is None or followed.failure.was_answered:
            return
        members = followed.answer.route.brokers.get(broker)
        addresses = list(members.addresses.values()) if members else []
        following = addresses.index(failed) + 1 if failed in addresses else 0
        for address in addresses[following:] + addresses[:following]:
            if address != failed:
                self._hints[broker] = (address, failed)
                return

    def refresh(self, topic: str) -> None:
        """Ask the nameservers for the topic's route now."""
        followed = self._topics.get(topic) or self._follow(topic)
        followed.reports += 1
        followed.wanted.set()

    # -- waiting

    async def changed(self, timeout_s: float, asked_topic: str | None = None) -> None:
        """Return at the next change of any route or leader, or after `timeout_s` seconds.

        Until then the nameservers are asked every 50 ms for the route of `asked_topic`, once for all that wait.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters[waiter] = asked_topic
        if asked_topic is not None and self._asking is None:
            self._asking = self._loop.call_later(ASK_AGAIN_S, self._ask_again)
        timer = self._loop.call_later(timeout_s, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.pop(waiter, None)

    async def leader_other_than(self, broker: str, address: str, timeout_s: float) -> None:
        """Return when another node leads `broker`, or after `timeout_s`."""
        deadline = self._loop.time() + timeout_s
        while self.leader(broker) in (None, address) and (left_s := deadline - self._loop.time()) > 0:
            await self.changed(left_s)

    async def close(self) -> None:
        """Stop following; wakes everything that waits."""
        if self._asking is not None:
            self._asking.cancel()
        tasks = [followed.task for followed in self._topics.values() if followed.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.wake_all()

    # -- following

    def _follow(self, topic: str) -> _Followed:
        followed = self._topics[topic] = _Followed(topic)
        followed.task = self._loop.create_task(self._watch(followed), name=f"route of {topic}")
        return followed

    async def _watch(self, followed: _Followed) -> None:
        gap_s = FETCH_GAP_S
        while True:
            followed.wanted.clear()
            await self._fetch(followed)
            gap_s = min(2 * gap_s, FETCH_GAP_MAX_S) if followed.failure else FETCH_GAP_S
            await asyncio.sleep(gap_s)
            await self._wait_for_change(followed)

    async def _fetch(self, followed: _Followed) -> None:
        if followed.reports > 1:  # its last answer was wrong
            self._nameservers.distrust()
        try:
            self._apply(followed, await self._nameservers.route(followed.topic))
        except NoRouteError as failure:
            before, followed.failure = followed.failure, failure
            for broker in followed.answer.route.brokers if followed.answer else ():
                if self.leader(broker) is None:
                    self._suppose_leader(followed, broker, "")
                    self._settle_leader(broker)
            if before is None or before.was_answered != failure.was_answered:
                self.wake_all()

    async def _wait_for_change(self, followed: _Followed) -> None:
        """Return when the route must be asked for: at once after a failure, else when the next poll is due."""
        while not followed.wanted.is_set():
            is_unknown = followed.failure is not None and followed.failure.is_topic_unknown  # it may have been deleted
            known, began_at = None if is_unknown else followed.answer, self._loop.time()
            answer: RouteAnswer | None = None
            if known is None:
                answer = await _first(self._nameservers.first_route(followed.topic, HOLD_S), followed.wanted.wait())
            elif known.version is not None:
                answer = await _first(self._nameservers.next_route(known, HOLD_S), followed.wanted.wait())
            if answer is not None:
                self._apply(followed, answer)
                continue
            if known is not None and known.version is None:
                await _wait_for(followed.wanted, POLL_S)
            elif known is None and self._loop.time() < began_at + POLL_UNKNOWN_S / 2:  # it holds no requests
                await _wait_for(followed.wanted, POLL_UNKNOWN_S)
            return

    def _apply(self, followed: _Followed, answer: RouteAnswer) -> None:
        before = followed.answer.route if followed.answer else None
        followed.answer = answer
        followed.failure = None
        if answer.route == before:
            return
        followed.reports = 0
        for broker in answer.route.brokers.values():
            self._routed[broker.name] = broker.leader
            hint = self._hints.get(broker.name)
            if hint is not None and broker.leader not in (None, hint[1]):
                del self._hints[broker.name]
            self._settle_leader(broker.name)
        self.wake_all()
        self._on_route(answer.route)

    def _settle_leader(self, broker: str) -> None:
        hint = self._hints.get(broker)
        leader = hint[0] if hint else self._routed.get(broker)
        if broker in self._leaders and self._leaders[broker] == leader:
            return
        self._leaders[broker] = leader
        _log.info("broker %s is led by %s", broker, leader or "nobody")
        self._on_leader(broker, leader)
        self.wake_all()

    def _ask_again(self) -> None:
        self._asking = None
        topics = dict.fromkeys(topic for topic in self._waiters.values() if topic is not None)
        for topic in topics:
            self.refresh(topic)
        if topics:
            self._asking = self._loop.call_later(ASK_AGAIN_S, self._ask_again)

    def wake_all(self) -> None:
        """Wake everything that waits, to look at the routes again."""
        self.revision += 1
        woken, self._waiters = self._waiters, {}  # once each: leaders may change often in one turn of the loop
        for waiter in woken:
            _wake(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _wait_for(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):  # wait_for loses a cancellation that comes with the event (3.11)
            await event.wait()


async def _first(question: Coroutine[Any, Any, RouteAnswer], wanted: Coroutine[Any, Any, Any]) -> RouteAnswer | None:
    """Return the answer if it arrives before `wanted` ends; None if it does not, or if the request fails."""
    tasks = [asyncio.ensure_future(question), asyncio.ensure_future(wanted)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    except LedgerMQError:
        return None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
