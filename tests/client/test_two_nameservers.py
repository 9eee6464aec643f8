"""Routes of several topics that are asked for at the same time, with two nameservers of which one knows no topic."""

from ledgermq.client import Producer
from ledgermq.client.core.nameservers import NO_ROUTE
from ledgermq.client.core.routes import Routes
from ledgermq.remoting.codec.codes import RequestCode
from tests.client.conftest import StartCluster
from tests.client.fake import FakeCluster, eventually

TOPICS = [f"T{number}" for number in range(4)]


def all_known(routes: Routes) -> bool:
    """Whether all topics have routes; those that have none are asked for."""
    found = [routes.route(topic) for topic in TOPICS]
    return all(found)


def waited_for_an_unknown_one(cluster: FakeCluster) -> set[str]:
    """Topics for whose first route a nameserver was asked to wait, though the other one has it."""
    asked = [
        one.ext for node in cluster.nameservers for one in node.seen if one.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
    ]
    return {ext["topic"] for ext in asked if ext["knownVersion"] == NO_ROUTE} & set(TOPICS)


async def test_each_topic_is_asked_for_at_each_nameserver(start_cluster: StartCluster) -> None:
    cluster = await start_cluster(nameserver_count=2)
    await cluster.add(topics=dict.fromkeys(TOPICS, 1))
    cluster.nameserver._frozen = {}
    async with Producer(cluster.namesrv) as producer:
        routes = producer._session.routes
        await eventually(lambda: all_known(routes))
    assert not waited_for_an_unknown_one(cluster)


async def test_a_nameserver_that_loses_the_brokers_hides_no_new_route_of_any_topic(start_cluster: StartCluster) -> None:
    cluster = await start_cluster(nameserver_count=2)
    (broker,) = await cluster.add(topics=dict.fromkeys(TOPICS, 1))
    loses = cluster.nameserver
    async with Producer(cluster.namesrv) as producer:
        routes = producer._session.routes
        await eventually(lambda: all_known(routes))
        await eventually(lambda: len(loses._held) >= len(TOPICS))
        broker.ledger.topics.update(dict.fromkeys(TOPICS, 2))
        loses._frozen = {}
        held, loses._held = loses._held, []
        for connection, command in held:
            loses._route(connection, command)
        cluster.changed()
        await eventually(lambda: {len(route.write_queues) for topic in TOPICS if (route := routes.route(topic))} == {2})
    assert not waited_for_an_unknown_one(cluster)
