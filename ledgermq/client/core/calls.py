"""One request to the leader of a broker name, tried until it is answered, with the deadline of the whole call.

    choose a target -> request -> answer ............................................ return it
                                  refused for good .................................. raise the refusal
                                  not leader, lost, no answer, busy -> refresh routes, back off, choose again

A request that stores something is not sent again to a node that may have it, while its connection stands: the node
stands still, or its answer takes long, and it would store both.

A `Plan` has the request, and chooses a target for each try. Each open call has one entry in a dict, from which
`StallWatch` reads which leaders are silent.

The retry loop is written by hand, not with tenacity: each try has another target, a new leader ends the back-off early
(`Routes.leader_other_than`), and sends run through it, where a library's wrapper objects per call would cost time.
"""

import asyncio
import collections
import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

from ledgermq.client.core.answers import SUCCESS
from ledgermq.client.core.routes import Routes
from ledgermq.client.errors import (
    Action,
    BusyError,
    ClosedError,
    DeadlineExceededError,
    LedgerMQError,
    NoRouteError,
    NotLeaderError,
    PermissionDeniedError,
    RefusedError,
    TopicNotFoundError,
    another,
    refusal_from,
    unreachable_from,
)
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.route import LEADER_ID

FIRST_S = 0.03
GROWTH = 1.35
LONGEST_S = 0.3


def back_off_s(failure_count: int, jitter: Callable[[], float]) -> float:
    """Return seconds to wait after the `failure_count`-th failure in a row (1 or more).

    Args:
        failure_count: failures so far.
        jitter: a number in [0, 1): spreads many waiters over the upper third of the delay.
    """
    ceiling = min(LONGEST_S, FIRST_S * GROWTH ** min(failure_count - 1, 16))
    return ceiling * (0.65 + 0.35 * jitter())


UNKNOWN_TOPIC_PATIENCE_S: Final = 1.5
LAGGING_BROKER_TRIES: Final = 2  # further tries after a refusal by a broker that may lag behind
FAILURES_KEPT: Final = 8
LEAST_WAIT_S: Final = 0.001  # more than the loop's timers may be early
LEAST_TRY_S: Final = 0.05  # with less time left no try begins: its time-out would prove nothing

Found = TypeVar("Found")


class Target(NamedTuple):
    """The target of one try: the leader of a broker name; `queue_id` is -1 for plans that choose no queue."""

    broker: str
    queue_id: int
    address: str


class Plan(Protocol):
    """A request that may be tried several times, each time at another target."""

    @property
    def topic(self) -> str:
        """The topic whose route names the brokers."""

    @property
    def accepted(self) -> frozenset[int]:
        """Response codes that count as an answer; any other is a refusal."""

    @property
    def stores(self) -> bool:
        """Whether each request that arrives stores a message."""

    def choose(self, failed_broker: str | None) -> Target | None:
        """Return the next try's target, not at `failed_broker` if there is a choice; None while no broker is led."""

    def command(self, target: Target) -> Command:
        """Return the request for that target."""

    def describe(self) -> str:
        """Return the request in words, for error texts."""


class Answered(NamedTuple):
    """An answer, the target that gave it, and the number of tries."""

    response: Command
    target: Target
    attempts: int


class FailedTry(NamedTuple):
    """A try that has failed and is followed by another; `on_retry` is called with it.

    Attributes:
        what: the call in words.
        topic: the topic whose route the call follows.
        broker: name of the broker that was asked.
        address: `host:port` of the node that was asked.
        attempts: tries so far.
        failure: the error of the last try.
    """

    what: str
    topic: str
    broker: str
    address: str
    attempts: int
    failure: LedgerMQError


OnRetry = Callable[[FailedTry], None]
OnTry = Callable[[Target, float, LedgerMQError | None], None]
"""Called after each try with its target, its duration in seconds, and its error (None after an answer)."""


class UnderWay(NamedTuple):
    """One try that waits for its answer since `began_at` (seconds of the loop's clock)."""

    began_at: float
    topic: str
    broker: str
    address: str


@dataclass(slots=True)
class _CallState:
    """The failures and the deadline of one call; made when its first try fails, since most calls need none."""

    began_at: float
    deadline: float
    attempts_max: int | None
    failures: collections.deque[LedgerMQError] = field(default_factory=lambda: collections.deque(maxlen=FAILURES_KEPT))
    failures_count: int = 0

    def add(self, failure: LedgerMQError) -> None:
        """Keep a failure; once the outcome of one try is unknown, the outcome of the call is unknown."""
        if self.failures and not all(earlier.outcome_known for earlier in self.failures):
            failure.outcome_known = False
        self.failures.append(failure)
        self.failures_count += 1

    def is_over(self, now: float) -> bool:
        """Return whether too little time is left for a further try."""
        return now > self.deadline - LEAST_TRY_S


