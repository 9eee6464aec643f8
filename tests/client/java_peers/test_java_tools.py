"""RocketMQ's own tools and clients beside ours: mqadmin looks at Python consumers, and a group of both kinds."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ledgermq.client import Admin, Consumer, Message, Producer
from tests.client import java
from tests.client.consumer.test_handling import handled
from tests.client.fake import eventually
from tests.client.reading import fresh
from tests.jvm import rocketmq_jars
from tests.limits import STRANGER_WAIT_S
from tests.mqadmin.driver import Driver

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.java,
    pytest.mark.cluster,
    pytest.mark.skipif(java.why_not() is not None, reason=java.why_not() or ""),
]


@pytest.fixture(scope="module")
def mqadmin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """RocketMQ's mqadmin, one JVM for all its commands."""
    with contextlib.closing(Driver(f"{rocketmq_jars()}/*", "none", tmp_path_factory.mktemp("mqadmin"))) as driver:
        yield driver


async def look(namesrv: str, mqadmin: Driver) -> None:
    """consumerConnection, consumerProgress, consumerStatus and resetOffsetByTime of a group of Python consumers."""
    topic, group = fresh("T"), fresh("g")
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        seen.append(message.body)

    async def printed(command: str, *words: str) -> str:
        words = (command, "-n", namesrv, "-g", group, *words)
        return await asyncio.to_thread(mqadmin.ask, words, int(STRANGER_WAIT_S * 1000))

    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic(topic, 2)
        for n in range(10):
            await producer.send(topic, b"%d" % n)
        async with handled(Consumer(namesrv, group, topic, auto_commit_s=0.2), handle):
            await eventually(lambda: len(seen) == 10)
            (client_id,) = await admin.members(group)
            connection = await printed("consumerConnection")
            assert client_id in connection
            assert "CLUSTERING" in connection
            progress = await printed("consumerProgress", "-s", "true")
            mine = [line.split() for line in progress.splitlines() if line.startswith(topic)]
            assert [line[6] for line in mine] == ["0", "0"], progress  # Diff, by the columns of the heading
            assert "Consume Diff Total: 0" in progress
            status = await printed("consumerStatus", "-i", client_id)
            for expected in (topic, "PROP_CONSUME_TYPE", "CONSUME_PASSIVELY", "Consumer RT&TPS"):
                assert expected in status, status
            assert "task" in (await printed("consumerStatus", "-i", client_id, "-s")).lower()
            seen.clear()
            reset = await printed("resetOffsetByTime", "-t", topic, "-s", "0")
            assert topic in reset, reset
            await asyncio.gather(*(producer.send(topic, b"%d" % n) for n in range(10, 14)))
            async with asyncio.timeout(STRANGER_WAIT_S):
                while {int(body) for body in seen} != set(range(14)):
                    await asyncio.sleep(0.05)


async def test_mqadmin_looks_at_our_consumers_on_our_broker(namesrv: str, mqadmin: Driver) -> None:
    await look(namesrv, mqadmin)


async def test_mqadmin_looks_at_our_consumers_on_the_java_broker(java_broker: str, mqadmin: Driver) -> None:
    await look(java_broker, mqadmin)


@contextlib.asynccontextmanager
async def java_member(work: Path, *arguments: str) -> AsyncIterator[list[str]]:
    """What a Java member of a group gets."""
    pipe = asyncio.subprocess.PIPE
    command = java.java_command(work, HERE / "GroupMember.java", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    assert process.stdin is not None
    lines: list[str] = []

    async def read(stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            lines.append(line.decode().strip())

    reading = asyncio.ensure_future(read(process.stdout))
    try:
        async with asyncio.timeout(STRANGER_WAIT_S):
            while "ready" not in lines:
                await asyncio.sleep(0.05)
        yield lines
    finally:
        process.stdin.close()
        async with asyncio.timeout(STRANGER_WAIT_S):
            await process.wait()
        await reading


async def test_a_java_and_a_python_member_share_a_group(namesrv: str, tmp_path: Path) -> None:
    seen: list[str] = []

    async def handle(message: Message) -> None:
        seen.append(message.body.decode())

    def ours() -> int:
        return sum(queue.topic == "T" for queue in consumer.assignment)

    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic("T", 4)
        consumer = Consumer(namesrv, "g", "T")
        async with handled(consumer, handle):
            await eventually(lambda: ours() == 4)
            async with java_member(tmp_path, namesrv, "g", "T") as lines:
                await eventually(lambda: ours() == 2, "two of four queues each")
                await asyncio.gather(*(producer.send("T", b"%d" % n) for n in range(200)))
                async with asyncio.timeout(STRANGER_WAIT_S):
                    while set(seen) | set(lines[1:]) < {str(n) for n in range(200)}:
                        await asyncio.sleep(0.05)
                assert set(seen), "some are ours"
                assert set(lines) - {"ready"}, "some are Java's"
            await eventually(lambda: ours() == 4, "Java has left")
            await asyncio.gather(*(producer.send("T", b"%d" % n) for n in range(200, 240)))
            await eventually(lambda: {str(n) for n in range(200, 240)} <= set(seen))
        assert sum(one.lag for one in await admin.progress("g", "T")) == 0
