"""How late is a slave under full load, and what does waiting for it add to a send?

    python -m benchmarks.replication [--seconds N] [--rounds N] [--load PATH]

Needs the load generator (`benchmarks/peers/load`, built by `benchmarks/race`; PEERS_STATE as there). One line of JSON:

    lag_ms        quantiles of `ledgermq_slave_lag_seconds` of an ASYNC_MASTER, from when records can be sent to the
                  slave's report of them, while 4 connections keep 64 sends of 1 KiB each in flight: the upper bound
                  of the bucket in which the quantile lies
    acks          for ASYNC_FLUSH and SYNC_FLUSH, p50 and mean, medians of the rounds, which take turns:
      alone_ms      time of a send, one at a time, to a broker alone
      sync_ms       the same to a SYNC_MASTER with one slave
      added_ms      the difference: what waiting for the slave adds
      flush_ms      mean time of a sync of the slave's log meanwhile; 0 with ASYNC_FLUSH, where no answer waits for it
      round_trip_ms a round trip of a frame of that size and a short answer between two event loops on loopback
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
FLUSH = "ledgermq_flush_seconds"
HEALTH_PORT_ABOVE = 11
FLUSHES = ("ASYNC_FLUSH", "SYNC_FLUSH")
FRAME_BYTES = 1200
REPORT_BYTES = 16
ROUND_TRIPS = 3000


def produce(load: Path, namesrv: str, *options: str) -> dict[str, Any]:
    """What the load generator says."""
    done = subprocess.run([load, "produce", "--namesrv", namesrv, *options], stdout=subprocess.PIPE, check=True)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def metrics(node: str, family: str) -> dict[str, float]:
    """Values of a family of a broker's metrics, by what follows the family's name."""
    host, port = split(node)
    with urllib.request.urlopen(f"http://{host}:{port + HEALTH_PORT_ABOVE}/metrics") as page:
        lines = page.read().decode().splitlines()
    rows = [line.removeprefix(family).rsplit(" ", 1) for line in lines if line.startswith(family)]
    return {name: float(value) for name, value in rows}


def lag_counts(master: str) -> dict[float, int]:
    """Cumulative counts by the upper bounds of the histogram's buckets, seconds."""
    buckets = metrics(master, f"{LAG}_bucket")
    return {float(name.split('le="')[1].split('"')[0]): int(count) for name, count in buckets.items()}


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


async def round_trip_ms() -> dict[str, float]:
    """Times between this process and another one."""
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
    return {"p50": statistics.median(times) * 1000, "mean": statistics.mean(times) * 1000}


def address_of(found: dict[str, Any], role: str) -> str:
    """Address of the broker of that role."""
    return next(str(node["address"]) for node in found["nodes"] if node["role"] == role)


def flushes(node: str) -> tuple[float, float]:
    """Number and seconds of the syncs of a broker's log so far."""
    count, seconds = (sum(metrics(node, f"{FLUSH}_{what}").values()) for what in ("count", "sum"))
    return count, seconds


def acks(load: Path, flush: str, rounds: int, seconds: int) -> dict[str, dict[str, float] | float]:
    """Measure sends one at a time, to a broker alone and to a pair in turns."""
    options = ["--seconds", str(seconds), "--warmup", "1", "--connections", "1", "--window", "1"]
    setting = f"flushDiskType={flush}"
    alone, sync, trips = [], [], []
    with cluster("standalone", setting) as one, cluster("sync", setting) as pair:
        slave = address_of(pair, "slave")
        began = flushes(slave)
        for _ in range(rounds):
            alone.append(produce(load, one["namesrv"], *options)["latency_ms"])
            sync.append(produce(load, pair["namesrv"], *options)["latency_ms"])
            trips.append(uvloop.run(round_trip_ms()))
        count, took_s = (after - before for after, before in zip(flushes(slave), began, strict=True))

    def median(times: list[dict[str, float]]) -> dict[str, float]:
        return {name: round(statistics.median(one[name] for one in times), 3) for name in ("p50", "mean")}

    added = [
        {name: one[name] - other[name] for name in ("p50", "mean")} for one, other in zip(sync, alone, strict=True)
    ]
    return {
        "alone_ms": median(alone),
        "sync_ms": median(sync),
        "added_ms": median(added),
        "flush_ms": round(took_s / count * 1000, 3) if flush == "SYNC_FLUSH" else 0.0,
        "round_trip_ms": median(trips),
    }


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description="how late a slave is, and what waiting for it costs")
    parser.add_argument("--seconds", type=int, default=8, help="of the run under full load; others take a quarter")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--load", type=Path, default=LOAD)
    options = parser.parse_args()
    with cluster("async", f"flushDiskType={FLUSHES[0]}") as found:
        master = address_of(found, "master")
        produce(options.load, found["namesrv"], "--seconds", "1", "--warmup", "2")
        before = lag_counts(master)
        full = produce(options.load, found["namesrv"], "--seconds", str(options.seconds))
        lags = {bound: count - before[bound] for bound, count in lag_counts(master).items()}
    seconds = max(options.seconds // 4, 1)
    result = {
        "msgs_per_s": full["msgs_per_s"],
        "lag_ms": {f"p{share:g}": quantile_ms(lags, share / 100) for share in (50, 99, 99.9)},
        "acks": {flush: acks(options.load, flush, options.rounds, seconds) for flush in FLUSHES},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