class Calls:
    """Runs plans.

    Args:
        attempt_timeout_s: seconds for one try.
        deadline_s: seconds for a whole call, unless the call gives another deadline.
        on_retry: called after each failed try that is followed by another. Must not raise.
        on_try: called after each try. Must not raise.
    """

    def __init__(
        self,
        remoting: RemotingClient,
        routes: Routes,
        *,
        attempt_timeout_s: float,
        deadline_s: float,
        on_retry: OnRetry | None = None,
        on_try: OnTry | None = None,
    ) -> None:
        self.deadline_s = deadline_s
        self.under_way: dict[int, UnderWay] = {}
        self._remoting = remoting
        self._routes = routes
        self.attempt_timeout_s = attempt_timeout_s
        self._on_retry = on_retry
        self._on_try = on_try
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._closed = False

    def close(self) -> None:
        """End every call with `ClosedError`, those under way too."""
        self._closed = True
        self._routes.wake_all()

    async def run(self, plan: Plan, *, deadline_s: float | None = None, attempts_max: int | None = None) -> Answered:
        """Run a plan; returns the accepted answer.

        Args:
            plan: what to ask, and whom.
            deadline_s: seconds for the whole call; None for the default.
            attempts_max: give up after so many tries, and raise the last failure as it is; None for no limit.

        Raises:
            LedgerMQError: refused for good, past the deadline, or out of tries.
        """
        loop_time = self._loop.time
        began_at = loop_time()
        deadline = began_at + (self.deadline_s if deadline_s is None else deadline_s)
        state: _CallState | None = None
        attempts = 0
        failed_broker: str | None = None
        while True:
            if self._closed:
                raise _closed(plan.describe, state)
            target = plan.choose(failed_broker)
            if target is None:
                state = state or _CallState(began_at, deadline, attempts_max)
                await self._wait_for_routes(plan.topic, plan.describe, state, attempts)
                continue
            attempts += 1
            waits_on = plan.stores and attempts != attempts_max
            outcome = await self._try(plan, target, deadline, waits_on=waits_on)
            if type(outcome) is Command:
                return Answered(outcome, target, attempts)
            assert isinstance(outcome, LedgerMQError), "either answered or failed"
            state = state or _CallState(began_at, deadline, attempts_max)
            state.add(outcome)
            await self._after_failure(plan, target, outcome, state, attempts)
            failed_broker = target.broker
            if self._on_retry is not None:
                self._on_retry(FailedTry(plan.describe(), plan.topic, target.broker, target.address, attempts, outcome))

    async def at_leader(
        self,
        topic: str,
        broker: str,
        code: int,
        ext: dict[str, str],
        *,
        body: bytes = b"",
        accepted: frozenset[int] = SUCCESS,
        deadline_s: float | None = None,
        first_id: int = LEADER_ID,
    ) -> Answered:
        """Send one request to the leader of `broker`; the route of `topic` names the leaders. Errors as in `run`.

        The replica with the broker id `first_id` is asked first, if the route has it.
        """
        return await self.run(
            _LeaderPlan(self._routes, topic, broker, code, ext, body, accepted, first_id), deadline_s=deadline_s
        )

    async def _try(self, plan: Plan, target: Target, deadline: float, *, waits_on: bool) -> Command | LedgerMQError:
        number = self._number = self._number + 1
        now = self._loop.time()
        self.under_way[number] = UnderWay(now, plan.topic, target.broker, target.address)
        timeout_s = min(self.attempt_timeout_s, max(deadline - now, 0.001))
        outcome: Command | LedgerMQError
        try:
            patience = functools.partial(self._patience_s, plan, target, deadline) if waits_on else None
            outcome = await self._remoting.request(target.address, plan.command(target), timeout_s, patience)
            if outcome.code not in plan.accepted:
                outcome = refusal_from(target.address, outcome.code, outcome.remark, outcome.ext)
        except RemotingError as error:
            outcome = unreachable_from(target.address, error)
        finally:
            del self.under_way[number]
        if self._on_try is not None:
            self._on_try(target, self._loop.time() - now, outcome if isinstance(outcome, LedgerMQError) else None)
        return outcome

    def _patience_s(self, plan: Plan, target: Target, deadline: float) -> float:
        """Seconds to wait on for an answer that is overdue; 0: another node may be asked, or nothing arrives there."""
        elsewhere = plan.choose(target.broker)
        connection = self._remoting.connected(target.address)
        if connection is None or not connection.is_standing:
            return 0.0
        if elsewhere is not None and elsewhere.address != target.address:
            return 0.0
        return min(self.attempt_timeout_s, deadline - self._loop.time())

    async def wait_until(self, topic: str, find: Callable[[], Found | None], describe: Callable[[], str]) -> Found:
        """Return the result of `find` once it is not None; `find` reads the routes, and is called when they change.

        Raises:
            NoRouteError: no nameserver knows the topic.
            DeadlineExceededError: `find` returned None until the deadline.
            ClosedError: closed meanwhile.
        """
        now = self._loop.time()
        state = _CallState(now, now + self.deadline_s, None)
        while (thing := find()) is None:
            if self._closed:
                raise _closed(describe, state)
            await self._wait_for_routes(topic, describe, state, 0)
        return thing

    async def _wait_for_routes(self, topic: str, describe: Callable[[], str], state: _CallState, attempts: int) -> None:
        """Return when routes change, or shortly before a deadline; raise once a deadline has passed."""
        now = self._loop.time()
        failure = self._routes.failure(topic)
        is_routed = self._routes.route(topic) is not None
        patience_ends = state.began_at + UNKNOWN_TOPIC_PATIENCE_S
        if failure is not None and failure.was_answered and not is_routed and now >= patience_ends:
            raise _no_route(failure, state)
        if state.is_over(now):
            if failure is not None and not state.failures:
                state.add(failure)
            raise _exceeded(describe, state, attempts)
        ends = state.deadline - LEAST_TRY_S
        if not is_routed and now < patience_ends:
            ends = min(ends, patience_ends)
        somebody_led = bool(state.failures)  # a leader was known until now
        await self._routes.changed(max(ends - now, LEAST_WAIT_S), topic if somebody_led else None)

    async def _after_failure(
        self, plan: Plan, target: Target, failure: LedgerMQError, state: _CallState, attempts: int
    ) -> None:
        """Return when the next try may begin; raise if there is no further try."""
        if failure.action is Action.GIVE_UP and not _may_come_from_lagging_broker(failure, state):
            raise failure
        if not isinstance(failure, BusyError):
            self._routes.report_failure(plan.topic, target.broker, target.address, failure)
        if state.attempts_max is not None and attempts >= state.attempts_max:
            raise failure
        left_s = max(0.0, state.deadline - self._loop.time())
        wait_s = min(self._wait_s(plan, target, failure, state), left_s)
        if isinstance(failure, BusyError):
            await asyncio.sleep(wait_s)
        elif wait_s > 0:
            await self._routes.leader_other_than(target.broker, target.address, wait_s)
        if state.is_over(self._loop.time()):
            raise _exceeded(plan.describe, state, attempts)

    def _wait_s(self, plan: Plan, target: Target, failure: LedgerMQError, state: _CallState) -> float:
        if state.failures_count == 1:
            elsewhere = plan.choose(target.broker)
            if elsewhere is not None and elsewhere.address != target.address:
                return 0.0
        pause_s = back_off_s(state.failures_count, random.random)
        retry_after_s = failure.retry_after_s if isinstance(failure, RefusedError) else None
        if retry_after_s is None or isinstance(failure, NotLeaderError):
            return pause_s
        return max(pause_s, retry_after_s)


