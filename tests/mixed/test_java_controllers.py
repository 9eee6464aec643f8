"""RocketMQ's own controller: what it answers, and our brokers under it."""

import contextlib
import json
import os
from collections.abc import Awaitable, Callable

import pytest

from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError
from tests.ha.controller.exchanges import GOLDEN, answers
from tests.mixed.nodes import Node, Street
from tests.mixed.test_brokers_under_our_controllers_follow_each_other import master_is, same, sent
from tests.mixed.test_java_brokers_under_our_controllers import NAME, state
from tests.mixed.test_masters_and_slaves import Asked
from tests.mixed.traffic import brokers, consume, create_topic

Eventually = Callable[[Callable[[], Awaitable[bool]], str], Awaitable[None]]


async def leads(controller: Node) -> bool:
    """Whether the only controller has elected itself."""
    client = RemotingClient()
    try:
        answer = await client.request(controller.address, Command(RequestCode.CONTROLLER_GET_METADATA_INFO))
        return answer.ext.get("isLeader") == "true"
    except RemotingError:
        return False
    finally:
        await client.close()


@pytest.mark.long
async def test_the_recorded_answers_are_those_of_rocketmqs_controller(street: Street, eventually: Eventually) -> None:
    controller = street.java_controller()
    await eventually(lambda: leads(controller), "the controller leads")
    found = json.loads(json.dumps(await answers(controller.address)).replace(controller.address, "127.0.0.1:1"))
    if os.environ.get("RECORD"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(
            "".join(
                [
                    "{\n",
                    ",\n".join(f"{json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in found.items()),
                    "\n}\n",
                ]
            )
        )
    assert found == json.loads(GOLDEN.read_text())


@pytest.mark.long
async def test_our_broker_follows_under_rocketmqs_controller_and_is_never_elected(
    street: Street, eventually: Eventually
) -> None:
    namesrv, controller = street.our_nameserver(), street.java_controller()
    await eventually(lambda: leads(controller), "the controller leads")
    [rocketmqs] = street.java_controlled_group(NAME, namesrv, [controller], 1)
    await eventually(master_is([controller], rocketmqs, 1), "RocketMQ's, the only one, is master")
    ours = street.our_controlled_broker(NAME, namesrv, [controller])

    async def are_routed() -> bool:
        found = (await brokers(namesrv)).get(NAME, {})
        return found.get(0) == rocketmqs.address and ours.address in found.values()

    await eventually(are_routed, "both are registered")
    await create_topic(namesrv, "Copied")
    bodies = [b"%d" % number * 50 for number in range(200)]
    await sent(namesrv, eventually, rocketmqs, bodies)
    await eventually(same(rocketmqs, ours), "ours has RocketMQ's log")
    assert await consume(namesrv, "Copied", "readers", 200) == set(bodies)
    async with contextlib.aclosing(Asked(ours)) as asked:

        async def has_heard() -> bool:
            return sum(await asked.ends()) == len(bodies)

        await eventually(asked.has_tables, "ours has the topic, the group and its progress")
        await eventually(has_heard, "RocketMQ's has told that all is confirmed, which it does every five seconds")
        await eventually(master_is([controller], rocketmqs, 1), "ours is not in the set")
        rocketmqs.kill()

        async def has_no_master() -> bool:
            found = await state([controller])
            return "masterAddress" not in found and [one["alive"] for one in found["notInSyncReplicas"]] == [True]

        await eventually(has_no_master, "the controller elects nobody")
        assert await asked.bodies() == set(bodies), "ours serves readers"
    rocketmqs.start()
    await eventually(master_is([controller], rocketmqs, 1), "RocketMQ's is master again")
    await sent(namesrv, eventually, rocketmqs, [b"more"])
    await eventually(same(rocketmqs, ours), "ours follows it again")
