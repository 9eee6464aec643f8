"""How exact timers are: sent one-way to a broker of its own, all pending at once; prints one JSON line.

    python benchmarks/bench_timers.py [--count 10000] [--spread-ms 2000] [--body 100] [--directory DIR]

`late_*_ms` is the store time of the delivered message less the time that was asked for; never negative. With
`--spread-ms 0` all are due in the same millisecond. `cpu_us` is the process' CPU a timer, from its sending to its end.
"""

import argparse
import asyncio
import json
import os
import platform
import tempfile
import time
from pathlib import Path

from broker.delay.timer_service import TimerService
from ledgermq.message.record import decode_record
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.config_key import build
from ledgermq.wall_clock import wall_clock_ms
from node.broker_assembly import Broker
from node.node_config import NodeConfig

TOPIC = "BenchmarkTest"  # every broker has it
AHEAD_MS = 6000
BATCH = 500


def send(number: int, due_ms: int, body: bytes) -> Command:
    properties = f"UNIQ_KEY\x01K{number}\x02TIMER_DELIVER_MS\x01{due_ms}\x02"
    ext = {"a": "bench", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": str(wall_clock_ms()), "h": "0"}
    return Command(RequestCode.SEND_MESSAGE_V2, ext=ext | {"i": properties, "j": "0", "k": "false"}, body=body)


async def until(count: int, timers: TimerService, figure: str) -> None:
    async with asyncio.timeout(120):
        while getattr(timers.follower if figure == "count" else timers, figure) < count:
            await asyncio.sleep(0.005)


async def measure(arguments: argparse.Namespace, root: Path) -> dict[str, object]:
    broker = Broker(build(NodeConfig, {"storePathRootDir": root, "bindAddress": "127.0.0.1", "listenPort": 0}))
    client = RemotingClient()
    await broker.start()
    try:
        timers, cpu = broker.parts.delay.timer, time.process_time()
        start_ms = wall_clock_ms() + AHEAD_MS
        for number in range(arguments.count):
            due_ms = start_ms + number * arguments.spread_ms // arguments.count
            await client.oneway(broker.address, send(number, due_ms, bytes(arguments.body)))
            if number % BATCH == BATCH - 1:
                await until(number + 1, timers, "count")
        sent_ms = wall_clock_ms()
        await until(arguments.count, timers, "delivered")
        cpu = time.process_time() - cpu
        log = broker.parts.context.store.log
        records = (decode_record(record) for _, record in log.walk(log.min_offset, log.confirm_offset))
        late = sorted(
            record.store_timestamp - int(record.property_map["TIMER_DELIVER_MS"])
            for record in records
            if record.topic == TOPIC
        )
    finally:
        await client.close()
        await broker.close()
    return {
        "count": arguments.count,
        "spread_ms": arguments.spread_ms,
        "all_pending": sent_ms < start_ms,
        "delivered": len(late),
        "late_min_ms": late[0],
        "late_p50_ms": late[len(late) // 2],
        "late_p99_ms": late[len(late) * 99 // 100],
        "late_max_ms": late[-1],
        "cpu_us": round(cpu * 1e6 / arguments.count, 1),
        "load": os.getloadavg()[0],
        "machine": platform.platform(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--spread-ms", type=int, default=2000)
    parser.add_argument("--body", type=int, default=100)
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        print(json.dumps(asyncio.run(measure(arguments, Path(directory)))))


if __name__ == "__main__":
    main()
