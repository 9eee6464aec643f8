"""Archive a broker's log each night: python examples/pipeline/nightly_archive.py STORE ARCHIVE; exit code 1: a fault.

Archives what is sealed and not there yet, then checks that the whole archive can be restored, and prints what it holds.
Under spark-submit every executor must see both folders at the same paths.
"""

import sys

from ledgermq.spark.archive import archive, verify
from ledgermq.spark.session import make_session


def main(store: str, directory: str) -> int:
    spark = make_session("nightly archive")
    done = archive(spark, store, directory)
    found = verify(spark, directory)
    print(*found.faults, sep="\n", end="\n" if found.faults else "")
    print(f"{sum(not each.was_there for each in done)} new files, {found.segments} in all, {found.length:,} bytes")
    if found.segments:
        rows = spark.read.parquet(directory).where("topic is not null")
        rows.groupBy("topic").count().orderBy("topic").show(truncate=False)
    return 1 if found.faults else 0


if len(sys.argv) != 3:
    print(__doc__, file=sys.stderr)
    sys.exit(2)
sys.exit(main(*sys.argv[1:]))
