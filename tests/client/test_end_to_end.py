"""The client against a real broker in this process; the documentation's code and the examples as they stand."""

import ast
import asyncio
import inspect
import re
import sys
from pathlib import Path

import pytest

from ledgermq.client import Admin, Consumer, Outgoing, Producer, SendStatus
from ledgermq.client.errors import InvalidRequestError, NoRouteError
from ledgermq.remoting.route import MessageQueue
from tests.limits import WAIT_S

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "client.md").read_text(), re.DOTALL | re.MULTILINE)


async def test_what_is_sent_is_read_back_with_all_that_belongs_to_it(namesrv: str) -> None:
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic("T", queue_count=2)
        one = await producer.send("T", b"one", tags="a", keys=["k1", "k2"], properties={"colour": "gr\u00fcn"})
        two, three = await producer.send_batch("T", [Outgoing(b"two", tags="b"), b"three"], queue=one.queue)
        assert (one.status, one.attempts) == (SendStatus.OK, 1)
        assert [result.queue_offset for result in (one, two, three)] == [0, 1, 2]
        async with Consumer(namesrv, "g", "T") as consumer, asyncio.timeout(WAIT_S):
            messages = [await anext(consumer) for _ in range(3)]
        assert [message.body for message in messages] == [b"one", b"two", b"three"]
        assert [message.message_id for message in messages] == [one.message_id, two.message_id, three.message_id]
        assert (messages[0].tags, messages[0].keys, messages[0].properties["colour"]) == (
            "a",
            ["k1", "k2"],
            "gr\u00fcn",
        )
        found = await admin.view_message(two.offset_message_id)
        assert (found.body, found.queue) == (b"two", one.queue)
        assert {progress.lag for progress in await admin.progress("g", "T")} == {0}


async def test_many_at_once_are_each_stored_once_and_a_key_in_order(namesrv: str) -> None:
    async with Producer(namesrv) as producer, Admin(namesrv) as admin:
        await admin.create_topic("T", queue_count=4)
        await asyncio.gather(*(producer.send("T", b"%d" % n, order_key=str(n % 10)) for n in range(2000)))
        async with Consumer(namesrv, "g", "T") as consumer, asyncio.timeout(WAIT_S):
            numbers = [int((await anext(consumer)).body) for _ in range(2000)]
    assert sorted(numbers) == list(range(2000))
    for key in range(10):
        mine = [number for number in numbers if number % 10 == key]
        assert mine == sorted(mine)


async def test_tags_are_filtered_and_what_is_filtered_out_is_no_lag(namesrv: str) -> None:
    async with Producer(namesrv) as producer, Admin(namesrv) as admin:
        await admin.create_topic("T", queue_count=1)
        for number in range(40):
            await producer.send("T", b"%d" % number, tags="even" if number % 2 == 0 else "odd")
        async with Consumer(namesrv, "g", {"T": "even"}) as consumer, asyncio.timeout(WAIT_S):
            assert [int((await anext(consumer)).body) for _ in range(20)] == list(range(0, 40, 2))
            while (await admin.progress("g", "T"))[0].lag:
                await consumer.get_many(1, wait_s=0.02)
                await consumer.commit()


async def test_two_members_share_and_hand_over(namesrv: str) -> None:
    async with Producer(namesrv) as producer, Admin(namesrv) as admin, asyncio.timeout(WAIT_S):
        await admin.create_topic("T", queue_count=4)
        async with Consumer(namesrv, "g", "T") as first:
            async with Consumer(namesrv, "g", "T") as second:
                while not len(topics_queues(first)) == len(topics_queues(second)) == 2:
                    await asyncio.sleep(0.01)
                await asyncio.gather(*(producer.send("T", b"%d" % n) for n in range(40)))
                mine = [int((await anext(first)).body) for _ in range(20)]
                yours = [int((await anext(second)).body) for _ in range(20)]
                assert sorted(mine + yours) == list(range(40))
            await asyncio.gather(*(producer.send("T", b"%d" % n) for n in range(40)))
            assert sorted([int((await anext(first)).body) for _ in range(40)]) == list(range(40))


def topics_queues(consumer: Consumer) -> list[MessageQueue]:
    return [queue for queue in consumer.assignment if queue.topic == "T"]


async def test_a_wrong_queue_and_a_deleted_topic_are_typed_errors(namesrv: str) -> None:
    async with Producer(namesrv, create_topics=False) as producer, Admin(namesrv) as admin:
        route = await admin.create_topic("T", queue_count=1)
        with pytest.raises(InvalidRequestError, match="99"):
            await producer.send("T", b"x", queue=route.write_queues[0]._replace(queue_id=99))
        await admin.delete_topic("T")
        with pytest.raises(NoRouteError):
            await admin.route("T")


@pytest.mark.parametrize("number", range(len(BLOCKS)))
async def test_the_documentations_code_runs(namesrv: str, number: int) -> None:
    async with Producer(namesrv) as producer:
        await producer.send("orders", b"an apple", tags="fruit")
    code = compile(
        BLOCKS[number].replace("127.0.0.1:9876", namesrv),
        f"client.md block {number}",
        "exec",
        flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
    )
    async with asyncio.timeout(WAIT_S):
        running = eval(code, {"__name__": "doc"})  # noqa: S307  # our own page
        if inspect.isawaitable(running):
            await running


async def run_example(name: str, *arguments: str, until: str | None = None, code: int | None = None) -> str:
    """What an example prints; stopped once `until` is in it; ends with that code."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-u", str(ROOT / "examples" / name), *arguments, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    printed = ""
    async with asyncio.timeout(WAIT_S):
        while line := (await process.stdout.readline()).decode():
            printed += line
            if until is not None and until in printed:
                process.terminate()
        await process.wait()
    assert process.returncode == (0 if until is None else code if code is not None else process.returncode)
    return printed


async def test_the_examples_produce_and_consume(namesrv: str) -> None:
    assert (await run_example("produce.py", namesrv)).count("offset") == 10
    printed = await run_example("consume.py", namesrv, until="hello 9")
    assert "hello 9" in printed


async def test_the_example_of_handlers_tries_again_and_ends_well_at_a_signal(namesrv: str) -> None:
    await run_example("produce.py", namesrv)
    printed = await run_example("handle.py", namesrv, until="try 2", code=0)
    assert "b'hello 7' handled, try 2" in printed


async def test_the_round_trip_example_comes_back_complete(namesrv: str) -> None:
    printed = await run_example("roundtrip.py", namesrv, "300")
    assert "received 300, each customer's in order" in printed


async def test_the_examples_of_transactions_delays_requests_and_batches_say_what_happens(namesrv: str) -> None:
    printed = await asyncio.gather(
        run_example("transactions.py", namesrv),
        run_example("delay.py", namesrv),
        run_example("request_reply.py", namesrv),
        run_example("batching.py", namesrv, "500"),
    )
    assert "not announced: UNIQUE constraint failed" in printed[0]
    assert {"announced: order 1", "announced: order 2"} <= set(printed[0].splitlines())
    assert [line.partition(":")[0] for line in printed[1].splitlines()] == ["in two seconds", "at that time"]
    assert printed[2].splitlines() == ["apple: 7 cents", "pear: 9 cents", "moon: nobody knows"]
    assert printed[3].count("messages a second") == 3
