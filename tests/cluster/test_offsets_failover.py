"""A leader dies while a group reports how far it is: what it reads again was reported within the last second."""

import asyncio
from typing import Any

import pytest

from ledgermq.client import Admin
from ledgermq.remoting.codec.codes import RequestCode
from tests.cluster.raw_desk import QUEUES, Desk, now_ms
from tests.limits import WAIT_S

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
FORGOTTEN_MS_MAX = 1000
REPORT_EVERY_S = 0.01
REPORTS = 250


async def report(desk: Desk, topic: str, told: list[tuple[int, int]]) -> None:
    """Report rising offsets one-way, as consumers do, until cancelled; `told` gets (when in ms, offset)."""
    while True:
        offset = told[-1][1] + 1 if told else 1
        for queue_id in range(QUEUES):
            fields = {"consumerGroup": "g", "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
            await desk.tell(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        told.append((now_ms(), offset))
        await asyncio.sleep(REPORT_EVERY_S)


async def stored(desk: Desk, topic: str) -> int:
    """The least of the group's offsets as the leader of now knows them."""
    found = []
    for queue_id in range(QUEUES):
        fields = {"consumerGroup": "g", "topic": topic, "queueId": str(queue_id)}
        found.append(int((await desk.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)).ext["offset"]))
    return min(found)


@pytest.mark.parametrize("fault", ["kill", "pause"])
async def test_a_group_reads_again_at_most_what_it_reported_in_the_last_second(group: Any, fault: str) -> None:
    cluster, topic = group, f"offsets-{fault}"
    desk = Desk(cluster, topic)
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(topic, queue_count=QUEUES)
    await desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g"}')
    told: list[tuple[int, int]] = []
    (leader,) = await asyncio.to_thread(cluster.nodes, "master")
    reporter = asyncio.create_task(report(desk, topic, told))
    async with asyncio.timeout(WAIT_S):
        while len(told) < REPORTS:
            await asyncio.sleep(REPORT_EVERY_S)
    fault_at = now_ms()
    cluster.act(fault, leader["name"])
    reporter.cancel()
    await desk.leave()
    survived = await stored(desk, topic)
    safe = max((offset for at, offset in told if at <= fault_at - FORGOTTEN_MS_MAX), default=0)
    assert safe > 0
    assert safe <= survived <= told[-1][1]
    await desk.close()
