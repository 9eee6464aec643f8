"""The course of a run: traffic, quiet, drills, quiet, drain, judge.

send     |-----------X fault----^ repair-----|   drain, compare logs
receive  |-------------------------------------|
sample   |-------------------------------------|   the cluster's routes, twice a second
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chaos.checkers.operations import Judge
from chaos.drills.background import in_background
from chaos.drills.conductor import inject
from chaos.drills.members import Members
from chaos.drills.record import DrillRecord, Sample
from chaos.drills.schedule import Planned
from chaos.drills.traffic import READ_LIMIT_S, gone_from_log, still_in_log, traffic
from chaos.drills.verdict import DrillResult
from chaos.drills.watchdog import Watchdog
from chaos.drills.workloads import STEADY, Workload
from chaos.fabric.contract import ClusterView, Fabric, NodeDigest
from ledgermq.history import Op, Operation
from node.errors import CommandError

_SAMPLE_S = 0.5
_STEADY_S = 1.0
_STEADY_LIMIT_S = 20.0
_BEGIN_LIMIT_S = 90.0
_DRILL_LIMIT_S = 180.0
_DRAIN_LIMIT_S = 120.0
_CHECK_LIMIT_S = 60.0
_CLOSE_LIMIT_S = 30.0
_DIGEST_LIMIT_S = 90.0


@dataclass(frozen=True, slots=True)
class Order:
    """The order for a run.

    Attributes:
        name: of the drill or campaign, for the result.
        drills: carried out one after another; may be endless. A drill whose time comes during another one waits for it.
        limit_s: seconds from the start of the traffic after which no drill begins.
        rate: messages a second.
        quiet_s: seconds of steady traffic before, between and after faults.
        history: file to which all operations, and the producer's outcomes, are appended; None: none.
        repeat: the command that repeats the run.
        expected_s: expected length of the traffic in seconds, if known.
        client: the producer and consumer: `python`, or `java` for RocketMQ's.
    """

    name: str
    drills: Iterable[Planned]
    limit_s: float
    rate: float
    quiet_s: float
    history: str | None
    repeat: str
    expected_s: float
    workload: Workload = STEADY
    client: str = "python"


class Display(Protocol):
    """Shows a run while it is going on."""

    def event(self, text: str) -> None:
        """Show a step that was carried out, or a phase that begins."""

    def sampled(self, record: DrillRecord, view: ClusterView | None) -> None:
        """Show the state, twice a second; `view` is None if the cluster does not answer."""


async def run_drills(fabric: Fabric, order: Order, display: Display, watchdog: Watchdog) -> DrillResult:
    """Run drills on a writable cluster, and return the result. The watchdog is told of each stage with its limit.

    Raises:
        CommandError: the cluster could not be used at all. Broken promises are part of the result.
    """
    topic = f"drill-{secrets.token_hex(4)}"
    with contextlib.ExitStack() as closing:
        judge = closing.enter_context(contextlib.closing(Judge()))
        file = closing.enter_context(Path(order.history).open("ab")) if order.history else None

        def tell(operation: Operation) -> None:
            judge.feed(operation)
            if file is not None:
                file.write(operation.line())
                file.flush()  # the producer appends to the same file

        record = DrillRecord(time.monotonic(), tell)
        tell(Operation(Op.RUN, record.began_s, name=order.workload.name, queue=fabric.mode))
        found, gone = await _traffic(fabric, order, topic, record, display, watchdog)
        findings = judge.findings(found, gone)
    display.event("comparing the logs of all nodes")
    watchdog.stage("the digests of the logs", _DIGEST_LIMIT_S)
    digests = await _digests(fabric, display.event)
    seconds = time.monotonic() - record.began_s
    return DrillResult(order.name, fabric.mode, order.repeat, record, findings, digests, seconds, order.workload.name)


async def _traffic(
    fabric: Fabric, order: Order, topic: str, record: DrillRecord, display: Display, watchdog: Watchdog
) -> tuple[frozenset[int], frozenset[int]]:
    """Run the drills under traffic; return which undelivered messages are in the log, and which delivered are gone."""
    watchdog.stage("the topic, the clients and the first acknowledgements", _BEGIN_LIMIT_S + order.quiet_s)
    async with (
        traffic(fabric.namesrv, topic, order.rate, record, order.history, order.workload, order.client) as clients,
        in_background(Members(fabric.namesrv, topic, order.workload, record, order.client).run()),
        in_background(_watch(fabric, record, display)),
    ):
        async with in_background(clients.send_forever()):
            await _steady(record)
            await _inject_all(fabric, order, record, display, watchdog)
        display.event("no more sends; waiting until everything is consumed")
        limit_s = _DRAIN_LIMIT_S + order.workload.progress_s
        watchdog.stage("the answers of sends, and the delivery of what was acknowledged", limit_s)
        if undone := await clients.drained():
            display.event(f"not drained: {undone}")
        watchdog.stage(
            f"the reading of {record.undelivered_count:,} undelivered and the last messages",
            _CHECK_LIMIT_S + READ_LIMIT_S,
        )
        found = await still_in_log(fabric.namesrv, topic, record)
        gone = await _gone(fabric.namesrv, topic, record)
        watchdog.stage("the close of producer and consumer", _CLOSE_LIMIT_S)
    return found, gone


async def _inject_all(fabric: Fabric, order: Order, record: DrillRecord, display: Display, watchdog: Watchdog) -> None:
    """Carry out the drills, with quiet traffic before and after each one without a time of its own, and at the end."""
    is_quiet = False
    for planned in order.drills:
        wait_s = order.quiet_s
        if planned.at_s is not None:
            wait_s = max(0.0, record.steady_s + planned.at_s - time.monotonic())
        drill, hold_s = planned.drill, planned.hold_s
        # a drill may take several nodes down in turn, each for that long
        watchdog.stage(f"drill {drill.name}", _DRILL_LIMIT_S + 5 * hold_s + wait_s)
        await asyncio.sleep(wait_s)
        if is_quiet := time.monotonic() > record.began_s + order.limit_s:
            break
        await inject(fabric, drill, hold_s, record, display.event)
    if not is_quiet:
        await asyncio.sleep(order.quiet_s)


async def _gone(namesrv: str, topic: str, record: DrillRecord) -> frozenset[int]:
    try:
        return await gone_from_log(namesrv, topic, record)
    except CommandError as error:
        record.troubles.append(str(error))
        return frozenset()


async def _digests(fabric: Fabric, tell: Callable[[str], None]) -> Sequence[NodeDigest] | None:
    try:
        return await fabric.digests()
    except CommandError as error:
        tell(f"no digest: {error}")
        return []


async def _steady(record: DrillRecord) -> None:
    """Wait until acknowledgements come: first connections take a moment on a busy machine."""
    deadline = time.monotonic() + _STEADY_LIMIT_S
    while record.second(time.monotonic()).acked == 0 and time.monotonic() < deadline:
        await asyncio.sleep(_STEADY_S / 10)
    await asyncio.sleep(_STEADY_S)
    record.steady_s = time.monotonic()


async def _watch(fabric: Fabric, record: DrillRecord, display: Display) -> None:
    """Sample the cluster until cancelled."""
    while True:
        view: ClusterView | None = None
        with contextlib.suppress(CommandError):
            view = await fabric.inspect()
        term = view.epoch if view is not None and view.epoch is not None else record.term
        record.samples.append(Sample(time.monotonic(), view, term))
        display.sampled(record, view)
        await asyncio.sleep(_SAMPLE_S)
