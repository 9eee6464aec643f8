"""Carries out the steps of drills on a fabric, one after another, and at the end undoes every fault in any case."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from chaos.drills.catalogue import Drill, Step
from chaos.drills.record import DrillRecord, Event, Injection
from chaos.fabric.contract import ClusterView, Fabric, Verb
from ledgermq.history import Op, Operation
from node.errors import CommandError

_POLL_S = 0.1
_LEADER_LIMIT_S = 20.0
_WHOLE_LIMIT_S = 60.0

Tell = Callable[[str], None]
"""Shows one event to the user."""


async def inject(fabric: Fabric, drill: Drill, hold_s: float, record: DrillRecord, tell: Tell) -> Injection:
    """Carry out a drill's steps, and wait until the cluster is whole again.

    A step that fails ends the drill; the injection says why. At the end everything is repaired, also when this is
    cancelled.
    """
    injection = Injection(drill, time.monotonic(), hold_s=hold_s)
    record.injections.append(injection)
    try:
        view = await await_leader(fabric)
        injection.leader_before, injection.begin_s = view.leader, time.monotonic()
        steps = drill.plan(view, hold_s)
        if missing := sorted({step.verb for step in steps} - fabric.verbs):
            raise CommandError(f"this cluster cannot be told to {', '.join(missing)}")
        for step in steps:
            await _carry_out(fabric, step, injection, record, tell)
    except CommandError as error:
        injection.trouble = str(error)
        tell(f"{drill.name}: {error}")
    finally:
        injection.end_s = time.monotonic()
        record.tell(Operation(Op.FAULT, injection.end_s, name=f"{drill.name}: mended"))
        await asyncio.shield(fabric.mend())
    with contextlib.suppress(CommandError):
        view = await await_view(fabric, lambda view: view.is_whole, _WHOLE_LIMIT_S, "not whole")
        injection.leader_after = view.leader
    if injection.leader_after is None:
        injection.trouble = injection.trouble or f"the cluster was not whole {_WHOLE_LIMIT_S:g} s after the repair"
    return injection


async def await_leader(fabric: Fabric) -> ClusterView:
    """Return the first view of the cluster that has a leader.

    Raises:
        CommandError: it has none within 20 s.
    """
    return await await_view(fabric, lambda view: view.leader is not None, _LEADER_LIMIT_S, "there is no leader")


async def await_view(
    fabric: Fabric, condition: Callable[[ClusterView], bool], limit_s: float, complaint: str
) -> ClusterView:
    """Return the first view of the cluster for which `condition` holds.

    Raises:
        CommandError: none within `limit_s` seconds; the text has `complaint`.
    """
    deadline = time.monotonic() + limit_s
    while True:
        try:
            if condition(view := await fabric.inspect()):
                return view
            failure = complaint
        except CommandError as error:
            failure = f"{complaint}: {error}"
        if time.monotonic() > deadline:
            raise CommandError(f"{failure} within {limit_s:g} s")
        await asyncio.sleep(_POLL_S)


async def _undivided(verb: Coroutine[Any, Any, str]) -> str:
    """Carry out a verb to its end, even if this is cancelled meanwhile: half a verb cannot be undone."""
    task = asyncio.ensure_future(verb)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


async def _carry_out(fabric: Fabric, step: Step, injection: Injection, record: DrillRecord, tell: Tell) -> None:
    await asyncio.sleep(step.after_s)
    if step.when_whole:
        await await_view(fabric, lambda view: view.is_whole, _WHOLE_LIMIT_S, "the cluster is not whole again")
    begin_s = time.monotonic()
    record.tell(Operation(Op.FAULT, begin_s, name=" ".join((step.verb, *step.words))))
    proof = await _undivided(fabric.act(step.verb, *step.words))
    injection.events.append(Event(begin_s, time.monotonic(), step, proof))
    if step.verb is Verb.RESUME and (stalls := injection.stalls()):
        proof += f"; it stood still for {stalls[-1][1] - stalls[-1][0]:.2f} s"
        injection.events[-1] = replace(injection.events[-1], proof=proof)
    tell(f"{step.verb} {' '.join(step.words)}: {proof}")
