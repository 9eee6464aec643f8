"""PEEK_MESSAGE (200052), NOTIFICATION (200054), POLLING_INFO (200055): show what POP would give, and take nothing.

Source: apache/rocketmq `broker/.../processor/PeekMessageProcessor.java`, `NotificationProcessor.java`,
`PollingInfoProcessor.java`.
"""

import random
from collections.abc import Iterator

from broker.context import BrokerContext
from broker.pop.checks import PopChecks
from broker.pop.handles import retry_topics
from broker.pop.reading import PopReader
from broker.pop.waiting import HeldPop, HeldPops, Hold
from broker.state.settings import TopicConfig
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import boolean, integer, long
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Refusal
from store.errors import DiskReadError
from store.log.refusals import refusal_of
from store.queues.consume_queue import ConsumeQueue


class LookRequests:
    """Serves the requests that take nothing.

    Args:
        held_pops: held POP requests, which POLLING_INFO counts.
        held: held NOTIFICATION requests.
    """

    def __init__(
        self, context: BrokerContext, checks: PopChecks, reader: PopReader, held_pops: HeldPops, held: HeldPops
    ) -> None:
        self._config = context.config
        self._metadata = context.metadata
        self._checks = checks
        self._role = context.role
        self._store = context.store
        self._reader = reader
        self._held_pops = held_pops
        self._held = held
        self._random = random.Random()

    def peek(self, connection: Connection, command: Command) -> None:
        """200052: answer with the next messages, which stay available to POP."""
        self._role.check_writable()
        self._checks.broker_is_readable("peeking message")
        topic, group, queue_id = self._checks.readable_place(connection, command.ext)
        count_max = integer(command.ext, "maxMsgNums", 0)
        records: list[memoryview] = []
        rest = 0
        for queue in self._queues(topic, group, queue_id):
            rest += max(0, queue.max_offset - self._reader.next_offset(queue.topic, group, queue))
            room = count_max - len(records)
            try:
                records += self._reader.look(queue.topic, group, queue, room) if room > 0 else []
            except DiskReadError as error:
                raise refusal_of(error) from error
        code, remark = (0, "FOUND") if records else (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
        header = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": str(rest)}
        connection.respond(command, code, header, records, remark=remark)

    def notify(self, connection: Connection, command: Command) -> None:
        """200054: answer whether there is a message; held until there is one, or until its deadline."""
        fields = command.ext
        self._checks.broker_is_readable("peeking message")
        topic, group, queue_id = self._checks.readable_place(connection, fields)
        self._role.check_writable()
        if self._serve(connection, command):
            return
        poll_ms = long(fields, "pollTime", 0)
        deadline_ms = (long(fields, "bornTime", 0) or self._reader.clock_ms()) + poll_ms
        pop = HeldPop(
            connection,
            command,
            (topic.name, group, max(-1, queue_id)),
            deadline_ms,
            lambda: self._serve_again(connection, command),
            lambda: self._give_up(connection, command),
        )
        hold = self._held.hold(pop) if poll_ms > 0 else Hold.TOO_LATE
        if hold is not Hold.HELD:
            _tell(connection, command, has_message=False, is_full=hold is Hold.FULL)

    def polling_info(self, connection: Connection, command: Command) -> None:
        """200055: answer how many POP requests of a group are held at a queue, or at any queue (-1)."""
        self._checks.broker_is_readable("peeking message")
        topic, group, queue_id = self._checks.readable_place(connection, command.ext)
        number = self._held_pops.count(topic.name, group, max(-1, queue_id))
        connection.respond(command, ResponseCode.SUCCESS, {"pollingNum": str(number)})

    def _serve_again(self, connection: Connection, command: Command) -> bool:
        try:
            return self._serve(connection, command)
        except Refusal as refusal:
            connection.refuse(command, refusal)
            return True

    def _give_up(self, connection: Connection, command: Command) -> None:
        """Look once more at the deadline: messages that the same attempt took meanwhile count, and woke no request."""
        if not self._serve_again(connection, command):
            _tell(connection, command, has_message=False)

    def _serve(self, connection: Connection, command: Command) -> bool:
        """Answer when there is a message; otherwise return False without an answer."""
        fields = command.ext
        topic, group, queue_id = self._checks.readable_place(connection, fields)
        is_ordered, attempt_id = boolean(fields, "order", False), fields.get("attemptId") or ""
        for queue in self._queues(topic, group, queue_id):
            if is_ordered and self._reader.is_blocked(topic.name, group, queue.queue_id, attempt_id):
                continue
            if queue.max_offset > self._reader.next_offset(queue.topic, group, queue):
                _tell(connection, command, has_message=True)
                return True
        return False

    def _queues(self, topic: TopicConfig, group: str, queue_id: int) -> Iterator[ConsumeQueue]:
        """Yield the queue asked for, or all queues from a random one on; queues of the retry topic come last."""
        first = self._random.randrange(1 << 16)
        numbers = [queue_id] if queue_id >= 0 else _from(first, topic.read_queues)
        places = [(topic.name, number) for number in numbers]
        newer, older = self._config.pop_retry_v2, self._config.pop_reads_retry_v1
        for name in retry_topics(topic.name, group, newer=newer, older=older):
            retries = self._metadata.topic(name)
            if retries is not None:
                places += [(name, number) for number in _from(first, retries.read_queues)]
        for name, number in places:
            queue = self._store.queues.find(name, number)
            if queue is not None:
                yield queue


def _from(first: int, count: int) -> list[int]:
    return [(first + number) % count for number in range(count)]


def _tell(connection: Connection, command: Command, *, has_message: bool, is_full: bool = False) -> None:
    header = {"hasMsg": "true" if has_message else "false", "pollingFull": "true" if is_full else "false"}
    connection.respond(command, ResponseCode.SUCCESS, header)
