"""A broker of ours and one of RocketMQ's under our controllers: each is master, and the other one copies it."""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tests.mixed.nodes import Node, Street
from tests.mixed.test_java_brokers_under_our_controllers import NAME, state
from tests.mixed.test_masters_and_slaves import Asked, log_of
from tests.mixed.traffic import brokers, consume, create_topic, send

Eventually = Callable[[Callable[[], Awaitable[bool]], str], Awaitable[None]]


async def test_ours_and_rocketmqs_replicate_both_ways_under_our_controllers(
    street: Street, eventually: Eventually
) -> None:
    namesrv, controllers = street.our_nameserver(), street.our_controllers()
    ours = street.our_controlled_broker(NAME, namesrv, controllers)
    await eventually(master_is(controllers, ours, 1), "ours, the only one, is master")
    rocketmqs = street.java_controlled_group(NAME, namesrv, controllers, 1)[0]
    await eventually(master_is(controllers, ours, 2), "RocketMQ's follows ours, and is in sync")
    await create_topic(namesrv, "Copied")
    bodies = [b"%d" % number * 50 for number in range(200)]
    await sent(namesrv, eventually, ours, bodies)
    await eventually(same(ours, rocketmqs), "RocketMQ's has our log")

    await eventually(master_is(controllers, ours, 2), "RocketMQ's is in sync still")
    ours.kill()
    await eventually(master_is(controllers, rocketmqs, 1), "RocketMQ's is master")
    more = [b"more-%d" % number for number in range(50)]
    await sent(namesrv, eventually, rocketmqs, more)
    ours.start()
    await eventually(master_is(controllers, rocketmqs, 2), "ours follows RocketMQ's, and is in sync")
    await eventually(same(rocketmqs, ours), "ours has RocketMQ's log")
    assert await consume(namesrv, "Copied", "readers", 250) == {*bodies, *more}
    await eventually(same_epochs(street, namesrv), "both have the same two epochs")

    async with contextlib.aclosing(Asked(ours)) as asked:
        await eventually(asked.has_tables, "ours has the topic, the group and its progress")
        await eventually(master_is(controllers, rocketmqs, 2), "ours is in sync still")
        rocketmqs.kill()
        await eventually(master_is(controllers, ours, 1), "ours is master again")
        await sent(namesrv, eventually, ours, [b"last"])
        assert await asked.bodies() == {*bodies, *more, b"last"}


def master_is(controllers: Sequence[Node], node: Node, in_sync: int) -> Callable[[], Awaitable[bool]]:
    """Whether the controllers name it, with so many in sync."""
    seen: list[dict[str, Any]] = [{}]

    async def asked() -> bool:
        found = await state(controllers)
        if found != seen[0]:
            print(f"the controllers tell of {found}")
        seen[0] = found
        return found.get("masterAddress") == node.address and len(found["inSyncReplicas"]) == in_sync

    return asked


def same_epochs(street: Street, namesrv: Node) -> Callable[[], Awaitable[bool]]:
    """Whether mqadmin shows two epochs of each broker, and the same; a busy broker may answer it too late."""

    async def asked() -> bool:
        told = street.mqadmin(namesrv, "getBrokerEpoch", "-b", NAME)
        epochs = [line for line in told.splitlines() if line.startswith("#Epoch")]
        return len(epochs) == 4 and epochs[:2] == epochs[2:]

    return asked


def same(master: Node, slave: Node) -> Callable[[], Awaitable[bool]]:
    """Whether the logs have the same bytes."""

    async def asked() -> bool:
        mine = log_of(master)
        return len(mine) > 20_000 and mine == log_of(slave)

    return asked


async def sent(namesrv: Node, eventually: Eventually, master: Node, bodies: Sequence[bytes]) -> None:
    """All bodies are sent, once the nameserver knows the master."""

    async def is_routed() -> bool:
        return (await brokers(namesrv)).get(NAME, {}).get(0) == master.address

    await eventually(is_routed, "the master is routed")
    assert (await send(namesrv, "Copied", list(bodies))).total() == len(bodies)
