"""Administration of messages: looking them up by id, key or time, dead letters, and sending those again."""

import asyncio
import random
from datetime import datetime
from typing import Final

from ledgermq.client.admin.base import AdminBase
from ledgermq.client.consumer.pulling import MESSAGES_MAX, PULL_CODES, Pulled, pull_command, read_pulled
from ledgermq.client.core.calls import back_off_s
from ledgermq.client.core.checks import check_count, check_group, check_kind, check_queue, check_text, unix_ms
from ledgermq.client.core.message import Message
from ledgermq.client.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    LedgerMQError,
    NoRouteError,
    NotFoundError,
    NotLeaderError,
    UnavailableError,
    UndecodableError,
    UnreachableError,
)
from ledgermq.client.group.subscription import ALL, parse_subscription
from ledgermq.client.producer.queue_choice import QueueChoice
from ledgermq.client.producer.send_request import copy_plan
from ledgermq.message.errors import CorruptRecordError, InvalidMessageIdError
from ledgermq.message.ids import parse_offset_message_id
from ledgermq.message.properties import DELAY, DLQ_ORIGIN_TOPIC, MAX_RECONSUME_TIMES, RECONSUME_TIME, RETRY_TOPIC
from ledgermq.message.record import Record, decode_record, decode_records
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.route import MessageQueue
from ledgermq.wall_clock import wall_clock_ms

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
SENDER_GROUP: Final = "TOOLS_PRODUCER"
DLQ_PREFIX: Final = "%DLQ%"
FOUND_MAX: Final = 64
_BOOKKEEPING: Final = (RETRY_TOPIC, RECONSUME_TIME, MAX_RECONSUME_TIMES, DELAY, DLQ_ORIGIN_TOPIC)


