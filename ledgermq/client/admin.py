"""Administration: topics, offsets, groups, single messages, the cluster. Against any RocketMQ cluster.

What concerns a topic goes to the leaders of its route, what concerns a broker to the leader of its name.
"""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from ledgermq.client.back_off import back_off_s
from ledgermq.client.cluster import ClusterInfo, parse_cluster_info
from ledgermq.client.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    LedgerMQError,
    NotFoundError,
    RefusedError,
    ServerError,
    UndecodableError,
    UnreachableError,
    refusal_from,
    unreachable_from,
)
from ledgermq.client.membership import read_members
from ledgermq.client.message import Message
from ledgermq.client.outgoing import check_group, check_topic
from ledgermq.client.queue_offsets import QueueOffsets
from ledgermq.client.route import PERM_READ, PERM_WRITE, MessageQueue, TopicRoute
from ledgermq.client.session import ATTEMPT_TIMEOUT_S, DEADLINE_S, Session, Tls
from ledgermq.message.errors import CorruptRecordError, InvalidMessageIdError
from ledgermq.message.ids import parse_offset_message_id
from ledgermq.message.record import Record, decode_record
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import Command
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.signature import Credentials

DEFAULT_QUEUE_COUNT: Final = 8
ROUTE_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a group has come in one queue.

    Attributes:
        committed: next offset to read; None when the group has never committed.
        end: one past the newest message.
    """

    queue: MessageQueue
    committed: int | None
    end: int

    @property
    def lag(self) -> int:
        """Messages not yet handled, as far as committed."""
        return self.end - (self.committed or 0)


class Admin:
    """Looks at a cluster and changes it.

        async with Admin("127.0.0.1:9876") as admin:
            await admin.create_topic("orders", queue_count=8)

    Every method retries, follows leaders, and raises LedgerMQError when there is no success in `deadline_s`.
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Open it, for those who do not use `async with`."""
        await self._session.open()

    async def close(self) -> None:
        """Close it."""
        await self._session.close()

    # -- the cluster

    async def cluster(self) -> ClusterInfo:
        """All registered brokers, by name and by cluster."""
        answer = await self._session.nameservers.request(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        return parse_cluster_info("nameserver", answer.body)

    async def route(self, topic: str) -> TopicRoute:
        """Where a topic is, as a nameserver says now.

        Raises:
            NoRouteError: none knows it.
        """
        return (await self._session.nameservers.route(topic)).route

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that can be sent to, by broker name and queue id."""
        return (await self.route(topic)).write_queues

    # -- topics

    async def create_topic(
        self, topic: str, queue_count: int = DEFAULT_QUEUE_COUNT, *, cluster: str | None = None
    ) -> TopicRoute:
        """Create a topic on every broker (of that cluster), or change its number of queues.

        Returns:
            Its route, once a nameserver tells it with all of its brokers.
        """
        check_topic(topic)
        ext = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queue_count),
            "writeQueueNums": str(queue_count),
            "perm": str(PERM_READ | PERM_WRITE),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        brokers = await self._broker_names(cluster)
        for broker in brokers:
            await self._at_leader(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        return await self._route_with(topic, frozenset(brokers), queue_count)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic from every broker (of that cluster) and from every nameserver. Its messages are gone."""
        check_topic(topic)
        for broker in await self._broker_names(cluster):
            await self._at_leader(broker, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        nameservers = self._session.nameservers
        for address in nameservers.addresses:
            ext = {"topic": topic} | ({} if cluster is None else {"clusterName": cluster})
            code = RequestCode.DELETE_TOPIC_IN_NAMESRV
            await nameservers.request_at(address, code, ext, self._attempt_timeout_s)

    # -- offsets

    async def min_offset(self, queue: MessageQueue) -> int:
        """Offset of the oldest message kept in a queue."""
        return await self._offsets.first(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """One past the offset of the newest message of a queue."""
        return await self._offsets.end(queue)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message stored at or after a time (Unix ms)."""
        return await self._offsets.at_time(queue, timestamp_ms)

    # -- groups

    async def members(self, group: str) -> tuple[str, ...]:
        """Client ids of a consumer group's members, sorted; empty when nobody is there."""
        check_group(group)
        found: set[str] = set()
        for broker in await self._broker_names(None):
            try:
                answer = await self._at_leader(
                    broker, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}, ServerError
                )
            except ServerError:
                continue  # `no consumer for this group`
            found.update(read_members(broker, answer.body))
        return tuple(sorted(found))

    async def progress(self, group: str, topic: str) -> tuple[QueueProgress, ...]:
        """How far a group has come in each queue of a topic."""
        check_group(group)
        queues = (await self.route(topic)).read_queues
        return tuple(await asyncio.gather(*(self._progress(group, queue) for queue in queues)))

    # -- messages

    async def view_message(self, offset_message_id: str) -> Message:
        """The message with this offset message id.

        The broker that the id names is asked first; if it is gone, those that lead now are: replicas have the record
        at the same place.

        Raises:
            InvalidArgumentError: not an offset message id.
            NotFoundError: no broker has it.
        """
        try:
            host, physical_offset = parse_offset_message_id(offset_message_id)
        except InvalidMessageIdError as error:
            raise InvalidArgumentError(str(error)) from error
        leaders = (await self.cluster()).leaders()
        failures: list[LedgerMQError] = []
        for address in dict.fromkeys((str(host), *leaders.values())):
            try:
                record = await self._view(address, physical_offset)
            except LedgerMQError as failure:
                failures.append(failure)
                continue
            if record.offset_message_id == offset_message_id.upper():
                broker = next((name for name, leader in leaders.items() if leader == address), "")
                return Message(record, MessageQueue(record.topic, broker, record.queue_id))
        said = "; ".join(map(str, failures)) or "another message is there"
        raise NotFoundError("cluster", ResponseCode.QUERY_NOT_FOUND, f"message {offset_message_id}: {said}")

    # -- inside

    @property
    def _offsets(self) -> QueueOffsets:
        return QueueOffsets(self._session.calls, self._session.routes)

    async def _progress(self, group: str, queue: MessageQueue) -> QueueProgress:
        committed, end = await asyncio.gather(self._offsets.committed(group, queue), self._offsets.end(queue))
        return QueueProgress(queue, committed, end)

    async def _view(self, address: str, physical_offset: int) -> Record:
        ext = {"offset": str(physical_offset)}
        answer = await self._ask(address, RequestCode.VIEW_MESSAGE_BY_ID, ext, self._attempt_timeout_s)
        try:
            return decode_record(answer.body)
        except CorruptRecordError as error:
            raise UndecodableError(f"{address}: record at {physical_offset}: {error}") from error

    async def _broker_names(self, cluster: str | None) -> tuple[str, ...]:
        info = await self.cluster()
        if cluster is None:
            return tuple(info.brokers)
        if cluster not in info.clusters:
            raise InvalidArgumentError(f"cluster {cluster!r} is not one of {', '.join(info.clusters) or 'none'}")
        return info.clusters[cluster]

    async def _at_leader(
        self, broker: str, code: int, ext: dict[str, str], final: type[RefusedError] | None = None
    ) -> Command:
        """The success that the leader of a broker name answers; looked up anew for each try.

        Args:
            broker: broker name.
            code: request code.
            ext: header fields.
            final: a kind of refusal that is raised at once, though it could be retried.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._deadline_s
        failures: list[LedgerMQError] = []
        attempts = 0
        while (left_s := deadline - loop.time()) > 0:
            address = (await self.cluster()).leaders().get(broker)
            if address is not None:
                attempts += 1
                try:
                    return await self._ask(address, code, ext, min(left_s, self._attempt_timeout_s))
                except (UnreachableError, RefusedError) as failure:
                    if not failure.is_retryable or (final is not None and isinstance(failure, final)):
                        raise
                    failures.append(failure)
            await asyncio.sleep(back_off_s(len(failures) + 1, random.random))
        what = f"{Command(code).name} at broker {broker}"
        raise DeadlineExceededError(what, self._deadline_s, attempts, failures[-8:])

    async def _ask(self, address: str, code: int, ext: dict[str, str], timeout_s: float) -> Command:
        try:
            answer = await self._session.remoting.request(address, Command(code, ext=ext), timeout_s)
        except RemotingError as error:
            raise unreachable_from(address, error) from error
        if answer.code != ResponseCode.SUCCESS:
            raise refusal_from(address, answer.code, answer.remark, answer.ext)
        return answer

    async def _route_with(self, topic: str, brokers: frozenset[str], queue_count: int) -> TopicRoute:
        """The topic's route once it has all of its queues."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._deadline_s
        while True:
            try:
                route = await self.route(topic)
                if len([queue for queue in route.write_queues if queue.broker in brokers]) >= queue_count * len(
                    brokers
                ):
                    return route
            except LedgerMQError:
                if loop.time() >= deadline:
                    raise
            if loop.time() >= deadline:
                raise DeadlineExceededError(f"route of new topic {topic!r}", self._deadline_s, 0, ())
            await asyncio.sleep(ROUTE_POLL_S)
