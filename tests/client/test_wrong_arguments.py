"""What a program gives by mistake is refused by name, before it does harm."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from ledgermq import client
from ledgermq.client import Admin, Consumer, LedgerMQError, Producer, SimpleConsumer, errors
from ledgermq.client.errors import ClosedError, ConnectionLostError, InvalidArgumentError
from tests.client.fake import FakeCluster

NAMESRV = "127.0.0.1:9876"
NAIVE = datetime(2026, 1, 1)  # wrong on purpose


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Producer(None), "no nameserver address"),  # type: ignore[arg-type]
        (lambda: Producer([9876]), "nameserver address is int"),  # type: ignore[list-item]
        (lambda: Producer(NAMESRV, 5), "group is int"),  # type: ignore[arg-type]
        (lambda: Producer(NAMESRV, linger_s="1"), "linger_s"),  # type: ignore[arg-type]
        (lambda: Producer(NAMESRV, in_flight_max=0), "in_flight_max"),
        (lambda: Producer(NAMESRV, deadline_s=0), "deadline_s"),
        (lambda: Admin(NAMESRV, attempt_timeout_s=-1), "attempt_timeout_s"),
        (lambda: Admin(NAMESRV, tls="yes"), "tls"),  # type: ignore[arg-type]
        (lambda: Admin(NAMESRV, credentials=("key", "secret")), "credentials"),  # type: ignore[arg-type]
        (lambda: Consumer(NAMESRV, "g", None), "topics"),  # type: ignore[arg-type]
        (lambda: Consumer(NAMESRV, "g", [1]), "topic is int"),  # type: ignore[list-item]
        (lambda: Consumer(NAMESRV, "g", {"T": None}), "tag expression of topic 'T' is NoneType"),
        (lambda: Consumer(NAMESRV, "g", "T", auto_commit_s=0), "auto_commit_s"),
        (lambda: Consumer(NAMESRV, "g", "T", prefetch_messages=0), "prefetch_messages"),
        (lambda: Consumer(NAMESRV, "g", "T", start=NAIVE), "start is .* without a time zone"),
    ],
)
def test_settings_are_refused_when_they_are_given(make: Callable[[], object], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        make()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": 5}, "topic is int"),
        ({"tags": 5}, "tags are a text"),
        ({"keys": 5}, "keys texts"),
        ({"keys": ["a", 1]}, "keys texts"),
        ({"properties": {"a": 1}}, "properties text to text"),
        ({"properties": ["a"]}, "properties text to text"),
        ({"order_key": 5}, "order_key is int"),
        ({"queue": "0"}, "queue is '0'"),
        ({"delay": "5"}, "delay is '5'"),
        ({"delay_level": "3"}, "delay_level is '3'"),
        ({"deliver_at": 5.0}, "deliver_at is float"),
        ({"deliver_at": NAIVE}, "without a time zone"),
    ],
)
@pytest.mark.parametrize("linger_s", [None, 0.0])
async def test_messages_are_refused_when_they_are_sent(
    cluster: FakeCluster, options: dict[str, Any], said: str, linger_s: float | None
) -> None:
    await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv, linger_s=linger_s) as producer:
        with pytest.raises(InvalidArgumentError, match=said):
            await producer.send(**{"topic": "T", "body": b"x"} | options)


async def test_an_option_that_send_soon_does_not_know_is_not_passed_over(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv) as producer:
        with pytest.raises(TypeError, match="delay"):
            await producer.send_soon("T", b"x", delay=60)  # type: ignore[call-arg]
    assert not broker.ledger.bodies("T")


async def test_a_transaction_is_one_block(cluster: FakeCluster) -> None:
    await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv) as producer:
        transaction = producer.transaction("T", b"x")
        async with transaction:
            pass
        with pytest.raises(ClosedError, match="already begun"):
            async with transaction:
                raise AssertionError("the block is not run")


async def test_one_way_sends_do_not_wait_for_ever_for_a_broker_that_takes_nothing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledgermq.client.producer.producer.UNSENT_BYTES_MAX", -1)  # as if there were always more
    await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv, attempt_timeout_s=0.1) as producer:
        with pytest.raises(ConnectionLostError, match="does not read"):
            await producer.send_oneway("T", b"x")


async def test_messages_are_acknowledged_not_lists_of_them(cluster: FakeCluster) -> None:
    async with SimpleConsumer(cluster.namesrv, "g", "T") as consumer:
        with pytest.raises(InvalidArgumentError, match="given a list"):
            await consumer.ack([])  # type: ignore[arg-type]


def test_every_error_can_be_imported_with_the_client() -> None:
    tree = [error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, LedgerMQError)]
    assert {error.__name__ for error in tree} <= set(client.__all__)
    assert all(hasattr(client, name) for name in client.__all__)
