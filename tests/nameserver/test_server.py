"""A running nameserver over real connections."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.serving.listener import ListenerKeys
from nameserver import broker_requests
from nameserver.config import NameServerConfig
from nameserver.kv_config import KvConfigError
from nameserver.server import NameServer
from tests.limits import WAIT_S

from .conftest import Peer, Serve, Served

OLD_GO_CLIENT = 317


async def test_a_registered_broker_is_routed_and_tbw102_with_it(served: Served) -> None:
    broker, client = await served.peer(), await served.peer()
    assert (await broker.register("127.0.0.1:10911")).code == 0
    assert await client.route("Orders") == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "127.0.0.1:10911"},
                "brokerName": "broker-a",
                "cluster": "DefaultCluster",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": "broker-a", "perm": 6, "readQueueNums": 8, "topicSysFlag": 0, "writeQueueNums": 8}
        ],
    }
    template = await client.route("TBW102")
    assert template is not None
    assert template["queueDatas"][0]["perm"] == 7


async def test_a_closed_connection_takes_the_broker_out_of_the_routes(served: Served) -> None:
    broker, client = await served.peer(), await served.peer()
    await broker.register("127.0.0.1:10911")
    await broker.close()
    await served.until(lambda: not list(served.server.table.groups))
    assert await client.route("Orders") is None


async def test_a_silent_broker_is_dropped_and_its_connection_closed(serve: Serve) -> None:
    served = await serve(scan_interval_ms=20)
    broker, lively = await served.peer(), await served.peer()
    await broker.register("127.0.0.1:10911", heartbeatTimeoutMillis="50")
    await lively.register("127.0.0.1:10921", 1, heartbeatTimeoutMillis="600000")
    await broker.closed()
    assert await lively.addresses() == {"1": "127.0.0.1:10921"}


async def test_a_leader_of_a_lower_term_is_refused_with_the_holder_named(served: Served) -> None:
    old, new = await served.peer(), await served.peer()
    await old.register("127.0.0.1:1", term="1", confirmOffset="100")
    await new.register("127.0.0.1:2", term="2", confirmOffset="90")
    answer = await old.register("127.0.0.1:1", term="1")
    assert (answer.code, answer.ext["leaderHint"]) == (14, "127.0.0.1:2")
    assert "in term 1, but this nameserver has seen term 2" in (answer.remark or "")
    assert await old.addresses() == {"0": "127.0.0.1:2"}
    assert (await old.register("127.0.0.1:1", 1, term="2")).ext["masterAddr"] == "127.0.0.1:2"
    assert await old.addresses() == {"0": "127.0.0.1:2", "1": "127.0.0.1:1"}


async def test_a_claim_that_rocketmqs_own_rule_refuses_is_answered_as_rocketmq_does(served: Served) -> None:
    old, new = await served.peer(), await served.peer()
    await new.register("127.0.0.1:2", state_version=5)
    answer = await old.register("127.0.0.1:1", state_version=4)
    assert (answer.code, dict(answer.ext)) == (0, {})
    assert await old.addresses() == {"0": "127.0.0.1:2"}


async def test_a_broker_that_says_so_may_register_what_changed(served: Served) -> None:
    broker = await served.peer()
    assert (await broker.register("127.0.0.1:1", increment="false")).ext["takesIncrements"] == "true"
    topics = {"New": 6, "Newer": 6}
    assert (await broker.register("127.0.0.1:1", topics=topics, counter=2, increment="true")).code == 0
    assert await broker.addresses("Newer") == await broker.addresses("Orders") == {"0": "127.0.0.1:1"}


async def test_a_registration_that_says_the_same_again_brings_back_what_was_deleted_meanwhile(served: Served) -> None:
    broker = await served.peer()
    await broker.register("127.0.0.1:1")
    await broker.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "Orders"})
    assert await broker.route("Orders") is None
    await broker.register("127.0.0.1:1")
    assert await broker.addresses("Orders") == {"0": "127.0.0.1:1"}


async def test_one_connection_may_speak_for_several_brokers_with_the_same_topics(served: Served) -> None:
    peer = await served.peer()
    await peer.register("127.0.0.1:1", name="broker-a")
    await peer.register("127.0.0.1:2", name="broker-b")
    route = await peer.route("Orders")
    assert route is not None
    assert [queue["brokerName"] for queue in route["queueDatas"]] == ["broker-a", "broker-b"]


async def test_rocketmqs_heartbeat_is_never_refused(served: Served) -> None:
    ext = {"clusterName": "DefaultCluster", "brokerName": "broker-a", "brokerAddr": "127.0.0.1:1"}
    assert (await (await served.peer()).ask(RequestCode.BROKER_HEARTBEAT, ext)).code == 0


async def test_a_heartbeat_of_a_broker_that_is_not_known_asks_it_to_register(served: Served) -> None:
    broker = await served.peer()
    ext = {"clusterName": "DefaultCluster", "brokerName": "broker-a", "brokerAddr": "127.0.0.1:1", "brokerId": "0"}
    answer = await broker.ask(RequestCode.BROKER_HEARTBEAT, ext)
    assert answer.code == 22
    assert "register first" in (answer.remark or "")
    await broker.register("127.0.0.1:1")
    assert (await broker.ask(RequestCode.BROKER_HEARTBEAT, ext)).code == 0
    assert (await broker.ask(RequestCode.BROKER_HEARTBEAT, ext | {"brokerId": "1"})).code == 22


async def test_the_data_version_tells_whether_a_registration_is_needed(served: Served) -> None:
    broker = await served.peer()
    ext = {"clusterName": "DefaultCluster", "brokerName": "broker-a", "brokerAddr": "127.0.0.1:1", "brokerId": "0"}
    version = json.dumps({"counter": 1, "stateVersion": 0, "timestamp": 1}).encode()
    answer = await broker.ask(RequestCode.QUERY_DATA_VERSION, ext, version)
    assert (answer.ext, bytes(answer.body)) == ({"changed": "true"}, b"")
    await broker.register("127.0.0.1:1")
    answer = await broker.ask(RequestCode.QUERY_DATA_VERSION, ext, version)
    assert (answer.ext, loads(answer.body)) == ({"changed": "false"}, {"counter": 1, "stateVersion": 0, "timestamp": 1})
    answer = await broker.ask(RequestCode.QUERY_DATA_VERSION, ext, version.replace(b"1", b"2", 1))
    assert answer.ext == {"changed": "true"}
    answer = await broker.ask(RequestCode.QUERY_DATA_VERSION, ext | {"brokerId": "1"}, version)
    assert answer.ext == {"changed": "true"}, "it is registered under another id"


# ---- dialects


@pytest.mark.parametrize(
    ("version", "further", "standard"),
    [
        (OLD_GO_CLIENT, {}, False),
        (400, {}, False),
        (401, {}, True),
        (OLD_GO_CLIENT, {"acceptStandardJsonOnly": "true"}, True),
    ],
)
async def test_a_routes_dialect_goes_by_the_clients_version(
    served: Served, version: int, further: dict[str, str], standard: bool
) -> None:
    peer = await served.peer()
    await peer.register("127.0.0.1:10911", cluster="кластер")
    ext = {"topic": "Orders"} | further
    answer = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, version=version)
    text = bytes(answer.body).decode()
    assert ('"brokerAddrs":{"0":"' if standard else '"brokerAddrs":{0:"') in text
    assert " " not in text
    assert text.isascii() is standard
    assert loads(answer.body)["brokerDatas"][0]["cluster"] == "кластер"


async def test_cluster_info_and_members_have_bare_ids_for_everybody(served: Served) -> None:
    peer = await served.peer()
    await peer.register("127.0.0.1:1")
    await peer.register("127.0.0.1:2", 3)
    answer = await peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert b'"brokerAddrs":{0:"127.0.0.1:1",3:"127.0.0.1:2"}' in bytes(answer.body)
    assert b'"clusterAddrTable":{"DefaultCluster":["broker-a"]}' in bytes(answer.body)
    ext = {"clusterName": "DefaultCluster", "brokerName": "broker-a"}
    answer = await peer.ask(RequestCode.GET_BROKER_MEMBER_GROUP, ext)
    assert bytes(answer.body) == (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"127.0.0.1:1",3:"127.0.0.1:2"},'
        b'"brokerName":"broker-a","cluster":"DefaultCluster"}}'
    )


async def test_a_zones_clients_see_their_zone_and_what_nobody_leads(served: Served) -> None:
    peer = await served.peer()
    await peer.register("127.0.0.1:1", name="east", __ZONE_NAME="East")
    await peer.register("127.0.0.1:2", name="west", __ZONE_NAME="west")
    await peer.register("127.0.0.1:3", 1, name="lost", __ZONE_NAME="north")
    route = await peer.route("Orders", __ZONE_MODE="true", __ZONE_NAME="east")
    assert route is not None
    assert [broker["brokerName"] for broker in route["brokerDatas"]] == ["east", "lost"]
    assert [queue["brokerName"] for queue in route["queueDatas"]] == ["east", "lost"]
    assert route["brokerDatas"][0]["zoneName"] == "East"
    whole = await peer.route("Orders")
    assert whole is not None
    assert len(whole["brokerDatas"]) == 3


async def test_a_zone_without_brokers_gets_a_route_without_brokers(served: Served) -> None:
    peer = await served.peer()
    await peer.register("127.0.0.1:1", name="east", __ZONE_NAME="East")
    route = await peer.route("Orders", __ZONE_MODE="true", __ZONE_NAME="moon")
    assert route == {"brokerDatas": [], "filterServerTable": {}, "queueDatas": []}
    whole = await peer.route("Orders", __ZONE_MODE="perhaps", __ZONE_NAME="moon")
    assert whole is not None
    assert len(whole["brokerDatas"]) == 1


async def test_lists_of_topics(served: Served) -> None:
    peer = await served.peer()
    await peer.register("127.0.0.1:1")

    async def topics(code: int, ext: dict[str, str] | None = None) -> Any:
        return json.loads(bytes((await peer.ask(code, ext)).body))

    assert await topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == {"topicList": ["TBW102", "Orders"]}
    assert await topics(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "none"}) == {"topicList": []}
    assert await topics(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == {
        "brokerAddr": "127.0.0.1:1",
        "topicList": ["DefaultCluster", "broker-a"],
    }
    for code in (RequestCode.GET_UNIT_TOPIC_LIST, RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, 313):
        assert await topics(code) == {"topicList": []}


async def test_a_topic_is_registered_and_deleted_by_request(served: Served) -> None:
    peer = await served.peer()
    await peer.register("127.0.0.1:1")
    queue = '{"brokerName":"broker-a","perm":6,"readQueueNums":2,"topicSysFlag":0,"writeQueueNums":2}'
    body = f'{{"brokerDatas":[{{"brokerAddrs":{{0:"127.0.0.1:1"}}}}],"queueDatas":[{queue}]}}'.encode()
    assert (await peer.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "New"}, body)).code == 0
    assert await peer.addresses("New") == {"0": "127.0.0.1:1"}
    unknown = body.replace(b"broker-a", b"b")
    assert (await peer.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "Newer"}, unknown)).code == 0
    assert await peer.route("Newer") is None
    assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "New"})).code == 0
    assert await peer.route("New") is None


# ---- waiting for a change


async def waiting(served: Served, count: int = 1) -> None:
    page = "ledgermq_nameserver_waiting_route_requests"
    await served.until(lambda: f'{page}{{node_type="nameserver"}} {count}\n' in served.server.registry.render())


async def test_a_client_that_waits_hears_of_a_new_leader_at_once(served: Served) -> None:
    first, second, client = await served.peer(), await served.peer(), await served.peer()
    await first.register("127.0.0.1:1", term="1")
    ask = {"topic": "Orders", "waitMillis": "20000"}
    answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ask | {"knownVersion": "0"})
    client.send(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=ask | {"knownVersion": answer.ext["routeVersion"]}))
    await waiting(served)
    await second.register("127.0.0.1:2", term="2")
    news = await client.answer()
    assert news.ext["routeVersion"] != answer.ext["routeVersion"]
    assert loads(news.body)["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.1:2"}


async def test_a_client_may_wait_for_a_topic_to_appear_and_to_go(served: Served) -> None:
    broker, client = await served.peer(), await served.peer()
    ask = {"topic": "Orders", "waitMillis": "20000"}
    client.send(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=ask | {"knownVersion": "0"}))
    await waiting(served)
    await broker.register("127.0.0.1:1")
    answer = await client.answer()
    assert answer.code == 0
    client.send(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=ask | {"knownVersion": answer.ext["routeVersion"]}))
    await waiting(served)
    await broker.close()
    assert (await client.answer()).code == 17


async def test_a_wait_ends_with_the_route_as_it_is(served: Served) -> None:
    peer = await served.peer()
    await peer.register("127.0.0.1:1")
    ask = {"topic": "Orders", "waitMillis": "1", "knownVersion": str(served.server.table.version("Orders"))}
    answer = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ask)
    assert (answer.code, answer.ext["routeVersion"]) == (0, ask["knownVersion"])


async def test_a_waiting_client_may_go_and_a_stopping_nameserver_answers_the_others(served: Served) -> None:
    gone, stays = await served.peer(), await served.peer()
    for peer in (gone, stays):
        peer.send(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "T", "waitMillis": "20000"}))
    await waiting(served, 2)
    await gone.close()
    await waiting(served, 1)
    await served.server.close()
    assert (await stays.answer()).code == 17


async def test_a_plain_route_request_waits_for_the_next_leader_of_a_group_that_elects(served: Served) -> None:
    leader, follower, client = await served.peer(), await served.peer(), await served.peer()
    await leader.register("127.0.0.1:1", term="1")
    await follower.register("127.0.0.1:2", 2, term="1")
    await leader.close()
    await served.until(lambda: served.server.table.is_between_leaders("Orders", 0))
    client.send(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "Orders"}))
    await waiting(served)
    await follower.register("127.0.0.1:2", 3, term="2")  # a change that brings no leader
    await waiting(served)
    await follower.register("127.0.0.1:2", 0, term="2")
    assert loads((await client.answer()).body)["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.1:2"}


async def test_producers_are_sent_to_followers_that_pass_sends_on(serve: Serve) -> None:
    served = await serve(spread_sends_after_ms=0)
    leader, one, other, client = [await served.peer() for _ in range(4)]
    await leader.register("127.0.0.1:1", term="3", topics={"Orders": 6, "Closed": 4, "%RETRY%g": 6, "TBW102": 7})
    await one.register("127.0.0.1:2", 2, term="3")
    await other.register("127.0.0.1:3", 3, term="3")
    route = await client.route("Orders")
    assert route is not None
    main, *further = route["brokerDatas"]
    assert main["brokerAddrs"] == {"0": "127.0.0.1:1", "2": "127.0.0.1:2", "3": "127.0.0.1:3"}
    assert [(one["brokerName"], one["cluster"], one["brokerAddrs"]) for one in further] == [
        ("1~broker-a", "DefaultCluster", {"0": "127.0.0.1:2"}),
        ("2~broker-a", "DefaultCluster", {"0": "127.0.0.1:3"}),
    ]
    names = ("brokerName", "writeQueueNums", "readQueueNums", "perm")
    queues = [tuple(one[name] for name in names) for one in route["queueDatas"]]
    assert queues == [("1~broker-a", 8, 8, 2), ("2~broker-a", 8, 8, 2), ("broker-a", 0, 8, 6)]
    template = await client.route("TBW102")  # clients write to as many queues as can be read
    assert template is not None and [one["perm"] for one in template["queueDatas"]] == [2, 2, 5]
    for topic, further_fields in (("Closed", {}), ("%RETRY%g", {}), ("Orders", {"waitMillis": "1"})):
        route = await client.route(topic, **further_fields)
        assert route is not None and [one["brokerName"] for one in route["queueDatas"]] == ["broker-a"], topic


async def test_producers_have_two_names_with_fewer_followers_and_between_leaders(serve: Serve) -> None:
    """A key that chooses a queue by its hash chooses the same one as long as their number is the same."""
    served = await serve(spread_sends_after_ms=0)
    leader, one, other, client = [await served.peer() for _ in range(4)]
    await leader.register("127.0.0.1:1", term="3")
    await one.register("127.0.0.1:2", 2, term="3")
    assert await names_of_producers(client) == {"1~broker-a": "127.0.0.1:2", "2~broker-a": "127.0.0.1:1"}
    await other.register("127.0.0.1:3", 3, term="3")
    await leader.close()
    await served.until(lambda: served.server.table.is_between_leaders("Orders", 0))
    asked = asyncio.ensure_future(names_of_producers(client))
    await waiting(served)
    await one.register("127.0.0.1:2", 0, term="4")
    assert await asked == {"1~broker-a": "127.0.0.1:3", "2~broker-a": "127.0.0.1:2"}


async def names_of_producers(client: Peer) -> dict[str, str]:
    """The address of each broker name with queues to write to."""
    route = await client.route("Orders")
    assert route is not None
    written = {one["brokerName"] for one in route["queueDatas"] if one["writeQueueNums"] and one["perm"] & 2}
    return {one["brokerName"]: one["brokerAddrs"]["0"] for one in route["brokerDatas"] if one["brokerName"] in written}


async def test_the_route_of_a_name_for_producers_is_that_of_its_member(serve: Serve) -> None:
    """RocketMQ's proxy asks for the route of the broker name of a queue."""
    served = await serve(spread_sends_after_ms=0)
    leader, one, other, client = [await served.peer() for _ in range(4)]
    await leader.register("127.0.0.1:1", term="3", topics={"Orders": 6, "broker-a": 7})
    await one.register("127.0.0.1:2", 2, term="3")
    await other.register("127.0.0.1:3", 3, term="3")
    route = await client.route("2~broker-a")
    assert route is not None
    assert [(one["brokerName"], one["brokerAddrs"]) for one in route["brokerDatas"]] == [
        ("2~broker-a", {"0": "127.0.0.1:3"})
    ]
    assert [one["brokerName"] for one in route["queueDatas"]] == ["2~broker-a"]
    for unknown in ("3~broker-a", "1~broker-b", "1~Orders", "~"):
        assert await client.route(unknown) is None, unknown


