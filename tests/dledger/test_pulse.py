"""A leader that cannot serve, by the clock that the test sets."""

from types import SimpleNamespace
from typing import Any, cast

from dledger.core.roles import RaftRole
from dledger.pulse import Pulse


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
    log = SimpleNamespace(care=SimpleNamespace(damages=[], first_blocking=None))
    others = dict.fromkeys(("config", "flusher", "batches", "peers", "copies", "checkpointer", "notices", "no_quorum"))
    pulse = Pulse(**cast(Any, others | {"node": node, "log": log}))
    pulse.why_full = lambda: why[0] if why else None
    pulse._care(100.0)
    pulse._care(101.9)
    why.clear()
    pulse._care(102.0)
    why.append("the disk is full again")
    pulse._care(103.0)
    pulse._care(104.9)
    assert node.transfers == 0
    pulse._care(105.1)
    assert node.transfers == 1
