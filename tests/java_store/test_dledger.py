"""Three directories of a real DLedger group go on as a Raft group of ours, and back, without an entry changed."""

from tests.java_store.conftest import TurnOrder, turn_orders
from tests.java_store.nodes import Group
from tests.java_store.relay import Relay


@turn_orders(
    "java:kill ours:kill java:kill",
    [
        "java:kill ours:stop java:kill ours:kill java:stop ours:stop",
        "java:stop ours:stop java:stop ours:stop",
        "ours:kill java:kill ours:kill java:kill",
        "ours:stop java:stop ours:kill java:stop ours:stop",
    ],
)
def test_a_group_of_either_kind_goes_on_from_the_other_s_directories(group: Group, order: TurnOrder) -> None:
    relay = Relay()
    for who, how in order:
        group.start(who)
        leader = group.await_leader()
        relay.turn(who, leader)
        relay.end(leader, how, group)