async def test_producers_are_sent_to_a_follower_that_does_not_know_its_term_yet(serve: Serve) -> None:
    served = await serve(spread_sends_after_ms=0)
    leader, one, other, client = [await served.peer() for _ in range(4)]
    await leader.register("127.0.0.1:1", term="3")
    await one.register("127.0.0.1:2", 2, term="3")
    await other.register("127.0.0.1:3", 3, confirmOffset="100")
    assert await names_of_producers(client) == {"1~broker-a": "127.0.0.1:2", "2~broker-a": "127.0.0.1:3"}


async def test_keys_choose_the_same_queue_by_their_hash_with_and_without_names_for_producers(serve: Serve) -> None:
    served = await serve(spread_sends_after_ms=0)
    peers = {name: [await served.peer() for _ in range(2)] for name in ("broker-a", "broker-b")}
    for port, (name, members) in enumerate(peers.items()):
        for broker_id, peer in enumerate(members):
            await peer.register(f"127.0.0.1:{10 * port + broker_id + 1}", broker_id, name=name, term="1")
    client = await served.peer()
    named, plain = await client.route("Orders"), await client.route("Orders", waitMillis="1")
    assert named is not None and plain is not None
    assert [queue.partition("~")[2] or queue for queue in queues_to_write(named)] == 2 * queues_to_write(plain)


