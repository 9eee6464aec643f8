"""What the driver of client failovers counts, from lines that clients could have printed."""

import math
from typing import Any, cast

from benchmarks.client_failover import drive


def _client(*deliveries: tuple[int, str, int, float]) -> drive.Client:
    """A client with these deliveries: number, queue, offset, and when, in seconds."""
    client = drive.Client(cast(Any, None))
    client.lines += [f"G {n} 0 {at * 1e6:.0f} {queue} {offset}".split() for n, queue, offset, at in deliveries]
    return client


PRODUCER = _client()
FIRST = _client((0, "b/0", 0, 1.0), (1, "b/1", 0, 1.0), (2, "b/0", 1, 8.0))
JOINING = _client((1, "b/1", 0, 2.0), (3, "b/1", 1, 8.0))
"""It takes over a queue, and reads a message again at which the queue changes hands."""


def test_what_is_read_again_counts_once_the_queues_are_divided() -> None:
    def again(*consumers: drive.Client) -> list[str]:
        felt = drive.figures(PRODUCER, list(consumers), 5.0, 0.0, 3.0, math.inf, is_ordered=True)
        return cast(list[str], felt["again"])

    assert again(FIRST, JOINING) == []
    assert again(FIRST, JOINING, _client((2, "b/0", 1, 9.0))) == ["b/0 1 after 4.0 s"]


def test_queues_are_divided_when_each_consumer_reads_its_share() -> None:
    assert drive.are_divided([FIRST], 2)
    assert drive.are_divided([FIRST, JOINING], 2)
    assert not drive.are_divided([FIRST, JOINING], 4), "two queues are read by nobody"
    assert not drive.are_divided([FIRST, _client()], 2), "the second one has none"
