"""RocketMQ's Java client as producer and consumer of a drill: `DrillClient.java`, run from its source."""

import asyncio
import base64
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from chaos.drills.background import in_background
from ledgermq.client import LedgerMQError, MessageQueue, SendResult, SendStatus
from node.errors import CommandError, UsageError

JARS = "ROCKETMQ_JARS"
_SOURCE = Path(__file__).with_name("DrillClient.java")
_INSTALL = f"apt install openjdk-17-jdk-headless maven && export {JARS}=$(benchmarks/peers/rocketmq jars)"
_ERRORS_SIZE = 2000
_MARK = b"@ "
_STATUSES = {
    b"SEND_OK": SendStatus.OK,
    b"FLUSH_DISK_TIMEOUT": SendStatus.FLUSH_DISK_TIMEOUT,
    b"FLUSH_SLAVE_TIMEOUT": SendStatus.FLUSH_SLAVE_TIMEOUT,
    b"SLAVE_NOT_AVAILABLE": SendStatus.SLAVE_NOT_AVAILABLE,
}


def java_command() -> list[str]:
    """Return the words that start the driver; its arguments follow.

    Raises:
        UsageError: there is no JDK, or no folder with the client's jars; the text has the command that installs them.
    """
    java, jars = shutil.which("java"), Path(os.environ.get(JARS) or "nowhere")
    if java is None or not any(jars.glob("rocketmq-client-*.jar")):
        missing = "a JDK, 17 or newer" if java is None else f"the jars of rocketmq-client in the folder ${JARS}"
        raise UsageError(f"--client java needs {missing}: {_INSTALL}")
    return [java, "-Xmx256m", "-Xss256k", "-XX:+UseSerialGC", "-Drocketmq.client.logLevel=ERROR", "-cp", f"{jars}/*"]


class JavaProducer:
    """The producer of the Java driver, in place of `ledgermq.client.Producer`, for plain messages.

    A failed send counts as unknown, unless the client found no route: it does not tell the outcome of earlier tries.

    Args:
        process: the driver, as producer.
    """

    def __init__(self, process: asyncio.subprocess.Process, topic: str) -> None:
        self._process = process
        self._topic = topic
        self._waiting: dict[bytes, asyncio.Future[SendResult]] = {}
        self._count = 0

    async def send(self, topic: str, body: bytes) -> SendResult:
        """Send one message, to the topic of the driver only.

        Raises:
            LedgerMQError: it failed, or the driver has ended.
        """
        assert topic == self._topic and self._process.stdin is not None
        number = b"%d" % self._count
        self._count += 1
        self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._process.stdin.write(number + b" " + base64.b64encode(body) + b"\n")
            return await self._waiting[number]
        finally:
            del self._waiting[number]

    async def take_answers(self) -> None:
        """Give each send its answer, until cancelled."""
        async for line in _lines(self._process):
            kind, number, rest = line.split(b" ", 2)
            waiting = self._waiting.get(number)
            if waiting is None or waiting.done():
                continue
            if kind == b"A":
                waiting.set_result(_result(self._topic, rest))
            else:
                text = rest.decode(errors="replace").strip()
                waiting.set_exception(LedgerMQError(text, outcome_known=kind == b"F"))
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(LedgerMQError("the Java client has ended", outcome_known=False))


@contextlib.asynccontextmanager
async def java_producer(namesrv: str, topic: str, group: str) -> AsyncIterator[JavaProducer]:
    """Start a producer, wait until it runs, and end it with the block.

    Raises:
        CommandError: it ended by itself; the text has what it printed.
    """
    async with _driver(namesrv, topic, group, "produce") as process:
        async for _ in _lines(process):
            break  # its first line: it has started
        else:
            await process.wait()
            return
        producer = JavaProducer(process, topic)
        async with in_background(producer.take_answers()):
            yield producer


async def java_deliveries(namesrv: str, topic: str, group: str) -> AsyncIterator[tuple[str, int, bytes]]:
    """Start a consumer; yield queue (`broker/id`), offset and body of each message it is given, without end.

    Raises:
        CommandError: it ended by itself; the text has what it printed.
    """
    async with _driver(namesrv, topic, group, "consume") as process:
        async for line in _lines(process):
            _, broker, queue_id, offset, body = line.split()
            yield f"{broker.decode()}/{int(queue_id)}", int(offset), base64.b64decode(body)


async def _lines(process: asyncio.subprocess.Process) -> AsyncIterator[bytes]:
    """Yield the driver's lines without their mark; other lines are the client's log."""
    assert process.stdout is not None
    async for line in process.stdout:
        if line.startswith(_MARK):
            yield line[len(_MARK) :]


def _result(topic: str, rest: bytes) -> SendResult:
    status, tries, broker, queue_id, offset = rest.split()
    queue = MessageQueue(topic, broker.decode(), int(queue_id))
    return SendResult("", "", queue, int(offset), _STATUSES[status], int(tries), None, None, None)


@contextlib.asynccontextmanager
async def _driver(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the driver within the block; its standard input ends with this process, which ends the driver."""
    with tempfile.TemporaryDirectory(prefix="ledgermq-java-") as home:
        errors = Path(home) / "errors"
        with errors.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *java_command(),
                f"-Duser.home={home}",
                str(_SOURCE),
                *words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=file,
                start_new_session=True,  # Ctrl-C must only reach the drill
            )
        try:
            yield process
            if process.returncode is not None:
                raise CommandError(f"the Java client ended by itself: {errors.read_text()[-_ERRORS_SIZE:].strip()}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