async def three_groups(served: Served, *order: str) -> None:
    """Each of three machines leads a group; the last digit of an address is that of the machine."""
    for name in order:
        leader = "abc".index(name[-1]) + 1
        for machine in (1, 2, 3):
            broker_id = 0 if machine == leader else 3 * leader + machine
            await (await served.peer()).register(f"127.0.0.1:{10 * leader + machine}", broker_id, name=name, term="1")


async def test_names_of_one_number_are_on_different_machines_where_each_leads_a_group(serve: Serve) -> None:
    served = await serve(spread_sends_after_ms=0)
    await three_groups(served, "broker-a", "broker-b", "broker-c")
    named = await names_of_producers(await served.peer())
    assert {name: address[-1] for name, address in named.items()} == {
        "1~broker-a": "2",
        "1~broker-b": "3",
        "1~broker-c": "1",
        "2~broker-a": "3",
        "2~broker-b": "1",
        "2~broker-c": "2",
    }


async def test_clients_in_go_try_different_machines_one_after_the_other(serve: Serve) -> None:
    """They try queue after queue in the order of their route, whatever the names are."""
    served = await serve()
    await three_groups(served, "broker-b", "broker-a", "broker-c")
    client = await served.peer()
    client.send(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "Orders"}, language="GO"))
    route = json.loads(bytes((await client.answer()).body))
    machines = {one["brokerName"]: one["brokerAddrs"]["0"][-1] for one in route["brokerDatas"]}
    written = [one["brokerName"] for one in route["queueDatas"] if one["writeQueueNums"]]
    assert [machines[name] for name in written] == ["2", "3", "1", "2", "3", "1"]
    assert [name[-1] for name in written] == ["a", "b", "c", "c", "a", "b"]


