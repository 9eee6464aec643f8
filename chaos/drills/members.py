"""The consumers of a drill: members of one group, which come and go, and record what they are given."""

import asyncio
import contextlib
import time

from chaos.checkers.operations import Delivery
from chaos.drills.java_client import java_deliveries
from chaos.drills.record import DrillRecord
from chaos.drills.traffic import number_of, place_of
from chaos.drills.workloads import Workload
from ledgermq.client import Action, Admin, Consumer, LedgerMQError, Message, PoppedMessage, SimpleConsumer
from ledgermq.history import Op, Operation

_COMMIT_S = 1.0
_INVISIBLE_S = 10.0
_POP_COUNT = 32
_POP_WAIT_S = 1.0


class Members:
    """The members that a workload names.

    Args:
        record: records their deliveries.
        client: `python` or `java`.
    """

    def __init__(self, namesrv: str, topic: str, workload: Workload, record: DrillRecord, client: str) -> None:
        self._namesrv = namesrv
        self._topic = topic
        self._group = f"drill-consumers-{topic}"
        self._workload = workload
        self._record = record
        self._client = client

    async def run(self) -> None:
        """Receive until cancelled.

        Raises:
            LedgerMQError: a retry cannot help.
            CommandError: the Java client has ended.
        """
        async with asyncio.TaskGroup() as tasks:
            for number, life_s in enumerate(self._workload.lives_s):
                tasks.create_task(self._member(f"member-{number}", life_s))
            if self._workload.name == "groups":
                tasks.create_task(self._watch_commits())

    async def _member(self, name: str, life_s: float) -> None:
        while True:
            self._record.tell(Operation(Op.SHARE, time.monotonic(), name=f"{name} joins"))
            with contextlib.suppress(TimeoutError):
                if self._client == "java":
                    await self._read_by_java(name)
                elif self._workload.name == "pop":
                    await self._pop(name)
                else:
                    await self._read(name, life_s)
            self._record.tell(Operation(Op.SHARE, time.monotonic(), name=f"{name} has left"))

    async def _read(self, name: str, life_s: float) -> None:
        limit_s = None if life_s == float("inf") else life_s

        async def handle(message: Message) -> None:
            self._received(name, message)

        async with Consumer(self._namesrv, self._group, self._topic, auto_commit_s=_COMMIT_S) as consumer:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    if self._workload.name == "ordered":
                        await consumer.run(handle, order="queue")
                    async for message in consumer:
                        self._received(name, message)

    async def _read_by_java(self, name: str) -> None:
        async for queue, offset, body in java_deliveries(self._namesrv, self._topic, self._group):
            self._record.delivered(Delivery(number_of(body), time.monotonic(), queue, offset, name))

    async def _pop(self, name: str) -> None:
        async with SimpleConsumer(self._namesrv, self._group, self._topic) as consumer:
            while True:
                try:
                    messages = await consumer.receive(_POP_COUNT, invisible_s=_INVISIBLE_S, wait_s=_POP_WAIT_S)
                    for message in messages:
                        self._received(name, message)
                    if messages:
                        await self._acknowledge(name, consumer, messages)
                except LedgerMQError as error:
                    if error.action is Action.GIVE_UP and error.outcome_known:
                        raise

    async def _acknowledge(self, name: str, consumer: SimpleConsumer, messages: list[PoppedMessage]) -> None:
        """Acknowledge messages; a failure is not recorded, since these messages are delivered again."""
        outcomes = await asyncio.gather(*(consumer.ack(message) for message in messages), return_exceptions=True)
        for message, outcome in zip(messages, outcomes, strict=True):
            if outcome is None and (number := number_of(message.body)) is not None:
                self._record.tell(Operation(Op.ACK, time.monotonic(), number, name=name))
            elif outcome is not None and not isinstance(outcome, LedgerMQError):
                raise outcome

    def _received(self, name: str, message: Message) -> None:
        is_again = isinstance(message, PoppedMessage) and message.handle.retry != "0"
        offset = -1 if is_again else message.queue_offset
        self._record.delivered(
            Delivery(number_of(message.body), time.monotonic(), place_of(message.queue), offset, name)
        )

    async def _watch_commits(self) -> None:
        """Record the committed offsets once a second."""
        async with Admin(self._namesrv) as admin:
            while True:
                await asyncio.sleep(1.0)
                with contextlib.suppress(LedgerMQError):
                    for one in await admin.progress(self._group, self._topic):
                        if one.committed is not None:
                            now_s, queue = time.monotonic(), place_of(one.queue)
                            self._record.tell(Operation(Op.COMMIT, now_s, queue=queue, offset=one.committed))
