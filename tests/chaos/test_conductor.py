"""The conductor: a step is recorded with its proof, one without effect ends the drill, and all is mended always."""

import asyncio
from collections.abc import Sequence

import pytest

from chaos.drills.catalogue import CATALOGUE
from chaos.drills.conductor import inject
from chaos.drills.record import DrillRecord, Injection
from chaos.fabric.contract import ClusterView, NodeDigest, NodeView, Verb
from node.errors import CommandError


class FabricOfText:
    """A fabric that notes what it is told; `broken` verbs fail."""

    namesrv = "h:1"
    mode = "raft"
    verbs = frozenset(Verb)

    def __init__(self, broken: Sequence[Verb] = ()) -> None:
        self.broken = broken
        self.told: list[str] = []

    async def act(self, verb: Verb, *words: str) -> str:
        self.told.append(f"{verb} {' '.join(words)}")
        if verb in self.broken:
            raise CommandError(f"{verb} had no effect")
        return f"{verb} was seen"

    async def inspect(self) -> ClusterView:
        nodes = (NodeView("n0", "h:2", "master", "up"), NodeView("n1", "h:3", "slave", "up"))
        return ClusterView(nodes, "namesrv")

    async def mend(self) -> None:
        self.told.append("mend")

    async def digests(self) -> Sequence[NodeDigest]:
        return []


async def injected(fabric: FabricOfText, hold_s: float = 0.0) -> tuple[Injection, DrillRecord]:
    record = DrillRecord(0.0)
    return await inject(fabric, CATALOGUE["kill-leader"], hold_s, record, lambda text: None), record


async def test_steps_are_recorded_with_their_proofs() -> None:
    fabric = FabricOfText()
    injection, record = await injected(fabric)
    assert fabric.told == ["kill n0", "start n0", "mend"]
    assert [event.proof for event in injection.events] == ["kill was seen", "start was seen"]
    assert (injection.leader_before, injection.leader_after, injection.trouble) == ("n0", "n0", "")
    assert record.injections == [injection]


async def test_a_fault_without_effect_ends_the_drill_and_is_said() -> None:
    fabric = FabricOfText(broken=[Verb.KILL])
    injection, _ = await injected(fabric)
    assert fabric.told == ["kill n0", "mend"]
    assert injection.trouble == "kill had no effect"


async def test_a_cancelled_drill_is_mended() -> None:
    fabric = FabricOfText()
    task = asyncio.ensure_future(injected(fabric, hold_s=60.0))
    while not fabric.told:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fabric.told == ["kill n0", "mend"]


async def test_a_verb_that_is_under_way_ends_before_everything_is_mended() -> None:
    class SlowFabric(FabricOfText):
        async def act(self, verb: Verb, *words: str) -> str:
            self.told.append("begins")
            await asyncio.sleep(0.05)
            return await super().act(verb, *words)

    fabric = SlowFabric()
    task = asyncio.ensure_future(injected(fabric, hold_s=60.0))
    while not fabric.told:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fabric.told == ["begins", "kill n0", "mend"]
