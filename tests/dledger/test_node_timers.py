"""A leader that cannot serve, by the clock that the test sets."""

from types import SimpleNamespace
from typing import Any, cast

from dledger.core.roles import RaftRole
from dledger.node_timers import NodeTimers


class Node:
    """A leader; counts its hand-overs."""

    def __init__(self) -> None:
        self.soft_state = SimpleNamespace(role=RaftRole.LEADER)
        self.transfers = 0

    def on_room(self, *, is_full: bool) -> None: ...

    def transfer(self) -> str:
        self.transfers += 1
        return "n1"


async def test_only_a_leader_that_cannot_serve_for_two_seconds_on_end_hands_over() -> None:
    node, why = Node(), ["the disk is full"]
    log = SimpleNamespace(integrity=SimpleNamespace(damages=[], first_blocking=None))
    others = dict.fromkeys(("config", "flusher", "batches", "peers", "copies", "checkpointer", "notices", "no_quorum"))
    timers = NodeTimers(**cast(Any, others | {"node": node, "log": log}))
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
