"""RocketMQ's own brokers in controller mode, whose ids, masters and in-sync sets come from our controllers."""

import json
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.errors import RemotingError
from tests.mixed.nodes import CLUSTER, Node, Street
from tests.mixed.traffic import brokers, consume, round_trip, send

Eventually = Callable[[Callable[[], Awaitable[bool]], str], Awaitable[None]]
NAME = "broker-c"
HUNG_S = 60.0
"""After which a slave of RocketMQ's is taken for one that stays with a former master; it reads routes every 10 s."""


async def state(controllers: Sequence[Node]) -> dict[str, Any]:
    """What the leading controller tells of the group; empty while none leads."""
    client = RemotingClient()
    request = Command(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=json.dumps([NAME]).encode())
    try:
        for node in controllers:
            try:
                answer = await client.request(node.address, request)
            except RemotingError:
                continue
            if answer.code == 0:
                found: dict[str, Any] = loads(answer.body)["replicasInfoTable"].get(NAME, {})
                return found
    finally:
        await client.close()
    return {}


async def test_java_brokers_elect_replicate_and_fail_over_under_our_controllers(
    street: Street, eventually: Eventually
) -> None:
    namesrv, controllers = street.our_nameserver(), street.our_controllers()
    group = street.java_controlled_group(NAME, namesrv, controllers)
    seen: dict[str, Any] = {}

    async def has(in_sync: int, epoch: int, alive: int = 3) -> bool:
        """Whether so many brokers are in sync and so many alive, `epoch` masters or more having been elected."""
        found = await state(controllers)
        if found != seen:
            print(f"the controllers tell of {found}")
        seen.clear()
        seen.update(found)
        members = seen.get("inSyncReplicas", ())
        living = sum(one["alive"] for one in (*members, *seen.get("notInSyncReplicas", ())))
        return (len(members), living) == (in_sync, alive) and seen["masterEpoch"] >= epoch

    async def is_routed() -> bool:
        master: str = seen["masterAddress"]
        return (await brokers(namesrv)).get(NAME, {}).get(0) == master

    await eventually(lambda: has(3, 1), "three brokers are in sync")
    await eventually(is_routed, "the master is routed")
    await round_trip(namesrv, "Controlled")

    first = next(node for node in group if node.address == seen["masterAddress"])
    first.kill()
    await eventually(lambda: has(2, 2, alive=2), "another broker is master, and the third follows it")
    await eventually(is_routed, "the new master is routed")
    assert seen["masterAddress"] != first.address
    assert (await send(namesrv, "Controlled", [b"after the master's death"])).total() == 1
    assert len(await consume(namesrv, "Controlled", "readers", 41)) == 41
    first.start()
    await eventually(lambda: has(3, 2), "the old master follows")

    leader = await leading(controllers, eventually)
    leader.kill()
    others = [node for node in controllers if node is not leader]
    back = next(one for one in seen["inSyncReplicas"] if one["brokerAddress"] == first.address)["brokerId"]
    await eventually(lambda: has(3, 2), "another controller leads and hears all brokers")
    words = ("-a", others[0].address, "-b", str(back), "-bn", NAME, "-c", CLUSTER)
    assert seen["masterAddress"] != first.address
    name_it = says(street, namesrv, f"#BrokerMasterAddr\t{first.address}", "electMaster", *words)

    async def is_named() -> bool:
        """The answer may be too late for mqadmin; who is master already is not elected again."""
        return await name_it() or (await state(controllers)).get("masterAddress") == first.address

    named_s, hung = time.monotonic(), list[Node]()

    async def follow_named() -> bool:
        """What is outside the set after a while is started again.

        A slave of RocketMQ's that registers before the new master does is told the listener of the former one, which
        still accepts it as a slave; it stays there, since a new address closes no connection.
        """
        if await has(3, 3) and seen["masterAddress"] == first.address:
            return True
        if not hung and time.monotonic() > named_s + HUNG_S:
            outside = {one["brokerAddress"] for one in seen.get("notInSyncReplicas", ())}
            hung.extend(node for node in group if node.address in outside)
            for node in hung:
                node.kill()
                node.start()
        return False

    await eventually(is_named, "an administrator names a master")
    await eventually(follow_named, "the others follow the master that an administrator named")
    asked = ("getSyncStateSet", "-a", others[1].address, "-b", NAME)
    await eventually(says(street, namesrv, f"#MasterBrokerId\t{back}\n", *asked), "mqadmin shows that master")
    refusal = f"CODE: 2009  DESC: Broker [{NAME},  {back}] is still alive, clean up failure"
    await eventually(says(street, namesrv, refusal, "cleanBrokerMetadata", *words), "a living broker is not removed")


def says(street: Street, namesrv: Node, text: str, *words: str) -> Callable[[], Awaitable[bool]]:
    """Whether mqadmin prints that; it waits for an answer for 3 to 5 s only."""

    async def asked() -> bool:
        printed = street.mqadmin(namesrv, *words)
        if text not in printed:
            print(f"mqadmin {words[0]} prints {printed}")
        return text in printed

    return asked


async def leading(controllers: Sequence[Node], eventually: Eventually) -> Node:
    """The controller that leads the others."""
    found: list[Node] = []

    async def is_known() -> bool:
        client = RemotingClient()
        try:
            answer = await client.request(controllers[0].address, Command(RequestCode.CONTROLLER_GET_METADATA_INFO))
        except RemotingError:
            return False
        finally:
            await client.close()
        found.extend(node for node in controllers if node.address == answer.ext.get("controllerLeaderAddress"))
        return bool(found)

    await eventually(is_known, "a controller leads")
    return found[0]


async def test_mqadmin_shows_and_changes_controllers(street: Street, eventually: Eventually) -> None:
    namesrv, controllers = street.our_nameserver(), street.our_controllers()
    addresses = ";".join(node.address for node in controllers)

    shown = ("getControllerMetaData", "-a", controllers[0].address)
    await eventually(says(street, namesrv, "#ControllerLeaderId\tn", *shown), "a controller leads")
    words = ("updateControllerConfig", "-a", addresses, "-k", "enableElectUncleanMaster", "-v", "true")
    await eventually(says(street, namesrv, "update controller config success", *words), "all take the change")
    config = street.mqadmin(namesrv, "getControllerConfig", "-a", addresses)
    assert len(re.findall(r"enableElectUncleanMaster +=  true", config)) == 3, config
