"""How fast is the pipeline on Spark, beside plain Parquet and one Python process on the same rows, in one run?

    python -m benchmarks.spark_pipeline [--megabytes 1024] [--rounds 3] [--directory DIR]

Makes a store of 1 KiB records. Prints a table: thousand records and MB of log a second (best round, warm cache), and
the ratio to each baseline; the start of Spark is told apart. Absolute figures are of the machine; compare ratios.
The same by CPU time (this process and all below it, user and system, least of the rounds) holds on a busy machine, too;
it does not tell how well a job uses the cores.
"""

import argparse
import contextlib
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from benchmarks.spark_memory import descendants
from benchmarks.store_check import write_store
from ledgermq.spark.archive import archive, restore
from ledgermq.spark.rebuild import rebuild
from ledgermq.spark.session import make_session

HEAD = struct.Struct(">iiiiiqqiq8sq8siqi")
BODY = 1024


def walk(root: Path) -> int:
    """Baseline: one process makes a tuple of eight columns of each record; returns how many."""
    count = 0
    for path in sorted((root / "commitlog").iterdir()):
        data, at, rows = path.read_bytes(), 0, []
        while at + HEAD.size < len(data):
            fields = HEAD.unpack_from(data, at)
            size, magic, body = fields[0], fields[1], fields[-1]
            if magic != -626843481:
                break
            tail = at + HEAD.size + body
            topic_end = tail + 1 + data[tail]
            rows.append(
                (data[tail + 1 : topic_end], fields[3], fields[5], fields[6], fields[8], fields[10],
                 data[tail - body : tail], data[topic_end + 2 : at + size])
            )  # fmt: skip
            at += size
        count += len(rows)
    return count


def cpu_s() -> float:
    """CPU time so far of this process and those below it; what has ended counts where its parent is alive."""
    ticks = 0
    for pid in (os.getpid(), *descendants()):
        with contextlib.suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def best(rounds: int, act: Callable[[], object], before: Callable[[], object] = lambda: None) -> tuple[float, float]:
    """Seconds by the clock of the fastest round, and of CPU of the cheapest."""
    seconds = []
    for _ in range(rounds):
        before()
        began, began_cpu = time.perf_counter(), cpu_s()
        act()
        seconds.append((time.perf_counter() - began, cpu_s() - began_cpu))
    return min(clock for clock, _ in seconds), min(cpu for _, cpu in seconds)


def run(frame: DataFrame) -> None:
    """Carry a plan out and drop its rows."""
    frame.write.format("noop").mode("overwrite").save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        root, work = Path(folder) / "store", Path(folder)
        root.mkdir()
        records = write_store(root, arguments.megabytes, BODY)
        began = time.perf_counter()
        spark = make_session("benchmark")
        run(spark.read.format("ledgermq-store").option("mode", "headers").load(str(root)))
        print(f"{records:,} records; Spark's start and first job: {time.perf_counter() - began:.1f} s")

        def load(**options: str) -> DataFrame:
            return spark.read.format("ledgermq-store").options(**options).load(str(root))

        def fresh(name: str) -> Callable[[], None]:
            return lambda: shutil.rmtree(work / name, ignore_errors=True)

        def measured(act: Callable[[], object], before: Callable[[], object] = lambda: None) -> tuple[float, float]:
            return best(arguments.rounds, act, before)

        columns = "topic,queue_id,queue_offset,phys_offset,born_ts,store_ts,body,keys"
        seconds = {
            "one Python process, tuples": measured(lambda: walk(root)),
            "df.write.parquet (zstd)": measured(
                lambda: (
                    load(columns=columns, verify="false").write.option("compression", "zstd").parquet(str(work / "p"))
                ),
                fresh("p"),
            ),
            "spark.read.parquet": measured(lambda: run(spark.read.parquet(str(work / "p")))),
            "full rows": measured(lambda: run(load(columns=columns, verify="false"))),
            "full rows with CRC": measured(lambda: run(load(columns=columns))),
            "headers": measured(lambda: run(load(mode="headers"))),
            "digests": measured(lambda: run(load(mode="digests"))),
            "archive": measured(lambda: archive(spark, str(root), str(work / "a")), fresh("a")),
            "restore": measured(lambda: restore(spark, str(work / "a"), str(work / "r")), fresh("r")),
            "rebuild": measured(lambda: rebuild(spark, str(root), str(work / "q")), fresh("q")),
        }
        sealed = len(list((root / "commitlog").iterdir())) - 1
        spark.stop()
    share = dict.fromkeys(("archive", "restore"), sealed * 256 / arguments.megabytes)
    for title, at in (("by the clock", 0), ("by CPU time", 1)):
        python, written, read = (seconds[name][at] for name in list(seconds)[:3])
        print(f"{title:<28} {'k records/s':>12} {'MB/s':>8} {'/ Python':>9} {'/ write':>8} {'/ read':>8}")
        for name, taken in seconds.items():
            rate = share.get(name, 1.0) / taken[at]
            print(
                f"{name:<28} {records * rate / 1000:>12,.0f} {arguments.megabytes * rate:>8,.0f}"
                f" {python * rate:>9.2f} {written * rate:>8.2f} {read * rate:>8.2f}"
            )


if __name__ == "__main__":
    main()
