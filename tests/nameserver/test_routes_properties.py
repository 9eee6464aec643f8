"""Whatever brokers do, in whatever order: the route table's promises hold."""

from hypothesis import given
from hypothesis import strategies as st

from nameserver.core.election import RegistrationRefusedError
from nameserver.core.model import LEADER_ID
from nameserver.core.routes import RouteTable

from .test_routes import CLUSTER, NAME, claim

ADDRESSES = ("a:1", "b:1", "c:1")

steps = st.lists(
    st.one_of(
        st.tuples(st.just("register"), st.sampled_from(ADDRESSES), st.integers(0, 3), st.integers(1, 5)),
        st.tuples(st.just("close"), st.sampled_from(ADDRESSES), st.just(0), st.just(0)),
        st.tuples(st.just("leave"), st.sampled_from(ADDRESSES), st.just(0), st.just(0)),
        st.tuples(st.just("sleep"), st.just(""), st.integers(0, 8_000), st.just(0)),
    ),
    max_size=30,
)


@given(steps)
def test_no_lower_term_takes_the_route_and_every_address_has_one_place(steps: list[tuple[str, str, int, int]]) -> None:
    table, now_ms, highest = RouteTable(), 0, 0
    for action, address, number, term in steps:
        before = leader_of(table)
        version = table.version("Orders")
        if action == "register":
            try:
                table.register(claim(address, number, term=term), now_ms)
            except RegistrationRefusedError:
                assert leader_of(table) == before
            else:
                if number == LEADER_ID and address != before:
                    assert term >= highest, "id 0 changed hands by a term below one by which it was taken"
                if number == LEADER_ID:
                    highest = max(highest, term)
        elif action == "close":
            table.connections_closed({address}, now_ms)
        elif action == "leave":
            table.unregister([(CLUSTER, NAME, address)], now_ms)
        else:
            now_ms += number
            table.expire(now_ms)
            highest = min(highest, table.highest_term(NAME))  # forgotten a minute after the last member left
        check_places(table)
        if leader_of(table) != before:
            assert table.version("Orders") != version, "a client that waits must hear of it"


def leader_of(table: RouteTable) -> str | None:
    group = table.group(NAME)
    leader = group.leader if group else None
    return leader.address if leader else None


def check_places(table: RouteTable) -> None:
    group = table.group(NAME)
    places = list(group.addresses.values()) if group else []
    assert len(places) == len(set(places)), "one address, one place"
    assert bool(places) == (table.route("Orders") is not None) == bool(table.clusters())
    for address in ADDRESSES:
        assert (table.data_version(CLUSTER, address) is not None) == (address in places)
