"""Process metrics: CPU time, memory and descriptors of this process, under the names that all Prometheus clients use.

Source: https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics, and Linux' /proc/self.
"""

import time
from pathlib import Path

from telemetry.metrics import Registry


def register_process_metrics(registry: Registry) -> None:
    """Add the values of the process to `registry`; each is read at the scrape."""
    started = time.time()
    registry.counter("process_cpu_seconds_total", "User and system CPU time.").function(time.process_time)
    registry.gauge("process_start_time_seconds", "Start of the process, seconds since 1970.").set(round(started, 3))
    registry.gauge("process_resident_memory_bytes", "Resident memory, mapped files included.").function(
        lambda: _status_bytes("VmRSS")
    )
    registry.gauge("ledgermq_process_anonymous_memory_bytes", "Resident memory without mapped files.").function(
        lambda: _status_bytes("RssAnon")
    )
    registry.gauge("process_open_fds", "Open file descriptors.").function(
        lambda: sum(1 for _ in Path("/proc/self/fd").iterdir())
    )


def _status_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {key}")
