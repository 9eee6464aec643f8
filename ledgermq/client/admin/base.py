"""The base of administration: a session, and requests to nameservers and to leaders by broker name."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Self, TypeVar

from ledgermq.client.admin.results import ClusterInfo, QueueProgress, QueueStats, parse_cluster_info
from ledgermq.client.core.answers import ask, read_body
from ledgermq.client.core.calls import back_off_s
from ledgermq.client.core.checks import check_kind, check_text, given
from ledgermq.client.core.session import ATTEMPT_TIMEOUT_S, DEADLINE_S, Session, Tls
from ledgermq.client.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    LedgerMQError,
    NoBrokerError,
    NoRouteError,
    RefusedError,
    ServerError,
    UnreachableError,
)
from ledgermq.client.group.queue_offsets import QueueOffsets
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.route import MessageQueue, TopicRoute
from ledgermq.remoting.signature import Credentials

FAILURES_KEPT: Final = 8

Read = TypeVar("Read")
Row = TypeVar("Row", QueueProgress, QueueStats)


class AdminBase:
    """Opens and closes the session, and sends requests.

    Args:
        namesrv: nameservers, `host:port`, several separated by `;` or as a list.
        attempt_timeout_s: seconds for one try of a request.
        deadline_s: seconds for a request with its retries.
        tls: see `Consumer`.
        credentials: see `Consumer`.
    """

    def __init__(
        self,
        namesrv: str | Iterable[str],
        *,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
        deadline_s: float = DEADLINE_S,
        tls: Tls = False,
        credentials: Credentials | None = None,
    ) -> None:
        self._session = Session(
            namesrv, attempt_timeout_s=attempt_timeout_s, deadline_s=deadline_s, tls=tls, credentials=credentials
        )
        self._attempt_timeout_s = attempt_timeout_s
        self._deadline_s = deadline_s

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, *raised: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Open it, for programs that do not use `async with`."""
        await self._session.open()

    async def close(self) -> None:
        """Close it."""
        await self._session.close()

    async def cluster(self) -> ClusterInfo:
        """Return all registered brokers and clusters."""
        return await self._patiently(self._cluster_now)

    async def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic, as a nameserver answers it now.

        Raises:
            NoRouteError: no nameserver knows the topic, or none could be asked.
        """
        check_text(topic, "topic")
        return (await self._patiently(lambda: self._session.nameservers.route(topic))).route

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic with write permission, sorted by broker name and queue id."""
        return (await self.route(topic)).write_queues

    # -- internals

    async def _cluster_now(self, is_enough: Callable[[Command], bool] = lambda _: True) -> ClusterInfo:
        return _cluster_of(await self._session.nameservers.request(RequestCode.GET_BROKER_CLUSTER_INFO, {}, is_enough))

    async def _patiently(self, ask: Callable[[], Awaitable[Read]], final: tuple[type[LedgerMQError], ...] = ()) -> Read:
        """Ask the nameservers; retries for `deadline_s` seconds while none of them answers, or knows a broker.

        Errors of the kinds in `final` are raised at once.
        """
        loop = asyncio.get_running_loop()
        deadline, failures_count = loop.time() + self._deadline_s, 0
        while True:
            try:
                return await ask()
            except (UnreachableError, NoRouteError, NoBrokerError) as failure:
                was_answered = isinstance(failure, NoRouteError) and failure.was_answered
                if was_answered or isinstance(failure, final) or loop.time() >= deadline:
                    raise
            failures_count += 1
            await asyncio.sleep(back_off_s(failures_count, random.random))

    async def _at_a_nameserver(self, code: int, ext: dict[str, str]) -> Command:
        """Return the first successful answer of any nameserver."""
        return await self._patiently(lambda: self._session.nameservers.request(code, ext))

    @property
    def _offsets(self) -> QueueOffsets:
        return QueueOffsets(self._session.calls)

    async def _cluster_with_brokers(self) -> ClusterInfo:
        info = await self._cluster_now(lambda answer: bool(_cluster_of(answer).brokers))
        if not info.brokers:
            raise NoBrokerError(self._session.nameservers.addresses)
        return info

    async def _broker_names(self, cluster: str | None, *, awaits_one: bool = False) -> tuple[str, ...]:
        """Return the names of the brokers of a cluster (None: of all).

        Args:
            cluster: its name.
            awaits_one: whether to wait for the first broker that registers.

        Raises:
            NoBrokerError: none has registered, or none within `deadline_s` seconds.
            InvalidArgumentError: brokers have, but none of that cluster.
        """
        check_kind(str, **given(cluster=cluster))
        info = await self._patiently(self._cluster_with_brokers, () if awaits_one else (NoBrokerError,))
        if cluster is None:
            return tuple(info.brokers)
        if cluster not in info.clusters:
            raise InvalidArgumentError(f"cluster {cluster!r} is not registered; these are: {', '.join(info.clusters)}")
        return info.clusters[cluster]

    async def _at_leader(
        self,
        broker: str,
        code: int,
        ext: dict[str, str],
        final: type[RefusedError] | tuple[type[RefusedError], ...] = (),
        *,
        body: bytes = b"",
        timeout_s: float | None = None,
    ) -> Command:
        """Return the successful answer of the leader of a broker name, which is looked up anew for each try.

        Args:
            broker: broker name, or the address (`host:port`) of one node.
            code: request code.
            ext: header fields.
            final: retryable kinds of refusals that are to be raised at once.
            body: of the request.
            timeout_s: seconds for one try of a request that takes longer than others; None for the usual time.
        """
        check_text(broker, "broker")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(self._deadline_s, timeout_s or 0.0)
        failures: list[LedgerMQError] = []
        attempts = 0
        while (left_s := deadline - loop.time()) > 0:
            try:
                address = broker if ":" in broker else (await self._cluster_now()).leaders().get(broker)
                if address is not None:
                    attempts += 1
                    patience_s = min(left_s, timeout_s or self._attempt_timeout_s)
                    return await self._ask(address, code, ext, patience_s, body=body)
            except (UnreachableError, RefusedError) as failure:
                if not failure.is_retryable or isinstance(failure, final):
                    raise
                failures.append(failure)
            await asyncio.sleep(back_off_s(len(failures) + 1, random.random))
        what = f"{Command(code).name} at broker {broker}"
        raise DeadlineExceededError(what, self._deadline_s, attempts, failures[-FAILURES_KEPT:])

    async def _at_leaders(
        self,
        brokers: Iterable[str],
        code: int,
        ext: dict[str, str],
        final: type[RefusedError] | tuple[type[RefusedError], ...] = (),
        *,
        body: bytes = b"",
    ) -> dict[str, Command]:
        """Return the answer of the leader of each of these brokers, by broker name."""
        names = list(brokers)
        answers = await asyncio.gather(*(self._at_leader(name, code, ext, final, body=body) for name in names))
        return dict(zip(names, answers))

    async def _read_at_leaders(
        self, brokers: Iterable[str], code: int, ext: dict[str, str], what: str, parse: Callable[[Any], Read]
    ) -> dict[str, Read]:
        """Return the parsed JSON body of each leader's answer, by broker name; `what` names it in errors."""
        answers = await self._at_leaders(brokers, code, ext)
        return {broker: read_body(broker, what, answer.body, parse) for broker, answer in answers.items()}

    async def _at_any(
        self, brokers: Iterable[str], code: int, ext: dict[str, str], *, timeout_s: float | None = None
    ) -> tuple[str, Command]:
        """Return the first successful answer of these brokers' leaders, with the broker's name, or the last error."""
        failure: LedgerMQError | None = None
        for broker in brokers:
            try:
                return broker, await self._at_leader(broker, code, ext, ServerError, timeout_s=timeout_s)
            except LedgerMQError as error:
                failure = error
        raise failure or NoBrokerError(self._session.nameservers.addresses)

    async def _at_nameservers(self, code: int, ext: dict[str, str], *, body: bytes = b"") -> dict[str, Command]:
        """Return the answer of each nameserver, by address: they share nothing, so a change must be sent to each."""
        answers = {}
        for address in self._session.nameservers.addresses:
            answers[address] = await self._ask(address, code, ext, self._attempt_timeout_s, body=body)
        return answers

    async def _ask(
        self, address: str, code: int, ext: dict[str, str], timeout_s: float, *, body: bytes = b""
    ) -> Command:
        return await ask(self._session.remoting, address, Command(code, ext=ext, body=body), timeout_s)


def by_queue(tables: Mapping[str, list[Row]]) -> tuple[Row, ...]:
    """Return the rows of all brokers, sorted by queue."""
    return tuple(sorted((row for rows in tables.values() for row in rows), key=lambda row: row.queue))


def union(sets: Mapping[str, set[str]]) -> tuple[str, ...]:
    """Return the names that any broker has, sorted."""
    return tuple(sorted(set[str]().union(*sets.values())))


def flag(value: bool) -> str:
    """Return a boolean as header fields carry it."""
    return str(value).lower()


def _cluster_of(answer: Command) -> ClusterInfo:
    return read_body("nameserver", "cluster information", answer.body, parse_cluster_info)
