"""How fast is the pipeline on Spark, beside plain Parquet and one Python process on the same rows, in one run?

    python -m benchmarks.spark.pipeline [--files 6] [--rounds 5] [--directory DIR]

Makes a store of 256 MiB files of 1 KiB records, no two bodies alike. Each round runs everything once, in turn. Prints
rates by the clock, the same by CPU time, which holds on a busy machine but does not tell how well a job uses the cores,
the ratio to each baseline, and each goal beside what was reached. The start of Spark is told apart. The page cache is
warm; give a folder in memory to leave the disk out, which else bounds what is written and synced.
"""

import argparse
import gc
import mmap
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from benchmarks.spark.processes import adopt
from benchmarks.spark.rounds import Goal, Rounds, print_goals, print_rates, run
from benchmarks.spark.stores import Store
from benchmarks.store_check import FILE_SIZE
from ledgermq.message.crc import CRC_MASK, crc32
from ledgermq.spark.archive import archive, restore
from ledgermq.spark.rebuild import rebuild
from ledgermq.spark.session import make_session

HEAD = struct.Struct(">iiiiiqqiq8sq8siqi")
MAGIC = -626843481
ROWS_AT_ONCE = 4096
COLUMNS = "topic,queue_id,queue_offset,phys_offset,born_ts,store_ts,body,keys"
SIX_COLUMNS = "topic,queue_id,queue_offset,phys_offset,size,store_ts"
LIGHT_WRITE = "df.write.parquet, zstd level 1"
"""As the archive has it; Spark's own level is 3."""
PYTHON, WRITE, READ = "one Python process", "df.write.parquet", "spark.read.parquet"
GOALS = [
    ("full rows", Goal(1100, "k")),
    ("full rows", Goal(0.8, PYTHON)),
    ("full rows", Goal(0.6, READ)),
    ("full rows with CRC", Goal(900, "k")),
    ("headers", Goal(2400, "k")),
    ("headers", Goal(1.7, PYTHON)),
    ("digests", Goal(1300, "k")),
    ("archive", Goal(3, WRITE)),
    ("archive", Goal(700, "MB")),
    ("restore", Goal(1200, "MB")),
    ("rebuild", Goal(1400, "k")),
    ("rebuild", Goal(1.5, PYTHON)),
]


def walk(root: Path, *, check: bool = False) -> int:
    """Baseline: one process makes a tuple of eight columns of each record; returns how many."""
    count = 0
    for path in sorted((root / "commitlog").iterdir()):
        with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            at, rows = 0, []
            while at + HEAD.size < len(data):
                fields = HEAD.unpack_from(data, at)
                size, magic, body = fields[0], fields[1], fields[-1]
                if magic != MAGIC:
                    break
                tail = at + HEAD.size + body
                topic_end = tail + 1 + data[tail]
                content = data[tail - body : tail]
                if check and crc32(content) & CRC_MASK != fields[2]:
                    raise SystemExit(f"{path}: wrong CRC at {at}")
                rows.append(
                    (data[tail + 1 : topic_end], fields[3], fields[5], fields[6], fields[8], fields[10], content,
                     data[topic_end + 2 : at + size])
                )  # fmt: skip
                if len(rows) == ROWS_AT_ONCE:
                    count += len(rows)
                    rows.clear()
                at += size
            count += len(rows)
    return count


def copy(store: Path, target: Path) -> None:
    """Baseline of a restore: one process copies the files and syncs each."""
    target.mkdir()
    for path in sorted((store / "commitlog").iterdir())[:-1]:
        with path.open("rb") as source, (target / path.name).open("wb") as copied:
            shutil.copyfileobj(source, copied, 4 << 20)
            os.fsync(copied.fileno())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=6, help="of 256 MiB; all but the last are sealed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    adopt()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        root, work = Path(folder) / "store", Path(folder)
        store = Store(root)
        store.grow(arguments.files)
        began = time.perf_counter()
        spark = make_session("benchmark")

        def load(**options: str) -> DataFrame:
            return spark.read.format("ledgermq-store").options(**options).load(str(root))

        run(load(mode="headers"))
        print(
            f"{store.records * store.files:,} records; Spark's start and first job: {time.perf_counter() - began:.1f} s"
        )

        def write(name: str, **options: str) -> None:
            rows = load(columns=COLUMNS, verify="false")
            rows.write.options(compression="zstd", **options).parquet(str(work / name))

        jobs: dict[str, tuple[int, Callable[[], object]]] = {
            PYTHON: (0, lambda: walk(root)),
            "one Python process, with CRC": (0, lambda: walk(root, check=True)),
            WRITE: (0, lambda: write("parquet")),
            LIGHT_WRITE: (0, lambda: write("light", **{"parquet.compression.codec.zstd.level": "1"})),
            READ: (0, lambda: run(spark.read.parquet(str(work / "parquet")))),
            "full rows": (0, lambda: run(load(columns=COLUMNS, verify="false"))),
            "full rows with CRC": (0, lambda: run(load(columns=COLUMNS))),
            "headers": (0, lambda: run(load(columns=SIX_COLUMNS))),
            "all 14 columns of mode headers": (0, lambda: run(load(mode="headers"))),
            "digests": (0, lambda: run(load(mode="digests"))),
            "archive": (1, lambda: archive(spark, str(root), str(work / "archive"))),
            "restore": (1, lambda: restore(spark, str(work / "archive"), str(work / "restored"))),
            "copy and sync": (1, lambda: copy(root, work / "copied")),
            "rebuild": (0, lambda: rebuild(spark, str(root), str(work / "queues"))),
        }
        measured = {
            name: Rounds(store.records * (store.files - left_out), (store.files - left_out) * FILE_SIZE / 1e6)
            for name, (left_out, _) in jobs.items()
        }
        for _ in range(arguments.rounds):
            for name in ("parquet", "light", "archive", "restored", "copied", "queues"):
                shutil.rmtree(work / name, ignore_errors=True)
            for name, (_, act) in jobs.items():
                gc.collect()
                measured[name].run(act)
        spark.stop()
    print_rates(measured, [PYTHON, WRITE, READ])
    print_goals(measured, GOALS)


if __name__ == "__main__":
    main()