def queues_to_write(route: dict[str, Any]) -> list[str]:
    """The queues in the order of RocketMQ's producers."""
    by_name = sorted(route["queueDatas"], key=lambda one: str(one["brokerName"]))
    written = (one for one in by_name if one["perm"] & 2)
    names = {one["brokerName"].partition("~")[2] or one["brokerName"] for one in by_name}
    assert names == {"broker-a", "broker-b"}
    return [f"{one['brokerName']}/{number}" for one in written for number in range(one["writeQueueNums"])]


async def test_a_client_is_told_of_followers_when_it_asks_for_a_route_again_after_some_time(serve: Serve) -> None:
    """RocketMQ's producers ask every 30 s; commands of mqadmin are done by then."""
    served = await serve(spread_sends_after_ms=50)
    leader, follower, client = [await served.peer() for _ in range(3)]
    await leader.register("127.0.0.1:1", term="3", topics={"Orders": 6, "Later": 6})
    await follower.register("127.0.0.1:2", 2, term="3")
    assert await names_of_producers(client) == {"broker-a": "127.0.0.1:1"}
    async with asyncio.timeout(WAIT_S):
        while len(await names_of_producers(client)) == 1:
            await asyncio.sleep(0.01)
    later, other = await client.route("Later"), await (await served.peer()).route("Orders")
    assert later is not None and other is not None
    assert [len(route["brokerDatas"]) for route in (later, other)] == [1, 1]