class MessageAdmin(AdminBase):
    """Looks up messages, reads dead letters, and sends them again."""

    async def view_message(self, offset_message_id: str) -> Message:
        """Return the message with this offset message id.

        The broker in the id is asked first; if it does not answer, the present leaders are asked: replicas have the
        record at the same position.

        Raises:
            InvalidArgumentError: not an offset message id.
            NotFoundError: no broker has it.
            DeadlineExceededError: a broker that may have it has no leader.
        """
        check_text(offset_message_id, "offset_message_id")
        try:
            host, physical_offset = parse_offset_message_id(offset_message_id)
        except InvalidMessageIdError as error:
            raise InvalidArgumentError(str(error)) from error
        loop = asyncio.get_running_loop()
        deadline, rounds_count = loop.time() + self._deadline_s, 0
        while True:
            info, failures = await self.cluster(), dict[str, LedgerMQError]()
            leaders = {address: name for name, address in info.leaders().items()}
            for address in dict.fromkeys((str(host), *leaders)):
                try:
                    record = await self._view(address, physical_offset)
                except LedgerMQError as failure:
                    failures[address] = failure
                    continue
                if record.offset_message_id == offset_message_id.upper():
                    queue = MessageQueue(record.topic, leaders.get(address, ""), record.queue_id)
                    return Message(record, queue)
            what, rounds_count = f"message {offset_message_id}", rounds_count + 1
            if len(leaders) == len(info.brokers) and not any(map(_may_pass, map(failures.get, leaders))):
                reasons = "; ".join(map(str, failures.values())) or "another message is there"
                raise NotFoundError("cluster", ResponseCode.QUERY_NOT_FOUND, f"{what}: {reasons}")
            if loop.time() >= deadline:
                raise DeadlineExceededError(what, self._deadline_s, rounds_count, tuple(failures.values()))
            await asyncio.sleep(back_off_s(rounds_count, random.random))

    async def find_by_key(
        self,
        topic: str,
        key: str,
        *,
        begin: datetime | None = None,
        end: datetime | None = None,
        count_max: int = FOUND_MAX,
    ) -> list[Message]:
        """Return messages with a business key, in the order in which they were stored; up to `count_max` per broker.

        Args:
            topic: the topic's name.
            key: one of the message's keys.
            begin: earliest store time; None for no limit.
            end: latest store time; None for no limit.
            count_max: messages per broker, at most 64.
        """
        check_kind(str, topic=topic, key=key)
        check_count(count_max=count_max)
        found = await self._query(topic, key, begin, end, count_max, is_unique=False)
        return [message for message in found if key in message.keys]

    async def find_by_id(self, topic: str, message_id: str) -> list[Message]:
        """Return the stored copies of the message with this `message_id` (UNIQ_KEY); retries may store several."""
        check_kind(str, topic=topic, message_id=message_id)
        found = await self._query(topic, message_id, None, None, FOUND_MAX, is_unique=True)
        return [message for message in found if message.message_id == message_id]

    async def find_by_time(self, topic: str, begin: datetime, end: datetime, count_max: int = 1000) -> list[Message]:
        """Return messages stored in [begin, end), in the order of store times; at most `count_max` of each queue."""
        check_count(count_max=count_max)
        first_ms, end_ms = unix_ms(begin, "begin"), unix_ms(end, "end")
        found: list[Message] = []
        for queue in (await self.route(topic)).read_queues:
            start = await self._offsets.at_time(queue, first_ms)
            messages = await self.read(queue, start, count_max)
            found += [message for message in messages if first_ms <= message.store_timestamp_ms < end_ms]
        return sorted(found, key=lambda message: message.store_timestamp_ms)

    async def read(self, queue: MessageQueue, offset: int, count_max: int = MESSAGES_MAX) -> list[Message]:
        """Return up to `count_max` messages of a queue from `offset` on, without a consumer group; fewer at its end."""
        check_queue(queue)
        check_count(least=0, offset=offset)
        check_count(count_max=count_max)
        messages: list[Message] = []
        while len(messages) < count_max:
            pulled = await self._pull(queue, offset)
            if pulled.next_offset <= offset:
                break
            messages += pulled.messages
            offset = pulled.next_offset
        return messages[:count_max]

    async def dead_letters(self, group: str, count_max: int = 1000) -> list[Message]:
        """Return the group's dead letters, oldest first; at most `count_max` of each queue. They are not consumed.

        `topic` of each message is the topic that it was first sent to.
        """
        check_group(group)
        check_count(count_max=count_max)
        try:
            route = await self.route(DLQ_PREFIX + group)
        except NoRouteError as failure:
            if not failure.is_topic_unknown:
                raise
            return []  # the topic is created with the first dead letter
        letters: list[Message] = []
        for queue in route.write_queues:
            letters += await self.read(queue, await self._offsets.first(queue), count_max)
        return sorted(letters, key=lambda letter: letter.store_timestamp_ms)

    async def resend(self, letter: Message) -> MessageQueue:
        """Send a dead letter to its first topic again: a new message with the same id, with all of its tries left.

        Every group that reads the topic gets it.

        Returns:
            The queue that it was sent to.
        """
        check_kind(Message, letter=letter)
        topic = letter.properties.get(DLQ_ORIGIN_TOPIC) or letter.topic
        properties = {name: value for name, value in letter.properties.items() if name not in _BOOKKEEPING}
        choice = QueueChoice(self._session.routes, may_create=False)
        plan = copy_plan(choice, SENDER_GROUP, topic, letter, properties)
        target = (await self._session.calls.run(plan)).target
        return MessageQueue(topic, target.broker, target.queue_id)

    # -- internals

    async def _query(
        self, topic: str, key: str, begin: datetime | None, end: datetime | None, count_max: int, *, is_unique: bool
    ) -> list[Message]:
        until_ms = unix_ms(end, "end") if end is not None else wall_clock_ms() + 60_000
        ext = {
            "topic": topic,
            "key": key,
            "maxNum": str(count_max),
            "beginTimestamp": str(unix_ms(begin, "begin") if begin is not None else 0),
            "endTimestamp": str(until_ms),
        }
        if is_unique:
            ext["_UNIQUE_KEY_QUERY"] = "true"
        found: list[Message] = []
        for broker in (await self.route(topic)).brokers:
            try:
                answer = await self._at_leader(broker, RequestCode.QUERY_MESSAGE, ext)
                records = decode_records(answer.body)
            except NotFoundError:
                continue
            except CorruptRecordError as error:
                raise UndecodableError(f"{broker}: messages of key {key!r}: {error}") from error
            found += [Message(record, MessageQueue(record.topic, broker, record.queue_id)) for record in records]
        return sorted(found, key=lambda message: message.store_timestamp_ms)

    async def _pull(self, queue: MessageQueue, offset: int) -> Pulled:
        """Return one pull that the broker answers at once."""
        subscription = parse_subscription(queue.topic, ALL, 0)
        command = pull_command(TOOLS_GROUP, queue, offset, subscription, hold=False)
        answered = await self._session.calls.at_leader(
            queue.topic, queue.broker, command.code, command.ext, accepted=PULL_CODES
        )
        return read_pulled(answered.target.address, queue, offset, subscription, answered.response)

    async def _view(self, address: str, physical_offset: int) -> Record:
        ext = {"offset": str(physical_offset)}
        answer = await self._ask(address, RequestCode.VIEW_MESSAGE_BY_ID, ext, self._attempt_timeout_s)
        try:
            return decode_record(answer.body)
        except CorruptRecordError as error:
            raise UndecodableError(f"{address}: record at {physical_offset}: {error}") from error


def _may_pass(failure: LedgerMQError | None) -> bool:
    """Return whether asking a leader again can help; `ServerError` is RocketMQ's answer when it has no such message."""
    return isinstance(failure, UnreachableError | UnavailableError | NotLeaderError)
