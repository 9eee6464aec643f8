"""LedgerMQ's data pipeline on Spark: `from ledgermq.spark import register; register(spark)`.

Needs Java 17 and `pip install 'ledgermq[spark]'`. See docs/pipeline.md.
"""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Make the formats `ledgermq` and `ledgermq-store` known to a session.

    Workers on this machine run the Python of this process, not that of PATH, unless `PYSPARK_PYTHON` names another.
    """
    from ledgermq.spark.query_metrics import fetch_sums
    from ledgermq.spark.store_source import StoreSource
    from ledgermq.spark.topic_source import TopicSource

    context = getattr(spark, "sparkContext", None)  # Spark Connect has no context
    if context is not None and context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
    spark.dataSource.register(StoreSource)
    # A class that workers cannot import is sent to them with its attributes, among them the accumulator.
    spark.dataSource.register(type("SessionTopicSource", (TopicSource,), {"fetch_sums": fetch_sums(context)}))
