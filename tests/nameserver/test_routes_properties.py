"""Whatever brokers do, in whatever order: the route table's promises hold."""

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.remoting.route import LEADER_ID
from nameserver.core.election import RegistrationRefusedError
from nameserver.core.routes import RouteTable

from .test_routes import CLUSTER, NAME, claim

ADDRESSES = ("a:1", "b:1", "c:1")
SILENCE_MS = 10_000  # what `claim` promises
MEMORY_MS = 60_000

steps = st.lists(
    st.one_of(
        st.tuples(st.just("register"), st.sampled_from(ADDRESSES), st.integers(0, 3), st.integers(1, 5)),
        st.tuples(st.just("close"), st.sampled_from(ADDRESSES), st.just(0), st.just(0)),
        st.tuples(st.just("leave"), st.sampled_from(ADDRESSES), st.just(0), st.just(0)),
        st.tuples(st.just("sleep"), st.just(""), st.integers(0, 8_000) | st.integers(59_000, 61_000), st.just(0)),
    ),
    max_size=30,
)


class Model:
    """Who holds which id by which term, and by which term id 0 was last taken, in the words of the election rule."""

    def __init__(self) -> None:
        self.members: dict[str, tuple[int, int, int]] = {}  # address: id, term, when it was last heard
        self.highest = 0
        self.absent_since: int | None = None  # since when no member is of the highest term or a later one

    def holder(self, number: int) -> str | None:
        """The address that has the id."""
        return next((address for address, member in self.members.items() if member[0] == number), None)

    def may_register(self, address: str, number: int, term: int) -> bool:
        """Whether the claim is to be taken."""
        holder = self.holder(number)
        if number != LEADER_ID or holder == address:
            return True
        return term >= self.highest and (holder is None or self.members[holder][1] != term)

    def register(self, address: str, number: int, term: int, now_ms: int) -> None:
        """The claim was taken."""
        self.members.pop(self.holder(number) or address, None)
        self.members[address] = number, term, now_ms
        if number == LEADER_ID:
            self.highest = max(self.highest, term)
        self._look(now_ms)

    def drop(self, address: str, now_ms: int) -> None:
        """The member left, if it was there."""
        self.members.pop(address, None)
        self._look(now_ms)

    def expire(self, now_ms: int) -> None:
        """Time passed."""
        if self.absent_since is not None and now_ms - self.absent_since > MEMORY_MS:
            self.highest, self.absent_since = 0, None
        for address, (_, _, heard_ms) in list(self.members.items()):
            if heard_ms + SILENCE_MS < now_ms:
                self.drop(address, now_ms)

    def _look(self, now_ms: int) -> None:
        if max((term for _, term, _ in self.members.values()), default=0) >= self.highest:
            self.absent_since = None
        elif self.absent_since is None:
            self.absent_since = now_ms


@given(steps)
def test_ids_and_remembered_terms_are_those_of_a_model_and_waiting_clients_hear_of_a_new_leader(
    steps: list[tuple[str, str, int, int]],
) -> None:
    table, model, now_ms = RouteTable(), Model(), 0
    for action, address, number, term in steps:
        before = leader_of(table)
        version = table.version("Orders")
        if action == "register":
            is_welcome = model.may_register(address, number, term)
            try:
                table.register(claim(address, number, term=term), now_ms)
            except RegistrationRefusedError:
                assert not is_welcome
            else:
                assert is_welcome
                model.register(address, number, term, now_ms)
        elif action == "close":
            table.connections_closed({address}, now_ms)
            model.drop(address, now_ms)
        elif action == "leave":
            table.unregister([(CLUSTER, NAME, address)], now_ms)
            model.drop(address, now_ms)
        else:
            now_ms += number
            table.expire(now_ms)
            model.expire(now_ms)
        check_places(table)
        group = table.group(NAME)
        assert (group.addresses if group else {}) == {member[0]: at for at, member in model.members.items()}
        assert table.highest_term(NAME) == model.highest
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
