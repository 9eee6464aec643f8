"""Figures of streaming queries, from what Spark tells of a batch."""

import json
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from ledgermq.remoting.route import MessageQueue
from ledgermq.spark.query_metrics import QueryMetrics, _Sum, source_figures
from ledgermq.spark.topic_client import Fetches
from ledgermq.spark.topic_offsets import encode_offsets

QUEUES = [MessageQueue("T", "b", number) for number in range(3)]


def offsets(*values: int) -> str:
    return json.dumps(encode_offsets(dict(zip(QUEUES, values, strict=False)), {}))


def source(end: str | None, latest: str | None, start: str | None = None) -> Any:
    return SimpleNamespace(
        startOffset=start or end,
        endOffset=end,
        latestOffset=latest,
        numInputRows=7,
        inputRowsPerSecond=1.5,
        processedRowsPerSecond=2.5,
    )


@pytest.mark.parametrize(
    ("end", "latest", "queues", "behind"),
    [
        (offsets(5, 5, 9), offsets(6, 5, 17), 3, (0, 8, 3.0)),
        (offsets(5, 5), offsets(6, 6, 100), 2, (1, 1, 1.0)),  # a queue that no batch has begun yet
        (offsets(5, 5), offsets(4, 6), 2, (0, 1, 0.5)),  # the ends were asked for before the batch's
        (offsets(5), None, 1, (0, 0, 0.0)),
    ],
)
def test_how_far_a_batch_is_behind(end: str, latest: str | None, queues: int, behind: tuple[int, int, float]) -> None:
    found = source_figures(source(end, latest))
    assert found is not None
    assert (found["numQueues"], found["numInputRows"]) == (queues, 7)
    assert tuple(found[f"{name}OffsetsBehindLatest"] for name in ("min", "max", "avg")) == behind


def test_what_a_batch_was_planned_to_read() -> None:
    pinned = json.dumps(encode_offsets(dict(zip(QUEUES, (9, 5, 7), strict=True)), {QUEUES[2]: 4}))
    found = source_figures(source(pinned, None, start=offsets(2, 5)))
    assert found is not None
    assert (found["plannedInputRows"], found["numQueuesRead"]) == (7 + 3, 2)


def test_pulls_add_up_and_old_batches_are_forgotten() -> None:
    one = Fetches().with_pull(2.0, 1).with_pull(6.0, 3)
    assert one == Fetches(2, 8.0, 6.0, 2)
    sums = _Sum()
    found = sums.addInPlace(sums.addInPlace({}, {("q", 1): one}), {("q", 1): Fetches(1, 1.0, 1.0, 0)})
    assert found == {("q", 1): Fetches(3, 9.0, 6.0, 2)}
    for batch in range(2000):
        found = sums.addInPlace(found, {("q", batch): one})
    assert list(found) == [("q", batch) for batch in range(1000, 2000)]


def test_each_source_of_topics_has_a_row_and_failures_are_counted() -> None:
    rows: list[Any] = []
    metrics = QueryMetrics(rows.append)
    query, run = UUID(int=1), UUID(int=2)
    progress = SimpleNamespace(
        id=query,
        runId=run,
        name="orders",
        batchId=4,
        timestamp="2026-11-24T10:00:00Z",
        durationMs={"latestOffset": 3, "triggerExecution": 90},
        sources=[
            source(offsets(1), offsets(2), offsets(1)),
            source("1", "2"),
            source('{"T":{"0":1}}', "["),
            source(None, None),
        ],
    )
    event: Any = SimpleNamespace(progress=progress)
    ended: Any = SimpleNamespace(id=query, runId=run, exception="lost\nat ...")
    stopped: Any = SimpleNamespace(id=query, runId=run, exception=None)
    metrics.onQueryProgress(event)
    metrics.onQueryTerminated(ended)
    metrics.onQueryTerminated(stopped)
    metrics.onQueryProgress(event)
    assert [row["errors"] for row in rows] == [0, 1, 1]
    assert rows[1] == {"queryId": str(query), "runId": str(run), "errors": 1, "error": "lost"}
    assert (rows[0]["name"], rows[0]["batchId"], rows[0]["latestOffsetMs"], rows[0]["batchMs"]) == ("orders", 4, 3, 90)