async def test_a_java_producer_that_makes_a_topic_is_told_of_followers_at_once(serve: Serve) -> None:
    """It asks for the route of the template when its topic has none. mqadmin does not by itself."""
    served = await serve()
    leader, follower = [await served.peer() for _ in range(2)]
    topics = {"TBW102": 7, "Orders": 6}
    await leader.register("127.0.0.1:1", term="3", topics=topics)
    await follower.register("127.0.0.1:2", 2, term="3")
    for version, asked, names in (
        (479, ("New", "TBW102"), [3, 3]),
        (479, ("TBW102",), [1, 1]),
        (479, ("New", "Orders", "TBW102"), [1, 1, 1]),
        (434, ("New", "TBW102"), [1, 1]),
    ):
        client, found = await served.peer(), []
        for topic in (*asked, "Orders"):
            client.send(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic}, version=version))
            answer = await client.answer()
            found += [len(json.loads(bytes(answer.body))["brokerDatas"])] if answer.code == 0 else []
        assert found == names, (version, asked)


async def test_clients_in_go_are_told_of_followers_at_once(serve: Serve) -> None:
    served = await serve()
    leader, follower, client = [await served.peer() for _ in range(3)]
    await leader.register("127.0.0.1:1", term="3")
    await follower.register("127.0.0.1:2", 2, term="3")
    for language, names in (("JAVA", 1), ("GO", 3)):
        client.send(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "Orders"}, language=language))
        assert len(json.loads(bytes((await client.answer()).body))["brokerDatas"]) == names, language