def _exceeded(describe: Callable[[], str], state: _CallState, attempts: int) -> DeadlineExceededError:
    return DeadlineExceededError(describe(), state.deadline - state.began_at, attempts, tuple(state.failures))


def _closed(describe: Callable[[], str], state: _CallState | None) -> ClosedError:
    known = state is None or all(failure.outcome_known for failure in state.failures)
    doubt = "" if known else " (an attempt without an answer may have been carried out)"
    return ClosedError(f"{describe()}: the client was closed during the call{doubt}", outcome_known=known)


def _no_route(failure: NoRouteError, state: _CallState) -> LedgerMQError:
    """Return a copy, for one call, of the error that `Routes` keeps for all calls."""
    mine = another(failure)
    mine.outcome_known = all(earlier.outcome_known for earlier in state.failures)
    return mine


def _may_come_from_lagging_broker(failure: LedgerMQError, state: _CallState) -> bool:
    """Return whether to try again after a refusal for good.

    A broker may not know a new topic yet, or be read-only for a moment; Java's producer tries again there, too.
    """
    is_doubtful = isinstance(failure, TopicNotFoundError | PermissionDeniedError)
    return is_doubtful and state.failures_count <= LAGGING_BROKER_TRIES


@dataclass(slots=True)
class _LeaderPlan:
    """The plan of a request that does not depend on its target, to the leader of one broker name."""

    routes: Routes
    topic: str
    broker: str
    code: int
    ext: dict[str, str]
    body: bytes
    accepted: frozenset[int]
    first_id: int

    def choose(self, failed_broker: str | None) -> Target | None:
        """Return the leader as known now; before any failure the replica that is asked first."""
        route = self.routes.route(self.topic)  # follows it
        address = None
        if self.first_id != LEADER_ID and failed_broker is None and route and self.broker in route.brokers:
            address = route.brokers[self.broker].addresses.get(self.first_id)
        address = address or self.routes.leader(self.broker)
        return None if address is None else Target(self.broker, -1, address)

    @property
    def stores(self) -> bool:
        return self.code == RequestCode.CONSUMER_SEND_MSG_BACK

    def command(self, target: Target) -> Command:
        return Command(self.code, ext=self.ext, body=self.body)

    def describe(self) -> str:
        return f"{Command(self.code).name} of topic {self.topic!r} at broker {self.broker}"
