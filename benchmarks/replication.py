"""How late is a slave under full load, and what does waiting for it add to a send?

    python -m benchmarks.replication [--seconds N] [--load PATH]

Needs the load generator (`benchmarks/peers/load`, built by `benchmarks/race`; PEERS_STATE as there). One line of JSON:

    lag_ms        quantiles of `ledgermq_slave_lag_seconds` of an ASYNC_MASTER, from when records can be sent to the
                  slave's report of them, while 4 connections keep 64 sends of 1 KiB each in flight: the upper bound
                  of the bucket in which the quantile lies
    ack_ms        time of a send, one at a time, to an ASYNC_MASTER and to a SYNC_MASTER, each with a slave: p50
    added_ms      the difference: what waiting for the slave adds
    round_trip_ms p50 of a round trip of a frame of that size and a short answer between two event loops on loopback
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import time
import urllib.request
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.node_process import cluster, split

LOAD = Path(os.environ.get("PEERS_STATE", "/var/tmp/peers"), "bin", "load")
LAG = "ledgermq_slave_lag_seconds"
HEALTH_PORT_ABOVE = 11
ASYNC_FLUSH = "flushDiskType=ASYNC_FLUSH"
FRAME_BYTES = 1200
REPORT_BYTES = 16
ROUND_TRIPS = 3000


def produce(load: Path, namesrv: str, *options: str) -> dict[str, Any]:
    """What the load generator says."""
    done = subprocess.run([load, "produce", "--namesrv", namesrv, *options], stdout=subprocess.PIPE, check=True)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def lag_counts(master: str) -> dict[float, int]:
    """Cumulative counts by the upper bounds of the histogram's buckets, seconds."""
    host, port = split(master)
    with urllib.request.urlopen(f"http://{host}:{port + HEALTH_PORT_ABOVE}/metrics") as page:
        lines = page.read().decode().splitlines()
    buckets = [line for line in lines if line.startswith(f"{LAG}_bucket")]
    return {float(line.split('le="')[1].split('"')[0]): int(float(line.split()[-1])) for line in buckets}


def quantile_ms(counts: dict[float, int], share: float) -> float:
    """Upper bound of the bucket in which a quantile lies."""
    return next(bound for bound, count in counts.items() if count >= share * max(counts.values())) * 1000


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            await reader.readexactly(FRAME_BYTES)
            writer.write(bytes(REPORT_BYTES))


def _serve(port: Any) -> None:
    async def run() -> None:
        server = await asyncio.start_server(_answer, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(run())


async def round_trip_ms() -> float:
    """p50 between this process and another one."""
    here, there = get_context("spawn").Pipe()
    other = get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
    other.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", here.recv())
    times = []
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        writer.write(bytes(FRAME_BYTES))
        await reader.readexactly(REPORT_BYTES)
        times.append(time.perf_counter() - began)
    writer.close()
    other.terminate()
    return statistics.median(times) * 1000


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description="how late a slave is, and what waiting for it costs")
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--load", type=Path, default=LOAD)
    options = parser.parse_args()
    seconds = ["--seconds", str(options.seconds), "--warmup", "2"]
    one_by_one = [*seconds, "--connections", "1", "--window", "1"]
    with cluster("async", ASYNC_FLUSH) as found:
        alone = produce(options.load, found["namesrv"], *one_by_one)
        master = next(node["address"] for node in found["nodes"] if node["role"] == "master")
        before = lag_counts(master)
        full = produce(options.load, found["namesrv"], *seconds)
        lags = {bound: count - before[bound] for bound, count in lag_counts(master).items()}
    with cluster("sync", ASYNC_FLUSH) as found:
        waiting = produce(options.load, found["namesrv"], *one_by_one)
    acks = {"async": alone["latency_ms"]["p50"], "sync": waiting["latency_ms"]["p50"]}
    result = {
        "msgs_per_s": full["msgs_per_s"],
        "lag_ms": {f"p{share:g}": quantile_ms(lags, share / 100) for share in (50, 99, 99.9)},
        "ack_ms": acks,
        "added_ms": round(acks["sync"] - acks["async"], 3),
        "round_trip_ms": round(uvloop.run(round_trip_ms()), 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
