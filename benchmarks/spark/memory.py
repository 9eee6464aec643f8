"""How does the memory of the pipeline on Spark grow with the store, or the topic?

    python -m benchmarks.spark.memory [--gigabytes 1,5,20] [--jobs headers,digests,...] [--directory DIR]

Makes a store of 1 KiB records, file by file, and runs each job at each size. Prints for each the seconds, and the peak
of resident memory (VmHWM, which counts pages of shared libraries too) of the largest Python worker and of the JVM, in
MB. Its heap may grow to 1 GiB. An audit compares the store with itself as a second replica, and with a history; topics
are read from a broker of ours, which gets the same number of messages. Needs the disk for the largest store, its
archive, its restored copy and the broker's; all are deleted. TMPDIR says where the broker's is.
"""

import argparse
import asyncio
import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.node_process import pair
from benchmarks.spark.processes import descendants
from benchmarks.spark.rounds import run
from benchmarks.spark.stores import Store
from benchmarks.spark.topics import QUEUES, fill
from ledgermq.spark.archive import archive, restore, verify
from ledgermq.spark.audit import audit
from ledgermq.spark.rebuild import rebuild
from ledgermq.spark.rebuild_index import rebuild_index
from ledgermq.spark.session import make_session
from ledgermq.spark.statistics import statistics

RESET_PEAK = "5"
LOOK_S = 1.0
"""Workers that are idle for a minute end, and their peaks with them."""


def peaks_mb(*, anew: bool = False) -> tuple[float, float]:
    """The largest peak of a Python worker and of the JVM; `anew` begins new ones."""
    workers = jvm = 0.0
    for pid, command in descendants().items():
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            if anew:
                Path(f"/proc/{pid}/clear_refs").write_text(RESET_PEAK)
        except OSError:
            continue
        peak = next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)
        if "java" in command.partition("\0")[0]:
            jvm = max(jvm, peak)
        elif "pyspark" in command:
            workers = max(workers, peak)
    return workers, jvm


def peaks_of(act: Callable[[], object]) -> tuple[float, float]:
    """Run something; the peaks of `peaks_mb` meanwhile."""
    ended, found = threading.Event(), [(0.0, 0.0)]

    def look() -> None:
        while not ended.wait(LOOK_S):
            found.append(peaks_mb())

    peaks_mb(anew=True)
    looker = threading.Thread(target=look)
    looker.start()
    try:
        act()
    finally:
        ended.set()
        looker.join()
    found.append(peaks_mb())
    workers, jvms = zip(*found, strict=True)
    return max(workers), max(jvms)


MADE = {
    "statistics": "state", "rebuild": "queues", "index": "index", "archive": "archive", "restore": "restored",
}  # fmt: skip
"""What a job makes, which is removed before it runs."""
JOBS = "headers,full rows,digests,statistics,rebuild,index,archive,verify,restore,audit,topics"


def jobs_of(spark: SparkSession, work: Path, namesrv: str) -> dict[str, Callable[[], object]]:
    """The jobs, by name; the store is in the folder `store`."""
    root, other = str(work / "store"), work / "other"
    other.mkdir()
    (other / "commitlog").symlink_to(work / "store" / "commitlog")

    def scan(**options: str) -> None:
        run(spark.read.format("ledgermq-store").options(**options).load(root))

    def compare() -> None:
        found = audit(spark, [root, str(other)], [str(work / "history.jsonl")])
        assert found.is_sound, found.counts
        spark.catalog.clearCache()

    topics = spark.read.format("ledgermq").options(namesrv=namesrv, subscribe="Memory")
    return {
        "headers": lambda: scan(mode="headers"),
        "full rows": scan,
        "digests": lambda: scan(mode="digests"),
        "statistics": lambda: statistics(spark, [root], str(work / "state")).count(),
        "rebuild": lambda: rebuild(spark, root, str(work / "queues")),
        "index": lambda: rebuild_index(spark, root, str(work / "index")),
        "archive": lambda: archive(spark, root, str(work / "archive")),
        "verify": lambda: verify(spark, str(work / "archive")),
        "restore": lambda: restore(spark, str(work / "archive"), str(work / "restored")),
        "audit": compare,
        "topics": lambda: run(topics.load()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", default="1,5,20")
    parser.add_argument("--jobs", default=JOBS)
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    names = arguments.jobs.split(",")
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.directory)))
        namesrv = stack.enter_context(pair()).namesrv if "topics" in names else ""
        store = Store(work / "store")
        told = 0
        spark = make_session("memory", {"spark.driver.memory": "1g"})
        jobs, sent = jobs_of(spark, work, namesrv), 0
        print(f"{'GB':>3} {'job':<12} {'seconds':>8} {'worker MB':>10} {'JVM MB':>8}", flush=True)
        for gigabytes in map(int, arguments.gigabytes.split(",")):
            store.grow(gigabytes * 4)
            if "audit" in names:
                store.write_history(work / "history.jsonl", told)
                told = store.files
            for name in names:
                if name in MADE:
                    shutil.rmtree(work / MADE[name], ignore_errors=True)
                if name == "topics":
                    asyncio.run(fill(namesrv, "Memory", QUEUES, store.files * store.records - sent))
                    sent = store.files * store.records
                began = time.perf_counter()
                worker, jvm = peaks_of(jobs[name])
                seconds = time.perf_counter() - began
                print(f"{gigabytes:>3} {name:<12} {seconds:>8.1f} {worker:>10.0f} {jvm:>8.0f}", flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
