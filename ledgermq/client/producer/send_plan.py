"""A send as a plan: which queue, which request, and what its answer means."""

from collections.abc import Callable, Sequence

from ledgermq.client.core.calls import Answered, Target
from ledgermq.client.core.route import MessageQueue
from ledgermq.client.producer.queue_choice import QueueChoice
from ledgermq.client.producer.sending import STORED_CODES, SendResult, read_results, send_ext
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command

Where = Callable[[], MessageQueue | None]
"""Finds the one queue that a send must go to; None while its route is not known."""


class SendPlan:
    """One request of one message, or of a batch; made once per send.

    Args:
        choice: picks queues.
        topic: where to.
        where: the one queue it must go to; None for any.
        message_ids: unique keys of the messages inside, in order.
        ext: of the request, as `send_ext` makes it; queue id and broker name are set at each try.
        body: of the request.
    """

    __slots__ = ("_body", "_choice", "_code", "_ext", "_queue", "_where", "message_ids", "topic")

    accepted = STORED_CODES

    def __init__(
        self,
        choice: QueueChoice,
        topic: str,
        where: Where | None,
        message_ids: Sequence[str],
        code: int,
        ext: dict[str, str],
        body: bytes | memoryview,
    ) -> None:
        self.topic = topic
        self._choice = choice
        self._where = where
        self._queue: MessageQueue | None = None
        self.message_ids = message_ids
        self._code = code
        self._ext = ext
        self._body = body

    @property
    def size(self) -> int:
        """Bytes of the request's body."""
        return len(self._body)

    def choose(self, failed_broker: str | None) -> Target | None:
        """Any queue, or the leader of the one it must go to."""
        if self._where is None:
            return self._choice.next(self.topic, failed_broker)
        if self._queue is None:
            self._queue = self._where()
        return None if self._queue is None else self._choice.at(self._queue)

    def command(self, target: Target) -> Command:
        """The request."""
        ext = self._ext
        ext["e"] = str(target.queue_id)
        ext["n"] = target.broker
        return Command(self._code, ext=ext, body=self._body)

    def describe(self) -> str:
        what = "batch" if self._code == RequestCode.SEND_BATCH_MESSAGE else "message"
        return f"{what} {self.message_ids[0]} to topic {self.topic!r}"

    def results(self, answered: Answered) -> list[SendResult]:
        """What became of each message, in order.

        Raises:
            UndecodableError: the answer says too little.
        """
        response, target, attempts = answered
        queue = MessageQueue(self.topic, target.broker, target.queue_id)
        return read_results(target.address, queue, response.code, response.ext, self.message_ids, attempts)


def single_send(
    choice: QueueChoice, group: str, topic: str, where: Where | None, born_ms: int, message_id: str, properties: str,
    body: bytes | memoryview, sys_flag: int = 0, code: int = RequestCode.SEND_MESSAGE_V2,
) -> SendPlan:  # fmt: skip
    """Request 310, or 325 of the same shape."""
    ext = send_ext(group, topic, born_ms, sys_flag)
    ext["i"] = properties
    return SendPlan(choice, topic, where, (message_id,), code, ext, body)


def batch_send(
    choice: QueueChoice, group: str, topic: str, where: Where | None, born_ms: int, message_ids: Sequence[str],
    body: bytes,
) -> SendPlan:  # fmt: skip
    """Request 320.

    The request has no properties of its own: brokers append them to those of every message, where a UNIQ_KEY of the
    batch would hide the messages' own.
    """
    ext = send_ext(group, topic, born_ms)
    ext["m"] = "true"
    return SendPlan(choice, topic, where, message_ids, RequestCode.SEND_BATCH_MESSAGE, ext, body)
