"""The real Java broker and ours take turns on one store directory, and each goes on exactly where the other was."""

from tests.java_store.conftest import TurnOrder, turn_orders
from tests.java_store.nodes import Seat
from tests.java_store.relay import Relay


@turn_orders(
    "java:stop ours:kill java:kill ours:stop",
    [
        "java:kill ours:stop java:stop ours:kill java:stop",
        "ours:stop java:stop ours:stop java:stop ours:stop",
        "ours:kill java:kill ours:kill java:kill ours:kill",
        "java:kill java:kill ours:kill ours:kill java:kill ours:kill",
    ],
)
def test_each_broker_finds_all_that_the_other_left_and_goes_on(seat: Seat, order: TurnOrder) -> None:
    relay = Relay()
    for who, how in order:
        seat.start(who)
        seat.await_writable()
        relay.turn(who, seat)
        relay.end(seat, how)
