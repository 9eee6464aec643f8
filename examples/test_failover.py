"""Test your own code against failover: `pip install 'ledgermq[testing]'`, then `pytest test_failover.py`.

The fixture `ledgermq_cluster` is a Raft group of three real brokers. It is started once, and
whole again after each test.
"""

import asyncio
from collections.abc import Callable

import pytest

from ledgermq.client import Consumer, Producer
from ledgermq.testing import Cluster, ClusterError

ORDERS = [b"order %d" % number for number in range(100)]


async def save_and_read(cluster: Cluster, topic: str, break_it: Callable[[], object]) -> set[bytes]:
    """Send all orders while something breaks, and read them; this stands for the code under test."""
    async with Producer(cluster.namesrv) as producer, Consumer(cluster.namesrv, f"of-{topic}", topic) as consumer:
        breaking = asyncio.create_task(asyncio.to_thread(break_it))
        for order in ORDERS:
            await producer.send(topic, order)
        await breaking
        found: set[bytes] = set()
        async for message in consumer:
            found.add(message.body)
            if len(found) == len(ORDERS):
                break
    return found


def test_orders_survive_the_death_of_the_leader(ledgermq_cluster: Cluster) -> None:
    topic = ledgermq_cluster.topic()
    assert asyncio.run(save_and_read(ledgermq_cluster, topic, ledgermq_cluster.kill)) == set(ORDERS)
    assert [node.state for node in ledgermq_cluster.nodes].count("down") == 1


def test_orders_survive_a_partition(ledgermq_cluster: Cluster) -> None:
    topic = ledgermq_cluster.topic()
    try:
        isolated = ledgermq_cluster.partition()
    except ClusterError as error:
        pytest.skip(str(error))  # Toxiproxy is not installed
    assert asyncio.run(save_and_read(ledgermq_cluster, topic, ledgermq_cluster.heal)) == set(ORDERS)
    assert isolated in [node.name for node in ledgermq_cluster.nodes]
