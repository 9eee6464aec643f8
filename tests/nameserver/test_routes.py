"""The route table, pure: who leads, who is alive, which topics there are."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ledgermq.remoting.codec.data_version import DataVersion
from nameserver.core.election import TERM_MEMORY_MS, RegistrationRefusedError
from nameserver.core.model import MinBrokerChange, QueueData, Registration, TopicTable
from nameserver.core.routes import RouteTable, UnknownBrokerError

CLUSTER, NAME = "DefaultCluster", "broker-a"
TOPICS = {"TBW102": 7, "Orders": 6}


def claim(
    address: str,
    broker_id: int = 0,
    *,
    term: int = 0,
    topics: dict[str, int] | None = None,
    version: int = 1,
    state_version: int = 0,
    name: str = NAME,
    **further: Any,
) -> Registration:
    perms = TOPICS if topics is None else topics
    table = TopicTable(
        version=DataVersion(version, 1, state_version),
        topics={topic: QueueData(name, 8, 8, perm) for topic, perm in perms.items()},
    )
    fields: dict[str, Any] = {
        "cluster": CLUSTER,
        "connection": address,
        "heartbeat_timeout_ms": 10_000,
        "acting_master": False,
    }
    return Registration(
        broker_name=name, broker_id=broker_id, address=address, term=term, table=table, **(fields | further)
    )


def addresses(table: RouteTable, topic: str = "Orders") -> dict[int, str]:
    """Addresses by broker id; empty when there is no route."""
    route = table.route(topic)
    return {} if route is None else route.groups[0].addresses


def acting_addresses(table: RouteTable, topic: str = "Orders") -> dict[int, str]:
    """Addresses by broker id as clients see them where acting masters are shown."""
    route = table.route_with_acting_masters(topic)
    assert route is not None
    shown: dict[int, str] = route.to_json()["brokerDatas"][0]["brokerAddrs"]
    return shown


def increment(address: str, topics: dict[str, int], version: int = 1) -> Registration:
    whole = claim(address, topics=topics, version=version)
    return replace(whole, table=replace(whole.table, is_increment=True))


def perm(table: RouteTable, topic: str = "Orders") -> int:
    return table.topics.queues(topic)[NAME].perm


@pytest.fixture
def table() -> RouteTable:
    return RouteTable()


def test_a_group_that_elects_is_between_leaders_for_some_seconds_after_it_lost_one(table: RouteTable) -> None:
    table.register(claim("a:1", term=1, connection="a"), 0)
    table.register(claim("b:1", 2, term=1), 0)
    assert not table.is_between_leaders("Orders", 0)
    table.connections_closed({"a"}, 5000)
    table.register(claim("b:1", 3, term=1), 9000)
    assert (table.is_between_leaders("Orders", 14_999), table.is_between_leaders("T", 15_000)) == (True, False)
    table.register(claim("b:1", 0, term=2), 15_000)
    assert not table.is_between_leaders("Orders", 15_000)
    assert not table.is_between_leaders("unknown", 15_000)


def test_masters_and_slaves_elect_nobody(table: RouteTable) -> None:
    table.register(claim("a:1", connection="a"), 0)
    table.register(claim("b:1", 1), 0)
    table.connections_closed({"a"}, 5000)
    assert not table.is_between_leaders("Orders", 5000)


# ---- the election rule


def test_a_higher_term_takes_the_route_from_the_old_leader_at_once(table: RouteTable) -> None:
    table.register(claim("a:1", term=1), 0)
    table.register(claim("b:1", 2, term=1), 0)
    table.register(claim("b:1", 0, term=2), 1)
    assert addresses(table) == {0: "b:1"}
    table.register(claim("a:1", 1, term=2), 2)
    assert addresses(table) == {0: "b:1", 1: "a:1"}


def test_a_lower_term_never_takes_the_route_back(table: RouteTable) -> None:
    table.register(claim("b:1", term=2), 0)
    with pytest.raises(RegistrationRefusedError, match="in term 1, but this nameserver has seen term 2") as caught:
        table.register(claim("a:1", term=1), 1)
    assert caught.value.holder == "b:1"
    assert addresses(table) == {0: "b:1"}


def test_a_lower_term_is_refused_while_the_new_leader_is_away_too(table: RouteTable) -> None:
    table.register(claim("b:1", term=2), 0)
    table.connections_closed({"b:1"}, 1)
    with pytest.raises(RegistrationRefusedError) as caught:
        table.register(claim("a:1", term=1), 2)
    assert caught.value.holder is None
    assert addresses(table) == {}


def test_a_leader_that_holds_the_route_keeps_it_until_somebody_claims_it(table: RouteTable) -> None:
    table.register(claim("a:1", term=5), 0)
    table.register(claim("b:1", 2, term=6), 0)
    table.register(claim("a:1", term=5), 9_000)
    assert addresses(table) == {0: "a:1", 2: "b:1"}
    assert table.expire(15_000) != []
    assert addresses(table) == {0: "a:1"}


def test_a_refused_claimant_keeps_the_place_it_had(table: RouteTable) -> None:
    table.register(claim("b:1", term=2), 0)
    table.register(claim("a:1", 1, term=2), 0)
    with pytest.raises(RegistrationRefusedError):
        table.register(claim("a:1", 0, term=1), 0)
    assert addresses(table) == {0: "b:1", 1: "a:1"}


def test_two_leaders_of_one_term_are_two_groups_under_one_name(table: RouteTable) -> None:
    table.register(claim("a:1", term=3), 0)
    with pytest.raises(RegistrationRefusedError, match="a:1 holds it in the same term: do two groups use the same"):
        table.register(claim("b:1", term=3), 0)


def test_a_follower_of_a_later_term_does_not_refuse_the_leader_that_a_majority_follows(table: RouteTable) -> None:
    table.register(claim("c:1", 3, term=6), 0)  # cut off from the group, it entered a term in which nobody leads
    table.register(claim("a:1", term=5), 0)
    assert addresses(table) == {0: "a:1", 3: "c:1"}
    table.register(claim("b:1", term=7), 0)
    table.register(claim("a:1", 1, term=7), 0)
    with pytest.raises(RegistrationRefusedError, match="in term 6, but this nameserver has seen term 7"):
        table.register(claim("c:1", term=6), 0)


def test_a_claim_without_a_term_does_not_depose_a_leader_by_term(table: RouteTable) -> None:
    table.register(claim("a:1", term=3), 0)
    with pytest.raises(RegistrationRefusedError, match="claims broker id 0 by no term, but a:1 holds it by term 3"):
        table.register(claim("java:1"), 0)


def test_among_brokers_without_terms_the_last_one_wins_as_in_rocketmq(table: RouteTable) -> None:
    table.register(claim("a:1"), 0)
    table.register(claim("b:1"), 0)
    assert addresses(table) == {0: "b:1"}


def test_among_brokers_without_terms_a_lower_state_version_loses(table: RouteTable) -> None:
    table.register(claim("a:1", state_version=5), 0)
    with pytest.raises(RegistrationRefusedError, match="by state version 4, but a:1 has 5"):
        table.register(claim("b:1", state_version=4), 0)
    table.register(claim("b:1", state_version=5), 0)
    assert addresses(table) == {0: "b:1"}


def test_a_term_is_forgotten_a_minute_after_the_last_member_left(table: RouteTable) -> None:
    table.register(claim("b:1", term=9), 0)
    table.unregister([(CLUSTER, NAME, "b:1")], 1000)
    table.expire(1000 + TERM_MEMORY_MS)
    assert table.highest_term(NAME) == 9
    table.expire(1001 + TERM_MEMORY_MS)
    table.register(claim("a:1", term=1), 2000 + TERM_MEMORY_MS)
    assert addresses(table) == {0: "a:1"}


def test_a_member_that_returns_keeps_the_term_from_being_forgotten(table: RouteTable) -> None:
    table.register(claim("b:1", term=9), 0)
    table.unregister([(CLUSTER, NAME, "b:1")], 1000)
    table.register(claim("a:1", 1, term=9), 2000)
    table.expire(1001 + TERM_MEMORY_MS)
    assert table.highest_term(NAME) == 9


def test_members_of_a_wiped_group_do_not_keep_its_old_term_alive(table: RouteTable) -> None:
    table.register(claim("a:1", term=9), 0)
    table.register(claim("b:1", 2, term=9), 0)
    table.register(claim("b:1", 2, term=1), 1000)
    table.unregister([(CLUSTER, NAME, "a:1")], 2000)
    table.register(claim("b:1", 2, term=1), 30_000)
    with pytest.raises(RegistrationRefusedError, match="in term 2, but this nameserver has seen term 9"):
        table.register(claim("a:1", term=2), 31_000)
    table.register(claim("b:1", 2, term=1), 1000 + TERM_MEMORY_MS)
    table.expire(2001 + TERM_MEMORY_MS)
    table.register(claim("a:1", term=2), 2002 + TERM_MEMORY_MS)
    assert addresses(table) == {0: "a:1", 2: "b:1"}


# ---- places


def test_one_address_has_one_place(table: RouteTable) -> None:
    table.register(claim("a:1", 0), 0)
    table.register(claim("a:1", 3), 0)
    assert addresses(table) == {3: "a:1"}


def test_an_address_that_registers_under_another_name_leaves_the_old_one(table: RouteTable) -> None:
    table.register(claim("a:1"), 0)
    table.register(claim("b:1", 1), 0)
    table.register(claim("a:1", name="broker-b", topics={}), 0)
    assert addresses(table) == {1: "b:1"}
    group = table.group("broker-b")
    assert group is not None
    assert group.addresses == {0: "a:1"}


def test_a_broker_name_belongs_to_one_cluster(table: RouteTable) -> None:
    table.register(claim("a:1"), 0)
    with pytest.raises(RegistrationRefusedError, match="broker-a belongs to cluster DefaultCluster, not to Other"):
        table.register(claim("b:1", 1, cluster="Other"), 0)


def test_a_first_registration_with_one_topic_only_is_refused(table: RouteTable) -> None:
    with pytest.raises(RegistrationRefusedError, match="register broker failed"):
        table.register(claim("a:1", topics={"Orders": 6}), 0)
    table.register(claim("a:1", topics={}), 0)
    table.register(claim("a:1", topics={"Orders": 6}, version=2), 0)
    assert addresses(table) == {0: "a:1"}


def test_a_follower_is_told_its_leader(table: RouteTable) -> None:
    assert table.register(claim("a:1", ha_address="a:2"), 0).leader_address is None
    told = table.register(claim("b:1", 1), 0)
    assert (told.leader_address, told.leader_ha_address) == ("a:1", "a:2")


# ---- liveness


def test_a_closed_connection_drops_its_brokers_at_once_and_no_others(table: RouteTable) -> None:
    table.register(claim("a:1", connection="x"), 0)
    table.register(claim("b:1", 1, connection="y"), 0)
    dropped = table.connections_closed({"x"}, 1)
    assert [member.address for member in dropped] == ["a:1"]
    assert addresses(table) == {1: "b:1"}


def test_the_connection_that_counts_is_that_of_the_last_registration(table: RouteTable) -> None:
    table.register(claim("a:1", connection="old"), 0)
    table.register(claim("a:1", connection="new"), 0)
    assert table.connections_closed({"old"}, 1) == []
    assert addresses(table) == {0: "a:1"}


def test_silence_longer_than_promised_drops_a_broker(table: RouteTable) -> None:
    table.register(claim("a:1", heartbeat_timeout_ms=10_000), 0)
    table.register(claim("b:1", 1, heartbeat_timeout_ms=20_000), 0)
    assert table.expire(10_000) == []
    assert [member.address for member in table.expire(10_001)] == ["a:1"]
    assert addresses(table) == {1: "b:1"}


def test_a_heartbeat_puts_the_end_off(table: RouteTable) -> None:
    table.register(claim("a:1"), 0)
    table.heartbeat(CLUSTER, "a:1", 9_000)
    assert table.expire(19_000) == []
    assert len(table.expire(19_001)) == 1


def test_a_heartbeat_of_an_unknown_broker_asks_for_a_registration(table: RouteTable) -> None:
    with pytest.raises(UnknownBrokerError, match="no broker at a:1 is registered in cluster DefaultCluster"):
        table.heartbeat(CLUSTER, "a:1", 0)


def test_a_heartbeat_under_another_id_asks_for_a_registration(table: RouteTable) -> None:
    table.register(claim("a:1", 1), 0)
    with pytest.raises(UnknownBrokerError, match="registered as broker id 1, not 0"):
        table.heartbeat(CLUSTER, "a:1", 0, broker_id=0)


def test_a_deposed_leader_is_unknown_until_it_registers_as_follower(table: RouteTable) -> None:
    table.register(claim("a:1", term=1), 0)
    table.register(claim("b:1", term=2), 0)
    with pytest.raises(UnknownBrokerError):
        table.heartbeat(CLUSTER, "a:1", 0, broker_id=0)
    assert table.connections_closed({"a:1"}, 1) == []
    assert addresses(table) == {0: "b:1"}


def test_the_last_member_takes_name_topics_and_cluster_with_it(table: RouteTable) -> None:
    table.register(claim("a:1"), 0)
    assert table.unregister([(CLUSTER, NAME, "a:1")], 1)
    assert (list(table.groups), list(table.topics), table.clusters()) == ([], [], {})


def test_unregistering_a_stranger_changes_nothing(table: RouteTable) -> None:
    table.register(claim("a:1"), 0)
    assert not table.unregister([(CLUSTER, NAME, "b:1")], 1)
    assert not table.unregister([(CLUSTER, "broker-b", "a:1")], 1)
    assert addresses(table) == {0: "a:1"}


# ---- topics


def test_the_leaders_topics_are_taken_and_a_followers_are_not(table: RouteTable) -> None:
    table.register(claim("a:1", term=1), 0)
    table.register(claim("b:1", 2, term=1, topics={"Orders": 4, "Stray": 6, "TBW102": 7}, version=2), 0)
    assert perm(table) == 6
    assert table.route("Stray") is None


def test_a_follower_brings_back_what_a_restarted_nameserver_forgot_and_overwrites_nothing(table: RouteTable) -> None:
    table.register(claim("b:1", 2, term=4), 0)
    assert perm(table) == 6
    table.register(claim("b:1", 2, term=4, topics={"Orders": 4, "New": 6, "TBW102": 7}, version=9), 0)
    assert perm(table) == 6
    assert table.route("New") is not None


def test_without_a_leader_rocketmqs_prime_slave_speaks_for_the_group(table: RouteTable) -> None:
    table.register(claim("b:1", 1), 0)
    table.register(claim("b:1", 1, topics={"Orders": 4, "TBW102": 7}, version=2), 0)
    assert perm(table) == 4
    table.register(claim("old:1", 1, topics={"Old": 6, "Older": 6}, name="broker-b", acting_master=None), 0)
    assert table.route("Old") is None, "a broker too old for the rule does not speak"


def test_with_acting_masters_a_lost_master_leaves_topics_to_read_only(table: RouteTable) -> None:
    table.register(claim("a:1", acting_master=True), 0)
    table.register(claim("b:1", 1, acting_master=True), 0)
    table.connections_closed({"a:1"}, 1)
    assert perm(table) == 4
    table.register(claim("b:1", 1, acting_master=True, topics={"Orders": 6, "Fresh": 6}, version=2), 1)
    assert table.topics.queues("Fresh")[NAME].perm == 4


def test_an_unchanged_version_leaves_wiped_permissions_alone_and_a_new_one_restores_them(table: RouteTable) -> None:
    table.register(claim("a:1"), 0)
    assert table.topics.wipe_write(NAME) == 2
    table.register(claim("a:1"), 0)
    assert perm(table) == 4
    table.register(claim("a:1", version=2), 0)
    assert perm(table) == 6


def test_write_permission_is_given_back_as_reading_and_writing_and_nothing_else(table: RouteTable) -> None:
    table.register(claim("a:1"), 0)
    table.topics.wipe_write(NAME)
    assert table.topics.add_write(NAME) == 2
    assert (perm(table), perm(table, "TBW102")) == (6, 6)


def test_a_new_leader_brings_its_own_topics_even_in_a_version_it_had_as_follower(table: RouteTable) -> None:
    table.register(claim("a:1", term=1, version=1), 0)
    table.register(claim("b:1", 2, term=1, version=2, topics={"Orders": 4, "TBW102": 7}), 0)
    table.register(claim("b:1", 0, term=2, version=2, topics={"Orders": 4, "TBW102": 7}), 0)
    assert perm(table) == 4


def test_topics_that_a_registration_does_not_name_stay_unless_told_otherwise(table: RouteTable) -> None:
    table.register(claim("a:1"), 0)
    table.register(claim("a:1", topics={"New": 6, "Newer": 6}, version=2), 0)
    assert set(table.topics) == {"TBW102", "Orders", "New", "Newer"}
    table.delete_missing_topics = True
    table.register(claim("a:1", topics={"Single": 6}, version=3), 0)
    assert "Orders" in table.topics, "one topic is an increment"
    table.register(claim("a:1", topics={"New": 6, "Newer": 6}, version=4), 0)
    assert set(table.topics) == {"New", "Newer"}


def test_a_change_tells_of_some_topics_and_leaves_the_others(table: RouteTable) -> None:
    table.delete_missing_topics = True
    table.register(claim("a:1"), 0)
    table.register(increment("a:1", {"New": 6, "Newer": 4}, version=2), 0)
    assert set(table.topics) == {"TBW102", "Orders", "New", "Newer"}
    assert table.data_version(CLUSTER, "a:1") == DataVersion(2, 1, 0)


def test_a_change_is_taken_only_from_who_has_registered_whole_under_that_id(table: RouteTable) -> None:
    with pytest.raises(RegistrationRefusedError, match="id 0 of broker-a must send a whole registration before"):
        table.register(increment("a:1", {"New": 6, "Newer": 6}), 0)
    table.register(claim("a:1", 1), 0)
    with pytest.raises(RegistrationRefusedError, match="must send a whole registration"):
        table.register(increment("a:1", {"New": 6, "Newer": 6}), 0)
    assert addresses(table) == {1: "a:1"}


def test_a_broker_that_comes_back_restores_its_topics_even_in_the_version_it_had(table: RouteTable) -> None:
    table.register(claim("a:1", acting_master=True), 0)
    table.register(claim("b:1", 1, acting_master=True), 0)
    table.connections_closed({"a:1"}, 1)
    assert perm(table) == 4, "nobody leads"
    table.register(claim("a:1", acting_master=True), 2)
    assert perm(table) == 6


# ---- acting masters


def test_the_smallest_id_acts_as_master_where_it_may_and_the_topic_takes_no_sends(table: RouteTable) -> None:
    table.register(claim("a:1", acting_master=True), 0)
    table.register(claim("b:1", 1, acting_master=True), 0)
    table.register(claim("c:1", 2, acting_master=True), 0)
    assert acting_addresses(table) == {0: "a:1", 1: "b:1", 2: "c:1"}
    table.connections_closed({"a:1"}, 1)
    assert acting_addresses(table) == {0: "b:1", 2: "c:1"}
    assert addresses(table) == {1: "b:1", 2: "c:1"}, "who really leads is nobody"
    table.topics.add_write(NAME)
    assert acting_addresses(table) == {1: "b:1", 2: "c:1"}, "a topic that takes sends has no acting master"


def test_nobody_acts_where_brokers_do_not_wish_it_or_among_themselves(table: RouteTable) -> None:
    sync_topic = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    table.register(claim("a:1", 1, topics={"Orders": 4, sync_topic: 1}), 0)
    assert acting_addresses(table) == {1: "a:1"}
    table.register(claim("a:1", 1, topics={"Orders": 4, sync_topic: 1}, acting_master=True), 0)
    assert acting_addresses(table) == {0: "a:1"}
    assert acting_addresses(table, sync_topic) == {1: "a:1"}


def test_who_comes_under_a_smaller_id_is_told_to_the_others(table: RouteTable) -> None:
    table.register(claim("b:1", 1), 0)
    assert table.take_min_changes() == [], "as upstream: no id at all counts as 0"
    table.register(claim("a:1", 0, ha_address="a:2"), 0)
    assert table.take_min_changes() == [MinBrokerChange(NAME, 0, "a:1", None, "a:2", ("b:1",))]
    table.register(claim("c:1", 2), 0)
    table.register(claim("a:1", 0), 1)
    assert table.take_min_changes() == []


def test_who_leaves_under_the_smallest_id_is_told_to_the_others_where_one_may_act_for_it(table: RouteTable) -> None:
    for broker_id, address in enumerate(("a:1", "b:1", "c:1")):
        table.register(claim(address, broker_id, acting_master=True), 0)
    table.connections_closed({"a:1"}, 1)
    assert table.take_min_changes() == [MinBrokerChange(NAME, 1, "b:1", "a:1", None, ("b:1", "c:1"))]
    table.unregister([(CLUSTER, NAME, "c:1"), (CLUSTER, NAME, "b:1")], 1)
    assert table.take_min_changes() == [], "nobody is left to be told"
    table.register(claim("x:1", 0), 2)
    table.register(claim("y:1", 1), 2)
    table.connections_closed({"x:1"}, 3)
    assert table.take_min_changes() == [], "nobody acts for a master here"


def test_a_topic_is_deleted_wholly_or_in_one_cluster(table: RouteTable) -> None:
    table.register(claim("a:1"), 0)
    table.register(claim("b:1", name="broker-b", cluster="Other"), 0)
    table.delete_topic("Orders", "Other")
    assert [queue.broker_name for queue in table.topics.queues("Orders").values()] == [NAME]
    table.delete_topic("Orders", "Nowhere")
    assert table.route("Orders") is not None
    table.delete_topic("Orders")
    table.delete_topic("Orders")
    assert table.route("Orders") is None


def test_a_topic_is_registered_on_known_brokers_only_and_all_or_nothing(table: RouteTable) -> None:
    table.register(claim("a:1"), 0)
    with pytest.raises(UnknownBrokerError, match="topic T: broker name stranger is not registered"):
        table.register_topic("T", [QueueData(NAME, 1, 1, 6), QueueData("stranger", 1, 1, 6)])
    assert table.route("T") is None
    table.register_topic("T", [QueueData(NAME, 1, 1, 6)])
    assert addresses(table, "T") == {0: "a:1"}


def test_lists_by_cluster_and_unit(table: RouteTable) -> None:
    table.register(claim("a:1"), 0)
    table.register(claim("b:1", name="broker-b", cluster="Other", topics={"There": 6, "Orders": 6}), 0)
    assert table.clusters() == {CLUSTER: [NAME], "Other": ["broker-b"]}
    assert table.topics_of_cluster("Other") == ["Orders", "There"]
    assert table.topics_of_cluster("Nowhere") == []
    table.register_topic("Unit", [QueueData(NAME, 1, 1, 6, sys_flag=1)])
    assert table.topics.with_flag(lambda flag: bool(flag & 1)) == ["Unit"]


# ---- versions of routes


def test_a_routes_version_changes_exactly_when_clients_see_a_change(table: RouteTable) -> None:
    versions = [table.version("Orders")]
    steps: list[Callable[[], object]] = [
        lambda: table.register(claim("a:1", term=1), 0),
        lambda: table.register(claim("b:1", 2, term=1), 0),
        lambda: table.register(claim("b:1", 0, term=2), 0),
        lambda: table.topics.wipe_write(NAME),
        lambda: table.connections_closed({"b:1"}, 1),
        lambda: table.register(claim("b:1", 0, term=2), 0),
        lambda: table.delete_topic("Orders"),
        lambda: table.register(claim("b:1", 0, term=2, version=2), 0),
    ]
    for step in steps:
        step()
        versions.append(table.version("Orders"))
    assert versions.count(0) == 3, "unknown at first, with no broker left, and deleted"
    known = [version for version in versions if version]
    assert known == sorted(set(known)), "never the same twice"


def test_registering_again_and_heartbeats_change_no_version(table: RouteTable) -> None:
    table.register(claim("a:1"), 0)
    table.register(claim("b:1", name="broker-b", topics={}), 0)
    version, revision = table.version("Orders"), table.revision
    table.register(claim("a:1"), 1)
    table.heartbeat(CLUSTER, "a:1", 2)
    assert (table.version("Orders"), table.revision) == (version, revision)
    route = table.route("Orders")
    assert route is not None
    assert route.version == version


def test_another_brokers_change_leaves_a_topics_version_alone(table: RouteTable) -> None:
    table.register(claim("a:1"), 0)
    version = table.version("Orders")
    table.register(claim("b:1", name="broker-b", topics={}), 0)
    assert table.version("Orders") == version


@pytest.mark.parametrize("then", ["nothing", "delete", "new version", "same again", "leave"])
def test_all_topics_of_a_large_registration_count_at_once_though_they_are_entered_some_at_a_time(
    table: RouteTable, then: str
) -> None:
    topics = {f"topic-{number}": 6 for number in range(3500)}
    table.register(claim("other:1", name="broker-b", topics={"topic-3499": 6, "topic-7": 6}), 0)
    before = table.version("topic-3499")
    table.register(claim("a:1", topics=topics), 0)
    assert len(table.topics) < 3500
    seen = table.version("topic-3499")
    assert seen > before
    assert set(table.topics.queues("topic-3499")) == {NAME, "broker-b"}
    if then == "delete":
        table.delete_topic("topic-3499")
    elif then == "new version":
        table.register(claim("a:1", topics=topics | {"topic-3499": 4}, version=2), 0)
    elif then == "same again":
        table.register(claim("a:1", topics=topics), 0)
    elif then == "leave":
        table.unregister([(CLUSTER, NAME, "a:1")], 0)
    assert len(table.topics) <= 2002, "a change that comes meanwhile does not finish the one before in one step"
    steps = 0
    while table.topics.is_changing:
        table.topics.change_some()
        steps += 1
    assert steps <= (6 if then in {"new version", "same again"} else 4)
    route = table.route("topic-3499")
    if then == "delete":
        assert route is None
        assert len(table.topics) == table.topics.entry_count - 1 == 3499
        return
    assert route is not None
    perms = {queue.broker_name: queue.perm for queue in route.queues}
    if then == "leave":
        assert perms == {"broker-b": 6}
        assert set(table.topics) == {"topic-3499", "topic-7"}
        return
    assert perms == {"broker-b": 6, NAME: 4 if then == "new version" else 6}
    assert (route.version > seen) == (then == "new version")
    assert set(table.topics) == set(topics) == set(table.topics.of_broker(NAME))
    assert table.topics.entry_count == 3502


def test_the_revision_grows_when_a_topic_goes_so_that_clients_which_wait_hear_of_it(table: RouteTable) -> None:
    table.register(claim("a:1", term=1), 0)
    revision = table.revision
    table.delete_topic("Orders")
    assert table.route("Orders") is None and table.revision > revision
