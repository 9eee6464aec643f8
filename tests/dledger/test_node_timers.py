"""A leader that cannot serve, by the clock that the test sets."""

from types import SimpleNamespace
from typing import Any, cast

from dledger.core.roles import RaftRole
from dledger.node_timers import NodeTimers

ENTRY = SimpleNamespace(index=7)
"""A damaged entry."""


class Node:
    """A leader; counts its hand-overs."""

    def __init__(self) -> None:
        self.soft_state = SimpleNamespace(role=RaftRole.LEADER)
        self.transfers = 0
        self.is_fit = True
        self.needed = 7

    def needed_index(self) -> int:
        return self.needed

    def on_fitness(self, *, is_fit: bool) -> None:
        self.is_fit = is_fit

    def transfer(self) -> str:
        self.transfers += 1
        return "n1"


def timers_of(node: Node, damages: list[Any], *, is_blocking: bool = False) -> NodeTimers:
    integrity = SimpleNamespace(damages=damages, first_blocking=7 if is_blocking else None)
    copies = SimpleNamespace(ask=lambda peer_id: None)
    peers = SimpleNamespace(joined=("n1", "n2"))
    others = dict.fromkeys(("config", "flusher", "batches", "checkpointer", "notices", "no_quorum"))
    log = SimpleNamespace(integrity=integrity)
    return NodeTimers(**cast(Any, others | {"node": node, "log": log, "copies": copies, "peers": peers}))


async def test_only_a_leader_that_cannot_serve_for_two_seconds_on_end_hands_over() -> None:
    node, why = Node(), ["the disk is full"]
    timers = timers_of(node, [])
    timers.why_full = lambda: why[0] if why else None
    timers._repair_or_hand_over(100.0)
    timers._repair_or_hand_over(101.9)
    why.clear()
    timers._repair_or_hand_over(102.0)
    why.append("the disk is full again")
    timers._repair_or_hand_over(103.0)
    timers._repair_or_hand_over(104.9)
    assert node.transfers == 0
    timers._repair_or_hand_over(105.1)
    assert node.transfers == 1


async def test_a_leader_that_gets_no_copy_of_an_entry_that_was_found_damaged_later_hands_over_once_a_minute() -> None:
    node, damages = Node(), [ENTRY]
    timers = timers_of(node, damages)
    for second in range(60):
        timers._repair_or_hand_over(100.0 + second)
    assert node.transfers == 1
    for second in range(60, 70):
        timers._repair_or_hand_over(100.0 + second)
    assert node.transfers == 2
    damages.clear()
    for second in range(70, 200):
        timers._repair_or_hand_over(100.0 + second)
    assert node.transfers == 2


async def test_a_leader_does_not_hand_over_for_damage_that_was_found_later_while_no_member_lacks_the_entry() -> None:
    node = Node()
    timers = timers_of(node, [ENTRY])
    node.needed = 8
    for second in range(10):
        timers._repair_or_hand_over(100.0 + second)
    assert node.transfers == 0
    node.needed = 7
    for second in range(10, 20):
        timers._repair_or_hand_over(100.0 + second)
    assert node.transfers == 1


async def test_a_leader_that_may_not_serve_what_follows_a_damage_hands_over_whenever_it_leads() -> None:
    node = Node()
    timers = timers_of(node, [ENTRY], is_blocking=True)
    for second in range(10):
        timers._repair_or_hand_over(100.0 + second)
    assert node.transfers > 2


async def test_a_node_that_handed_over_with_damage_does_not_take_over_until_it_is_repaired_or_for_ten_minutes() -> None:
    node, damages = Node(), [ENTRY]
    timers = timers_of(node, damages)
    timers._repair_or_hand_over(100.0)
    timers._repair_or_hand_over(103.0)
    assert (node.transfers, node.is_fit) == (1, True)
    node.soft_state.role = RaftRole.FOLLOWER
    fits = []
    for now in (104.0, 702.0, 703.0):
        timers._repair_or_hand_over(now)
        fits.append(node.is_fit)
    assert fits == [False, False, True]
    timers._handed_over_at = 704.0
    damages.clear()
    timers._repair_or_hand_over(705.0)
    assert node.is_fit
