"""The course of the demo: stream, kill, restart, drain, compare.

acked   0 %          40 %                    65 %           100 %
send    |---------------X leader killed        ^ restarted    |   drain, compare logs
receive |---------------------------------------------------------|
"""

import asyncio
import contextlib
import hashlib
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from chaos.checkers.operations import Judge
from chaos.checkers.timing import longest_gap_ms
from chaos.drills.background import in_background
from chaos.drills.conductor import await_leader
from chaos.fabric.contract import Fabric, NodeDigest, Verb
from cli.demo.result import DemoResult, Timing
from cli.demo.stream import LineStream
from cli.live import StreamDisplay
from ledgermq.client import Admin, Consumer, LedgerMQError, MessageQueue, Producer
from node.errors import CommandError

KILL_AT, START_AT = 0.40, 0.65
_QUEUE_COUNT = 8
_LEAST_SENDING_S = 6.0
_LEAST_DOWN_S, _LONGEST_DOWN_S = 1.0, 8.0
_SENDING_LIMIT_S = 240.0
_DRAIN_LIMIT_S = 60.0
_RTO_WINDOW_S = 15.0
_NOBODY = "nobody"


@dataclass(slots=True)
class _Fault:
    """The killed node, and when it was killed."""

    killed: str = _NOBODY
    at_s: float = 0.0


async def run_drill(cluster: Fabric, lines: Sequence[bytes], began_s: float) -> DemoResult:
    """Send `lines` through `cluster`, kill its leader meanwhile, and verify everything.

    Args:
        cluster: a writable cluster.
        lines: the input; joined they are its bytes.
        began_s: monotonic time from which `seconds` of the result counts.

    Raises:
        CommandError: the cluster could not be used or its leader not be killed. A failed check is part of the result.
    """
    with contextlib.closing(Judge()) as judge:
        return await _run(cluster, lines, judge, began_s)


async def _run(cluster: Fabric, lines: Sequence[bytes], judge: Judge, began_s: float) -> DemoResult:
    topic = f"demo-{secrets.token_hex(4)}"
    fault = _Fault()
    try:
        queues = await _create_topic(cluster.namesrv, topic)
        stream = LineStream(lines, queues, judge, _LEAST_SENDING_S)
        progress = StreamDisplay(sys.stderr, len(lines))
        async with (
            Producer(cluster.namesrv, group="demo-producers") as producer,
            Consumer(cluster.namesrv, "demo-consumers-" + topic, topic) as consumer,
            in_background(stream.receive_all(consumer)),
            in_background(_show(progress, stream)),
            in_background(_break_and_mend(cluster, stream, progress, fault)) as mending,
        ):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SENDING_LIMIT_S):
                    await stream.send_all(producer)
            await mending
            progress.event("everything is sent; waiting until everything is consumed")
            await stream.drained(_DRAIN_LIMIT_S)
        leader_after = (await await_leader(cluster)).leader or _NOBODY
    except LedgerMQError as error:
        raise CommandError(f"the consumer or a producer failed: {error}") from error
    progress.event("comparing the logs of all nodes")
    digests = await cluster.digests() or ()
    return _judge(stream, fault, leader_after, digests, time.monotonic() - began_s)


def _judge(
    stream: LineStream, fault: _Fault, leader_after: str, digests: Sequence[NodeDigest], seconds: float
) -> DemoResult:
    rto_ms = longest_gap_ms(stream.record.ack_times_s(), fault.at_s, fault.at_s + _RTO_WINDOW_S) if fault.at_s else 0.0
    sent, received = hashlib.sha256(), hashlib.sha256()
    for number, line in enumerate(stream.lines):
        sent.update(line)
        if number in stream.received:
            received.update(line)
    return DemoResult(
        lines=len(stream.lines),
        findings=stream.findings(),
        timing=Timing(stream.sending_s, stream.latencies_ms, rto_ms),
        digests=digests,
        input_sha256=sent.hexdigest(),
        output_sha256=received.hexdigest(),
        input_bytes=sum(map(len, stream.lines)),
        seconds=seconds,
        killed=fault.killed,
        leader_after=leader_after,
    )


async def _create_topic(namesrv: str, topic: str) -> Sequence[MessageQueue]:
    async with Admin(namesrv) as admin:
        await admin.create_topic(topic, queue_count=_QUEUE_COUNT)
        return await admin.queues(topic)


async def _break_and_mend(cluster: Fabric, stream: LineStream, progress: StreamDisplay, fault: _Fault) -> None:
    await stream.reached(KILL_AT)
    fault.at_s = time.monotonic()
    fault.killed = (await await_leader(cluster)).leader or _NOBODY
    await cluster.act(Verb.KILL, fault.killed)
    progress.event(f"{fault.killed} led and was killed (SIGKILL)")
    # restart the node even if that share is not reached, since the cluster may need it
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stream.reached(START_AT), _LONGEST_DOWN_S)
    await asyncio.sleep(max(0.0, fault.at_s + _LEAST_DOWN_S - time.monotonic()))
    await cluster.act(Verb.START, fault.killed)
    progress.event(f"{fault.killed} was started again")


async def _show(progress: StreamDisplay, stream: LineStream) -> None:
    while True:
        progress.show(len(stream.record.acks), stream.record.delivered_count)
        await asyncio.sleep(0.1)
