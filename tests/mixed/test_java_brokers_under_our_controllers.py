"""RocketMQ's own brokers in controller mode, whose ids, masters and in-sync sets come from our controllers."""

import json
import re
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
        seen.clear()
        seen.update(await state(controllers))
        replicas = [*seen.get("inSyncReplicas", ()), *seen.get("notInSyncReplicas", ())]
        living = sum(one["alive"] for one in replicas)
        return [len(seen.get("inSyncReplicas", ())), seen.get("masterEpoch"), living] == [in_sync, epoch, alive]

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

    leader = await leading(controllers)
    leader.kill()
    others = [node for node in controllers if node is not leader]
    back = next(one for one in seen["inSyncReplicas"] if one["brokerAddress"] == first.address)["brokerId"]
    await eventually(lambda: has(3, 2), "another controller leads and hears all brokers")
    words = ("-a", others[0].address, "-b", str(back), "-bn", NAME, "-c", CLUSTER)
    assert f"#BrokerMasterAddr\t{first.address}" in street.mqadmin(namesrv, "electMaster", *words)
    await eventually(lambda: has(3, 3), "the others follow the master that an administrator named")
    shown = street.mqadmin(namesrv, "getSyncStateSet", "-a", others[1].address, "-b", NAME)
    assert re.search(rf"#MasterBrokerId\t{back}\n", shown), shown
    refused = street.mqadmin(namesrv, "cleanBrokerMetadata", *words)
    assert f"CODE: 2009  DESC: Broker [{NAME},  {back}] is still alive, clean up failure" in refused


async def leading(controllers: Sequence[Node]) -> Node:
    client = RemotingClient()
    try:
        answer = await client.request(controllers[0].address, Command(RequestCode.CONTROLLER_GET_METADATA_INFO))
    finally:
        await client.close()
    return next(node for node in controllers if node.address == answer.ext["controllerLeaderAddress"])


async def test_mqadmin_shows_and_changes_controllers(street: Street, eventually: Eventually) -> None:
    namesrv, controllers = street.our_nameserver(), street.our_controllers()
    addresses = ";".join(node.address for node in controllers)

    async def one_leads() -> bool:
        shown = street.mqadmin(namesrv, "getControllerMetaData", "-a", controllers[0].address)
        return "#ControllerLeaderId\tn" in shown

    await eventually(one_leads, "a controller leads")
    words = ("-a", addresses, "-k", "enableElectUncleanMaster", "-v", "true")
    assert "update controller config success" in street.mqadmin(namesrv, "updateControllerConfig", *words)
    shown = street.mqadmin(namesrv, "getControllerConfig", "-a", addresses)
    assert len(re.findall(r"enableElectUncleanMaster +=  true", shown)) == 3
