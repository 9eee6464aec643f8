"""Collectors of /metrics look at one queue a step, however many there are, and never walk the table of all queues."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from broker.metrics.groups import Groups
from broker.metrics.page import MetricsPage
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.wall_clock import wall_clock_ms
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_table import QueueTable
from telemetry.families import Collector, Row
from telemetry.metrics import Registry
from tests.broker.conftest import Desk, make_topic, send, small_config
from tests.broker.metrics.test_metrics_page import beat, read_page, text_of, value

TOPICS, QUEUES = 4, 30


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(small_config(tmp_path))
    await desk.start()
    client = desk.client()
    await beat(client, "g", "CONSUME_PASSIVELY", "T1")
    for name in ("T0", "%RETRY%g", "T1", "T2"):
        await make_topic(client, name, queues=QUEUES)
        for queue_id in range(QUEUES):
            await send(client, topic=name, queue=queue_id)
            fields = {"consumerGroup": "g", "topic": name, "queueId": str(queue_id), "commitOffset": "0"}
            assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0
    yield desk
    await desk.stop()


class Looks:
    """Counts how often queues are looked up in the table; a walk over all of it fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        find = QueueTable.find

        def counted(table: QueueTable, topic: bytes | str, queue_id: int) -> ConsumeQueue | None:
            self.count += 1
            return find(table, topic, queue_id)

        def walked(table: QueueTable) -> Iterator[ConsumeQueue]:
            raise AssertionError("all queues are walked over in one step")

        monkeypatch.setattr(QueueTable, "find", counted)
        monkeypatch.setattr(QueueTable, "__iter__", walked)


def steps(collector: Collector) -> Iterator[Row | None]:
    for family in collector:
        if family is None:
            yield None
        else:
            yield from family.rows


async def test_a_step_looks_at_one_queue(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, before = Looks(monkeypatch), 0
    for _ in steps(Groups(desk.parts, wall_clock_ms).collect()):
        assert looks.count <= before + 1
        before = looks.count
    assert looks.count >= QUEUES


async def test_a_whole_page_never_walks_over_all_queues_and_its_sums_are_right(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    Looks(monkeypatch)
    page = MetricsPage(desk.config, Registry(), desk.parts, wall_clock_ms)
    shown = read_page(await text_of(page.whole()))
    assert value(shown["rocketmq_consumer_lag_messages"], topic="T1", consumer_group="g") == QUEUES
