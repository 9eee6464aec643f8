"""How does the memory of the pipeline on Spark grow with the store?

    python -m benchmarks.spark.memory [--gigabytes 1,5,20] [--jobs headers,digests,...] [--directory DIR]

Makes a store of 1 KiB records, file by file, and runs each job at each size. Prints for each the seconds, and the peak
of resident memory (VmHWM, which counts pages of shared libraries too) of the largest Python worker and of the JVM, in
MB. Its heap may grow to 1 GiB. Needs the disk for the largest store, and for its archive; both are deleted.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.spark.processes import descendants
from benchmarks.spark.rounds import run
from benchmarks.spark.stores import Store
from ledgermq.spark.archive import archive, verify
from ledgermq.spark.rebuild import rebuild
from ledgermq.spark.session import make_session
from ledgermq.spark.statistics import statistics

RESET_PEAK = "5"


def peaks_mb() -> tuple[float, float]:
    """The largest peak of a Python worker and of the JVM since the last call; begins anew."""
    workers = jvm = 0.0
    for pid, command in descendants().items():
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            Path(f"/proc/{pid}/clear_refs").write_text(RESET_PEAK)
        except OSError:
            continue
        peak = next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)
        if "java" in command.partition("\0")[0]:
            jvm = max(jvm, peak)
        else:
            workers = max(workers, peak)
    return workers, jvm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", default="1,5,20")
    parser.add_argument("--jobs", default="headers,full rows,digests,statistics,rebuild,archive,verify")
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        work = Path(folder)
        store = Store(work / "store")
        spark = make_session("memory", {"spark.driver.memory": "1g"})

        def scan(**options: str) -> None:
            run(spark.read.format("ledgermq-store").options(**options).load(str(store.root)))

        jobs: dict[str, Callable[[], object]] = {
            "headers": lambda: scan(mode="headers"),
            "full rows": scan,
            "digests": lambda: scan(mode="digests"),
            "statistics": lambda: statistics(spark, [str(store.root)], str(work / "state")).count(),
            "rebuild": lambda: rebuild(spark, str(store.root), str(work / "queues")),
            "archive": lambda: archive(spark, str(store.root), str(work / "archive")),
            "verify": lambda: verify(spark, str(work / "archive")),
        }
        print(f"{'GB':>3} {'job':<12} {'seconds':>8} {'worker MB':>10} {'JVM MB':>8}", flush=True)
        for gigabytes in map(int, arguments.gigabytes.split(",")):
            store.grow(gigabytes * 4)
            for name in arguments.jobs.split(","):
                if name in ("statistics", "rebuild", "archive"):
                    shutil.rmtree(work / {"statistics": "state", "rebuild": "queues"}.get(name, name), True)
                peaks_mb()
                began = time.perf_counter()
                jobs[name]()
                seconds, (worker, jvm) = time.perf_counter() - began, peaks_mb()
                print(f"{gigabytes:>3} {name:<12} {seconds:>8.1f} {worker:>10.0f} {jvm:>8.0f}", flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
