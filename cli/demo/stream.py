"""The stream of the demo: numbered lines sent to a topic while a consumer group reads them.

    line i -> lane i % lanes -> one queue      a lane sends a window of its lines at once, and waits for all of them;
                                               failed lines are sent again first, in order

So the numbers rise within each queue even when a window fails in the middle: a Raft log keeps a prefix of the entries
of its killed leader. A retry after a lost answer stores a line twice; this is counted and shown.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from chaos.checkers.operations import CheckedSend, Delivery, Judge, RunCounts
from chaos.drills.record import DrillRecord
from chaos.drills.traffic import place_of
from ledgermq.client import Consumer, LedgerMQError, Message, MessageQueue, Producer, SendResult

NUMBER_PROPERTY = "number"
_WINDOW = 24
_REST_S = 0.02
_POLL_S = 0.02


class LineStream:
    """Sends lines, receives them, and records both.

    Args:
        lines: message bodies.
        queues: the queues that get the lines, in turn.
        judge: judges all operations.
        least_sending_s: seconds over which a short input is spread, so that the leader can be killed in the middle.
    """

    def __init__(
        self, lines: Sequence[bytes], queues: Sequence[MessageQueue], judge: Judge, least_sending_s: float
    ) -> None:
        self.record = DrillRecord(time.monotonic(), judge.feed)
        self._judge = judge
        self._sends: dict[int, CheckedSend] = {}  # number of the send by line
        self._line_of: list[int] = []  # line by number of the send
        self.received: set[int] = set()
        self.latencies_ms: list[float] = []
        self.began_s = 0.0
        self.lines = lines
        self._queues = queues
        self._pace_s = least_sending_s / len(lines) if len(lines) < 1000 * least_sending_s else 0.0

    @property
    def sending_s(self) -> float:
        """Seconds from the first send to the last acknowledgement so far."""
        return self.record.acks[-1].completed_s - self.began_s if self.record.acks else 0.0

    def findings(self) -> RunCounts:
        """Judge the run; call it once, at its end."""
        return self._judge.findings()

    async def send_all(self, producer: Producer) -> None:
        """Send every line until it is acknowledged.

        Raises:
            LedgerMQError: a retry cannot help.
        """
        self.began_s = time.monotonic()
        async with asyncio.TaskGroup() as lanes:
            for number, queue in enumerate(self._queues):
                lanes.create_task(self._send_lane(producer, queue, range(number, len(self.lines), len(self._queues))))

    async def receive_all(self, consumer: Consumer) -> None:
        """Record what the consumer gets, until cancelled."""
        async for message in consumer:
            number = self._number_of(message)
            if number is not None:
                self.received.add(self._line_of[number])
            place = place_of(message.queue), message.queue_offset
            self.record.delivered(Delivery(number, time.monotonic(), *place))

    def _number_of(self, message: Message) -> int | None:
        """Return the number of the send of a message; None if its body is not that line."""
        number = int(message.properties[NUMBER_PROPERTY])
        is_known = 0 <= number < len(self._line_of)
        return number if is_known and message.body == self.lines[self._line_of[number]] else None

    async def reached(self, share: float) -> None:
        """Return when that share of all lines is acknowledged."""
        while len(self.record.acks) < share * len(self.lines):
            await asyncio.sleep(_POLL_S)

    async def drained(self, limit_s: float) -> None:
        """Return when every acknowledged line has been received, or after `limit_s` seconds."""
        deadline = time.monotonic() + limit_s
        while self.record.undelivered_count and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)

    async def _send_lane(self, producer: Producer, queue: MessageQueue, numbers: Sequence[int]) -> None:
        waiting, width = deque(numbers), 1
        while waiting:
            await self._keep_pace(waiting[0])
            window = [waiting.popleft() for _ in range(min(len(waiting), width))]
            failed = await self._send_window(producer, queue, window)
            if failed:
                waiting.extendleft(reversed(failed))
                await asyncio.sleep(_REST_S)
            # The first line alone finds the leader and opens the connection; the lines of a window are then sent in
            # order.
            width = 1 if failed or self._pace_s else _WINDOW

    async def _send_window(self, producer: Producer, queue: MessageQueue, numbers: Sequence[int]) -> list[int]:
        """Send these lines at once; return the numbers of those that were not acknowledged."""
        answers = await asyncio.gather(*(self._send(producer, queue, number) for number in numbers))
        return [number for number, acked in zip(numbers, answers, strict=True) if not acked]

    async def _send(self, producer: Producer, queue: MessageQueue, line: int) -> bool:
        begin_s = time.monotonic()
        if (send := self._sends.get(line)) is None:
            send = self._sends[line] = self.record.invoked(begin_s, key=place_of(queue))
            self._line_of.append(line)
        else:
            send.attempts += 1
        try:
            result = await producer.send(
                queue.topic,
                self.lines[line],
                queue=queue,
                properties={NUMBER_PROPERTY: str(send.number)},
                attempts_max=1,
            )
        except LedgerMQError as error:
            if not error.is_retryable:
                raise
            return False
        self._acknowledged(send, result, begin_s)
        return True

    def _acknowledged(self, send: CheckedSend, result: SendResult, begin_s: float) -> None:
        now_s = time.monotonic()
        self.latencies_ms.append(1000 * (now_s - begin_s))
        self.record.acknowledged(send, now_s, place_of(result.queue), result.queue_offset, send.attempts)

    async def _keep_pace(self, number: int) -> None:
        if (early_s := self.began_s + number * self._pace_s - time.monotonic()) > 0:
            await asyncio.sleep(early_s)
