"""A node of ours in a process of its own, for benchmarks that look at one from outside."""

import contextlib
import os
import resource
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ledgermq.testing.cluster import start_cluster, stop_cluster

LEDGERMQ = [sys.executable, "-P", "-m", "ledgermq_server"]
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class NodeProcess:
    """A process that runs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def memory_kb(self, what: str = "RssAnon") -> int:
        """Kilobytes by `/proc`: `VmRSS` with the pages of mapped files, `RssAnon` without."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))

    def cpu_s(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S


class Pair:
    """A nameserver and a broker that stands alone."""

    def __init__(self, description: dict[str, Any]) -> None:
        nameserver, (broker,) = description["nameserver"], description["nodes"]
        self.namesrv = str(description["namesrv"])
        self.broker = str(broker["address"])
        self.nameserver_process = NodeProcess(nameserver["pid"])
        self.broker_process = NodeProcess(broker["pid"])


@contextlib.contextmanager
def cluster(mode: str, *settings: str) -> Iterator[dict[str, Any]]:
    """Run a cluster with these settings `KEY=VALUE` of brokers for the block; yield the description that it prints."""
    words = [word for setting in settings for word in ("--conf", setting)]
    with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as folder:
        process, description = start_cluster(Path(folder, "cluster"), "--mode", mode, *words)
        try:
            yield description
        finally:
            stop_cluster(process)


@contextlib.contextmanager
def pair(*settings: str) -> Iterator[Pair]:
    """Run a nameserver and a broker with these settings `KEY=VALUE` for the block."""
    with cluster("standalone", *settings) as description:
        yield Pair(description)


def allow_open_files(count: int) -> None:
    """Raise the limit of open files of this process and its children; end the program if that is not allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        if hard < count:
            raise SystemExit(f"{count} open files are needed, and at most {hard} are allowed here: see `ulimit -Hn`")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def split(address: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def connect(address: str, number: int) -> socket.socket:
    """A connection from one of several loopback addresses, so that many find free ports."""
    return socket.create_connection(split(address), timeout=30, source_address=(f"127.0.1.{1 + number % 200}", 0))


def spread(times: list[float]) -> dict[str, float]:
    """Return count, median, 99th percentile and maximum of times in ascending order."""
    picked = {"p50": len(times) // 2, "p99": len(times) * 99 // 100, "max": len(times) - 1}
    return {"count": len(times), **{name: round(times[at], 2) for name, at in picked.items()}}