async def test_producers_know_only_the_leader_where_a_member_elects_nobody(serve: Serve) -> None:
    served = await serve(spread_sends_after_ms=0)
    master, slave, replica, client = [await served.peer() for _ in range(4)]
    await master.register("127.0.0.1:1")
    await slave.register("127.0.0.1:2", 1)
    assert await names_of_producers(client) == {"broker-a": "127.0.0.1:1"}
    await replica.register("127.0.0.1:3", 2, term="3")
    assert await names_of_producers(client) == {"broker-a": "127.0.0.1:1"}


async def test_producers_know_only_the_leader_without_spread_sends(serve: Serve) -> None:
    served = await serve(spread_sends=False, spread_sends_after_ms=0)
    leader, follower, client = [await served.peer() for _ in range(3)]
    await leader.register("127.0.0.1:1", term="3")
    await follower.register("127.0.0.1:2", 2, term="3")
    assert await names_of_producers(client) == {"broker-a": "127.0.0.1:1"}


async def test_a_plain_route_request_waits_no_longer_than_java_does(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nameserver.route_requests.LEADER_WAIT_MS", 20)
    served = await serve()
    follower = await served.peer()
    await follower.register("127.0.0.1:2", 2, term="1")
    assert await follower.addresses() == {"2": "127.0.0.1:2"}


# ---- KV and settings


async def test_kv_outlives_a_restart(serve: Serve) -> None:
    entry = {"namespace": "n", "key": "k", "value": "v"}
    before = await serve()
    assert (await (await before.peer()).ask(RequestCode.PUT_KV_CONFIG, entry)).code == 0
    await before.close()
    peer = await (await serve()).peer()
    assert (await peer.ask(RequestCode.GET_KV_CONFIG, entry)).ext == {"value": "v"}
    assert loads((await peer.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, entry)).body) == {"table": {"k": "v"}}
    assert (await peer.ask(RequestCode.DELETE_KV_CONFIG, entry)).code == 0
    assert (await peer.ask(RequestCode.GET_KV_CONFIG, entry)).code == 22
    assert (await peer.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "other"})).code == 22


