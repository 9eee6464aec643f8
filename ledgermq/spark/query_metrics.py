"""Metrics of streaming queries that read topics: how much, how fast, and how far behind the topics.

    Spark's progress of a batch --> QueryMetrics --> one row for each source `ledgermq` --> a function of yours

| name | |
|---|---|
| queryId, runId, name, batchId, timestamp | as Spark has them |
| numInputRows, inputRowsPerSecond, processedRowsPerSecond | of this source and batch |
| numQueues | read so far |
| minOffsetsBehindLatest, maxOffsetsBehindLatest, avgOffsetsBehindLatest | messages of a queue behind this batch |
| latestOffsetMs, batchMs | time for asking for the ends, and for the whole batch |
| errors | failed runs of this query that this listener has seen |

The names of rows and lag are those of Spark's source for Kafka. PySpark gives a source in Python no way to report
figures of its tasks, so pulls, their latency and their errors are in the broker's own metrics only.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from ledgermq.remoting.route import MessageQueue
from ledgermq.spark.topic_offsets import decode_offsets

Row = Mapping[str, Any]
_QUERIES_MAX: Final = 1000


class QueryMetrics(StreamingQueryListener):
    """A listener that gives a row for each batch and source to `write`, and one when a query fails.

    Args:
        write: gets a row; called in a thread of Spark's, in the driver.
    """

    def __init__(self, write: Callable[[Row], None]) -> None:
        self._write = write
        self._errors: Counter[str] = Counter()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Write a row for each source of topics."""
        progress = event.progress
        for source in progress.sources:
            figures = source_figures(source)
            if figures is not None:
                durations = progress.durationMs
                self._write(
                    {
                        "queryId": str(progress.id),
                        "runId": str(progress.runId),
                        "name": progress.name,
                        "batchId": progress.batchId,
                        "timestamp": progress.timestamp,
                        **figures,
                        "latestOffsetMs": durations.get("latestOffset", 0),
                        "batchMs": durations.get("triggerExecution", 0),
                        "errors": self._errors[str(progress.id)],
                    }
                )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: nothing was read."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Count a failure."""
        if event.exception is None:
            return
        query = str(event.id)
        if query not in self._errors and len(self._errors) >= _QUERIES_MAX:
            self._errors.clear()
        self._errors[query] += 1
        error = event.exception.partition("\n")[0]
        self._write({"queryId": query, "runId": str(event.runId), "errors": self._errors[query], "error": error})


def source_figures(source: Any) -> dict[str, Any] | None:
    """Return the figures of one source's progress; None of a source that is none of ours."""
    ends = _offsets(source.endOffset)
    if ends is None:
        return None
    latest = _offsets(source.latestOffset) or {}
    behind = [max(latest[queue] - end, 0) for queue, end in ends.items() if queue in latest]
    return {
        "numInputRows": source.numInputRows,
        "inputRowsPerSecond": source.inputRowsPerSecond,
        "processedRowsPerSecond": source.processedRowsPerSecond,
        "numQueues": len(ends),
        "minOffsetsBehindLatest": min(behind, default=0),
        "maxOffsetsBehindLatest": max(behind, default=0),
        "avgOffsetsBehindLatest": sum(behind) / len(behind) if behind else 0.0,
    }


def _offsets(text: str | None) -> Mapping[MessageQueue, int] | None:
    """Return the offsets that a source of ours has told; None of others. Spark names no source's format."""
    try:
        value = json.loads(text or "null")
    except ValueError:
        return None
    return decode_offsets(value)[0] if isinstance(value, dict) and {"q", "v"} <= value.keys() else None


def write_metrics(spark: SparkSession, path: str | Path) -> QueryMetrics:
    """Append the rows of all queries of a session to a file, one JSON object a line; the file grows without limit.

    Returns:
        The listener, for `spark.streams.removeListener`.
    """

    def write(row: Row) -> None:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, sort_keys=True) + "\n")

    listener = QueryMetrics(write)
    spark.streams.addListener(listener)
    return listener
