"""Count orders by the minute: python examples/pipeline/orders_by_minute.py NAMESERVER TOPIC CHECKPOINT.

Reads what has come since the last run with the same CHECKPOINT, and prints a line for each minute and tag. Run it again
and again, or take `.trigger(processingTime="10 seconds")` to leave it running.
"""

import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from ledgermq.spark.session import make_session, patiently


def show(batch: DataFrame, _batch_id: int) -> None:
    by_minute = batch.groupBy(fn.date_trunc("minute", "store_ts").alias("minute"), "tags")
    sums = by_minute.agg(fn.count("*").alias("orders"), fn.sum("size").alias("bytes"))
    for row in sums.orderBy("minute", "tags").collect():
        print(f"{row.minute:%H:%M} {row.tags or '-':<12} {row.orders:>8,} orders {row.bytes:>12,} bytes", flush=True)


def main(namesrv: str, topic: str, checkpoint: str) -> None:
    spark = make_session("orders by the minute")
    rows = spark.readStream.format("ledgermq").options(
        namesrv=namesrv, subscribe=topic, startingOffsets="earliest", columns="tags,size,store_ts"
    )
    query = rows.load().writeStream.foreachBatch(show).option("checkpointLocation", checkpoint)
    patiently(lambda: query.trigger(availableNow=True).start().awaitTermination())


if len(sys.argv) != 4:
    print(__doc__, file=sys.stderr)
    sys.exit(2)
main(*sys.argv[1:])
