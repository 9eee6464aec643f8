"""Metrics of streaming queries that read topics: amount, speed, and lag.

    Spark's progress of a batch --> QueryMetrics --> one row for each source `ledgermq` --> a function of yours
    pulls of its tasks --> accumulator --^

| name | |
|---|---|
| queryId, runId, name, batchId, timestamp | as Spark has them |
| numInputRows, inputRowsPerSecond, processedRowsPerSecond | of this source and batch |
| plannedInputRows | offsets of this batch; those that tags leave out, or that are gone, count too |
| numQueues, numQueuesRead | read so far, and in this batch |
| minOffsetsBehindLatest, maxOffsetsBehindLatest, avgOffsetsBehindLatest | messages of a queue behind this batch |
| latestOffsetMs, batchMs | time for asking for the ends, and for the whole batch |
| batchFetchRequests | pulls of the tasks of this batch that have succeeded, for all sources of topics of the query |
| avgFetchLatencyMs, maxFetchLatencyMs | from a pull to its answer, with all its tries |
| totalFetchErrors | tries of these pulls that failed, and were followed by another |
| errors | failed runs of this query that this listener has seen |

The names of rows and lag are those of Spark's source for Kafka, those of pulls of Fluss' source. PySpark gives a source
in Python no metrics of its own: figures of tasks come through an accumulator, which `register` gives to the source.
Under Spark Connect there are no accumulators: the four figures of pulls are left out.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext, TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from ledgermq.spark.topic_client import Fetches
from ledgermq.spark.topic_offsets import VERSION, decode_offsets, ranges_between

Row = Mapping[str, Any]
_QUERIES_MAX: Final = 1000
_BATCHES_MAX: Final = 1000
_BEGINNING: Final[Mapping[str, Any]] = {"q": {}, "v": VERSION}


Batches = dict[tuple[str, int], Fetches]
"""Pulls by id of the query and number of the batch."""


class _Sum(AccumulatorParam[Batches]):
    def zero(self, value: Batches) -> Batches:
        return {}

    def addInPlace(self, value1: Batches, value2: Batches) -> Batches:  # noqa: N802 - Spark's name
        for batch, fetches in value2.items():
            value1[batch] = value1.get(batch, Fetches()) | fetches
        while len(value1) > _BATCHES_MAX:  # not read by anyone yet
            del value1[next(iter(value1))]
        return value1


_sums: dict[str, Accumulator[Batches]] = {}
"""Accumulators by id of the Spark application of this process."""


def fetch_sums(context: SparkContext | None) -> Accumulator[Batches] | None:
    """Return the accumulator of a session's pulls; None under Spark Connect, which has no context."""
    if context is None:
        return None
    application = context.applicationId
    if application not in _sums:
        _sums.clear()
        _sums[application] = context.accumulator({}, _Sum())
    return _sums[application]


def add_fetches(sums: Accumulator[Batches] | None, fetches: Fetches) -> None:
    """Add the pulls of this task, if it belongs to a micro-batch."""
    context = TaskContext.get()
    if sums is None or context is None:
        return
    query, batch = (context.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
    if query and batch is not None:
        sums.add({(query, int(batch)): fetches})


def _fetch_figures(query: str, batch: int) -> dict[str, Any]:
    """Return the figures of a batch's pulls, and forget them."""
    if not _sums:
        return {}
    (sums,) = _sums.values()
    fetches = sums.value.pop((query, batch), Fetches())
    return {
        "batchFetchRequests": fetches.requests,
        "avgFetchLatencyMs": fetches.latency_ms / fetches.requests if fetches.requests else 0.0,
        "maxFetchLatencyMs": fetches.longest_ms,
        "totalFetchErrors": fetches.errors,
    }


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
        fetches = _fetch_figures(str(progress.id), progress.batchId)
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
                        **fetches,
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
    """Return the figures of one source's progress; None for a source of another format."""
    end = _offset(source.endOffset)
    if end is None:
        return None
    ends, latest = (decode_offsets(offset)[0] for offset in (end, _offset(source.latestOffset) or _BEGINNING))
    ranges = ranges_between(_offset(source.startOffset) or _BEGINNING, end)
    behind = [max(latest[queue] - end, 0) for queue, end in ends.items() if queue in latest]
    return {
        "numInputRows": source.numInputRows,
        "inputRowsPerSecond": source.inputRowsPerSecond,
        "processedRowsPerSecond": source.processedRowsPerSecond,
        "plannedInputRows": sum(each.end - each.start for each in ranges),
        "numQueues": len(ends),
        "numQueuesRead": len(ranges),
        "minOffsetsBehindLatest": min(behind, default=0),
        "maxOffsetsBehindLatest": max(behind, default=0),
        "avgOffsetsBehindLatest": sum(behind) / len(behind) if behind else 0.0,
    }


def _offset(text: str | None) -> Mapping[str, Any] | None:
    """Return the offset that a source of ours has reported; None for others, since Spark does not name the format."""
    try:
        value = json.loads(text or "null")
    except ValueError:
        return None
    return value if isinstance(value, dict) and {"q", "v"} <= value.keys() else None


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