async def test_settings_are_shown_and_changed_at_once(served: Served) -> None:
    peer = await served.peer()
    shown = bytes((await peer.ask(RequestCode.GET_NAMESRV_CONFIG)).body).decode()
    assert "scanNotActiveBrokerInterval=5000\n" in shown
    change = b"enableAllTopicList=false\nscanNotActiveBrokerInterval=7000\n"
    assert (await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=change)).code == 0
    assert (await peer.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).remark == "disable"
    shown = bytes((await peer.ask(RequestCode.GET_NAMESRV_CONFIG)).body).decode()
    assert "scanNotActiveBrokerInterval=7000\n" in shown
    assert (await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"kvConfigPath=x")).code == 16


async def test_routes_are_refused_while_service_is_waited_for(serve: Serve) -> None:
    peer = await (await serve(wait_for_service=True)).peer()
    answer = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert (answer.code, answer.remark) == (1, "name server not ready")


# ---- bad input


BROKER = {"clusterName": "c", "brokerName": "b", "brokerAddr": "h:1", "brokerId": "0", "haServerAddr": "h:2"}


@pytest.mark.parametrize(
    ("code", "ext", "body", "expected", "remark"),
    [
        (105, {}, b"", 17, "field topic is missing"),
        (105, {"topic": "T", "waitMillis": "soon"}, b"", 1, "field waitMillis is not a number: 'soon'"),
        (105, {"topic": "T", "waitMillis": "-1"}, b"", 1, "field waitMillis is out of range: -1"),
        (105, {"topic": "T", "waitMillis": "1", "knownVersion": "x"}, b"", 1, "field knownVersion is not a number"),
        (103, BROKER | {"brokerId": ""}, b"", 1, "field brokerId is missing"),
        (103, BROKER | {"brokerId": "zero"}, b"", 1, "field brokerId is not a number: 'zero'"),
        (103, BROKER | {"brokerAddr": "nowhere"}, b"", 1, "field brokerAddr is not host:port: 'nowhere'"),
        (103, BROKER | {"brokerAddr": "h:65536"}, b"", 1, "field brokerAddr is not host:port"),
        (103, BROKER | {"term": "-3"}, b"", 1, "field term is out of range: -3"),
        (103, BROKER | {"enableActingMaster": "yes"}, b"", 1, "field enableActingMaster is not true or false: 'yes'"),
        (103, BROKER | {"heartbeatTimeoutMillis": "x"}, b"", 1, "field heartbeatTimeoutMillis is not a number"),
        (103, BROKER | {"bodyCrc32": "1"}, b"{}", 1, "crc32 not match: body has"),
        (103, BROKER, b"{", 1, "registration: no JSON at character 1"),
        (103, BROKER, b"[]", 1, "registration is '[]', not a JSON object"),
        (103, BROKER, b"\x78\x9cgarbage", 1, "cannot be decompressed"),
        (103, BROKER, b'{"topicConfigSerializeWrapper":7}', 1, "topicConfigSerializeWrapper is '7'"),
        (904, {"clusterName": "c"}, b"", 1, "field brokerAddr is missing"),
        (322, BROKER, b"x", 1, "dataVersion: no JSON"),
        (217, {"topic": "T"}, b'{"queueDatas":[{"perm":6}]}', 1, "queueDatas is \"{'perm': 6}\", not queues with"),
        (217, {"topic": "T"}, b'{"queueDatas":{"a":6}}', 1, "not a list"),
        (100, {"namespace": "n"}, b"", 1, "field key is missing"),
        (101, {"namespace": "n"}, b"", 22, "field key is missing"),
        (318, {}, b"scanNotActiveBrokerInterval=never", 29, "is 'never', not a whole number"),
        (318, {}, b"scanNotActive=1", 29, "is unknown; nearest known key is 'scanNotActiveBrokerInterval'"),
        (318, {}, b"\xff", 29, "settings: not UTF-8 at byte 0"),
        (318, {}, b"nothing", 29, "line 1 is not key=value: 'nothing'"),
        (318, {}, b"listenPort=1", 16, "key 'listenPort' cannot change"),
        (10, {}, b"", 3, " request type 10 not supported"),
        (-5, {}, b"", 3, " request type -5 not supported"),
    ],
)
async def test_bad_input_is_answered_with_its_name_and_harms_nothing(
    served: Served, code: int, ext: dict[str, str], body: bytes, expected: int, remark: str
) -> None:
    peer = await served.peer()
    await peer.register("127.0.0.1:10911")
    before = served.server.table.revision
    answer = await peer.ask(code, ext, body)
    assert answer.code == expected
    assert remark in (answer.remark or "")
    assert served.server.table.revision == before
    assert await peer.addresses() == {"0": "127.0.0.1:10911"}


