"""Administration of dead letters: what a group could not handle, and giving it another chance."""

from typing import Final

from ledgermq.client.admin.messages import MessageAdmin
from ledgermq.client.core.calls import Target
from ledgermq.client.core.checks import check_count, check_group, check_kind
from ledgermq.client.core.message import Message
from ledgermq.client.core.routes import Routes
from ledgermq.client.errors import NoRouteError
from ledgermq.client.producer.send_request import send_ext
from ledgermq.message.flags import COMPRESSED, COMPRESSION_MASK
from ledgermq.message.properties import (
    DELAY,
    DLQ_ORIGIN_TOPIC,
    MAX_RECONSUME_TIMES,
    RECONSUME_TIME,
    RETRY_TOPIC,
    encode_properties,
)
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.route import MessageQueue

DLQ_PREFIX: Final = "%DLQ%"
SENDER_GROUP: Final = "TOOLS_PRODUCER"
_BOOKKEEPING: Final = (RETRY_TOPIC, RECONSUME_TIME, MAX_RECONSUME_TIMES, DELAY, DLQ_ORIGIN_TOPIC)


class DeadLetterAdmin(MessageAdmin):
    """Reads dead letters, and sends them again."""

    async def dead_letters(self, group: str, count_max: int = 1000) -> list[Message]:
        """The group's dead letters, oldest first; at most `count_max` of each queue. They are not consumed.

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
        plan = _ResendPlan(self._session.routes, letter)
        answered = await self._session.calls.run(plan)
        return MessageQueue(plan.topic, answered.target.broker, answered.target.queue_id)


class _ResendPlan:
    """A plan that sends the message to any queue of its topic."""

    accepted = frozenset({0, 10, 11, 12})  # stored, see SendStatus

    def __init__(self, routes: Routes, letter: Message) -> None:
        self.topic = letter.properties.get(DLQ_ORIGIN_TOPIC) or letter.topic
        self._routes = routes
        self._body = letter.record.body
        properties = {name: value for name, value in letter.properties.items() if name not in _BOOKKEEPING}
        self._ext = send_ext(SENDER_GROUP, self.topic, letter.born_timestamp_ms) | {
            "f": str(letter.record.sys_flag & (COMPRESSED | COMPRESSION_MASK)),
            "h": str(letter.record.flag),
            "i": encode_properties(properties).decode(),
        }

    def choose(self, failed_broker: str | None) -> Target | None:
        """The first queue whose broker is led, another broker's after a failure."""
        route = self._routes.route(self.topic)
        leaders = [(queue, self._routes.leader(queue.broker)) for queue in (route.write_queues if route else ())]
        led = [Target(queue.broker, queue.queue_id, leader) for queue, leader in leaders if leader is not None]
        return next((target for target in led if target.broker != failed_broker), led[0] if led else None)

    def command(self, target: Target) -> Command:
        ext = self._ext | {"e": str(target.queue_id), "n": target.broker}
        return Command(RequestCode.SEND_MESSAGE_V2, ext=ext, body=self._body)

    def describe(self) -> str:
        return f"dead letter to topic {self.topic!r}"