async def test_what_rocketmq_takes_without_a_name_or_a_body_is_taken_and_changes_nothing(served: Served) -> None:
    peer = await served.peer()
    await peer.register("127.0.0.1:10911")
    assert (await peer.ask(100, {"namespace": "n", "key": "k", "value": "v"})).code == 0
    before = served.server.table.revision
    for code, ext in ((102, {"key": "k"}), (104, {"brokerName": "b"}), (104, {}), (217, {}), (217, {"topic": "T"})):
        assert (await peer.ask(code, ext)).code == 0, (code, ext)
    assert (await peer.ask(322, BROKER)).ext["changed"] == "true"
    assert served.server.table.revision == before
    assert (await peer.ask(101, {"namespace": "n", "key": "k"})).ext["value"] == "v"
    assert (await peer.ask(100, {"namespace": "n", "key": "k"})).code == 0
    assert (await peer.ask(101, {"namespace": "n", "key": "k"})).code == 22


async def test_a_one_way_request_gets_no_answer_even_when_it_is_refused(served: Served) -> None:
    peer = await served.peer()
    peer.send(Command(RequestCode.BROKER_HEARTBEAT, ext={}, flag=2))
    answer = await peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert (answer.code, answer.opaque) == (0, 2)


async def test_garbage_closes_its_connection_and_no_other(served: Served) -> None:
    broker, stranger = await served.peer(), await served.peer()
    await broker.register("127.0.0.1:10911")
    stranger.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
    await stranger.closed()
    assert await broker.addresses() == {"0": "127.0.0.1:10911"}


async def test_a_port_in_use_is_refused_and_leaves_nothing_open(served: Served, config: NameServerConfig) -> None:
    second = NameServer(replace(config, listener=replace(config.listener, port=served.port, health_port=0)))
    with pytest.raises(OSError, match=str(served.port)):
        await second.start()
    assert second.health_port == 0


async def test_a_broken_kv_file_stops_the_start_and_is_left_as_it_is(config: NameServerConfig) -> None:
    config.kv_config_path.parent.mkdir()
    config.kv_config_path.write_text("{broken")
    with pytest.raises(KvConfigError, match=r"kvConfig\.json: cannot be read"):
        await NameServer(config).start()
    assert config.kv_config_path.read_text() == "{broken"


# ---- health


async def test_health_is_served_beside(serve: Serve) -> None:
    served = await serve(listener=ListenerKeys(host="127.0.0.1", health_host="127.0.0.1", health_port=0))
    broker = await served.peer()
    await broker.register("127.0.0.1:10911")
    await broker.ask(RequestCode.REGISTER_BROKER, {})
    async with aiohttp.ClientSession(f"http://127.0.0.1:{served.server.health_port}") as session:
        async with session.get("/readyz") as ready:
            assert (ready.status, (await ready.json())["detail"]) == (200, "1 broker names, 2 topics")
        async with session.get("/metrics") as metrics:
            page = await metrics.text()
    assert 'ledgermq_requests_total{node_type="nameserver",request="REGISTER_BROKER"} 2\n' in page
    assert 'ledgermq_refused_total{node_type="nameserver",cause="malformed-field"} 1\n' in page
    assert 'ledgermq_nameserver_brokers{node_type="nameserver"} 1\n' in page


async def test_two_masters_of_one_name_are_told_of(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_requests._seldom, "_quiet_until", 0.0)  # another test may have caused the warning
    served = await serve()
    first, second = await served.peer(), await served.peer()
    await first.register("127.0.0.1:1")
    await first.register("127.0.0.1:1")
    assert "two masters" not in caplog.text
    await second.register("127.0.0.1:2")
    assert (
        "broker broker-a at 127.0.0.1:2 takes id 0 from 127.0.0.1:1, which has not left: are two masters" in caplog.text
    )
    assert await first.addresses() == {"0": "127.0.0.1:2"}, "as in RocketMQ, the last one has it"
