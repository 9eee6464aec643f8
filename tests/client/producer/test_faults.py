"""Latency fault tolerance: RocketMQ's tables, who is passed over, for how long, and the probes."""

import json
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client import FaultStrategy, Producer
from ledgermq.client.core.calls import FailedTry, Target
from ledgermq.client.errors import (
    AnswerTimeoutError,
    BusyError,
    ConnectFailedError,
    InvalidArgumentError,
    LedgerMQError,
    MessageRejectedError,
    NotLeaderError,
)
from ledgermq.client.producer.faults import FaultWatch
from ledgermq.client.producer.queue_choice import QueueChoice
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.route import BrokerRoute, MessageQueue, TopicRoute
from tests.client.fake import FakeCluster, eventually, refuse

VECTORS: dict[str, list[Any]] = json.loads((Path(__file__).parent / "fault_vectors.json").read_text())
BROKERS = ("b0", "b1", "b2")
AT = "127.0.0.1:1"


@pytest.mark.parametrize(("latency_ms", "isolated", "avoided_ms"), VECTORS["durations"])
def test_a_latency_is_avoided_as_long_as_in_java(latency_ms: int, isolated: bool, avoided_ms: int) -> None:
    strategy = FaultStrategy()
    assert strategy.not_available_ms(latency_ms, isolate=isolated) == avoided_ms
    strategy.observe("b", latency_ms, 1000, isolate=isolated, reachable=True)
    if avoided_ms:
        assert not strategy.is_available("b", 1000 + avoided_ms - 1)
    assert strategy.is_available("b", 1000 + avoided_ms)


class FixedRoutes:
    """Three brokers, one queue each."""

    revision = 1

    def route(self, topic: str) -> TopicRoute:
        queues = tuple(MessageQueue(topic, broker, 0) for broker in BROKERS)
        return TopicRoute(topic, {name: BrokerRoute(name, "c", {0: AT}) for name in BROKERS}, queues, queues)

    def leader(self, broker: str) -> str:
        return AT


@pytest.mark.parametrize("first", range(0, len(VECTORS["choices"]), 32))
def test_the_same_brokers_may_be_chosen_as_in_java(first: int) -> None:
    for available, reachable, last, expected in VECTORS["choices"][first : first + 32]:
        watch = FaultWatch(FaultStrategy())
        choice = QueueChoice(FixedRoutes(), may_create=False, faults=watch)  # type: ignore[arg-type]  # all it needs
        for number, name in enumerate(BROKERS):
            is_late = not available >> number & 1
            watch.strategy.observe(name, 0, watch.now_ms, isolate=is_late, reachable=bool(reachable >> number & 1))
        targets = [choice.next("T", None if last < 0 else f"b{last}") for _ in range(12)]
        assert {int(target.broker[1]) for target in targets if target} <= set(expected)
        if last < 0:
            assert {int(target.broker[1]) for target in targets if target} == set(expected)


def test_an_avoidance_is_not_shortened_by_a_better_latency() -> None:
    strategy = FaultStrategy()
    strategy.observe("b", 5000, 0, isolate=False, reachable=True)
    strategy.observe("b", 600, 100, isolate=False, reachable=True)
    strategy.observe("b", 1, 200, isolate=False, reachable=True)
    assert not strategy.is_available("b", 9_999)
    assert strategy.is_available("b", 10_000)
    assert strategy.is_available("another", 0)


def test_own_tables_are_taken_and_bad_ones_refused() -> None:
    assert FaultStrategy(latency_max_ms=[10], not_available_ms=[77]).not_available_ms(10) == 77
    for latencies, durations in [([1, 2], [1]), ([2, 1], [0, 0]), ([1, 1], [0, 0])]:
        with pytest.raises(InvalidArgumentError):
            FaultStrategy(latency_max_ms=latencies, not_available_ms=durations)


@pytest.mark.parametrize(
    ("failure", "available", "reachable"),
    [
        (None, True, True),
        (MessageRejectedError(AT, 13, "no"), True, True),
        (BusyError(AT, 2, "busy"), False, True),
        (NotLeaderError(AT, 14, "no"), True, True),
        (AnswerTimeoutError(AT, 3), False, False),
        (ConnectFailedError(AT, "refused"), False, False),
    ],
)
def test_what_a_try_says_of_its_broker(failure: LedgerMQError | None, available: bool, reachable: bool) -> None:
    watch = FaultWatch(FaultStrategy(probe=True))
    watch.on_try(Target("b", 0, AT), 0.001, failure)
    watch.on_try(Target("other", -1, AT), 9.0, AnswerTimeoutError(AT, 3))
    assert watch.strategy.is_available("b", watch.now_ms) is available
    assert watch.strategy.is_reachable("b") is reachable
    assert watch.strategy.is_available("other", watch.now_ms), "only sends count"


async def test_a_failing_broker_is_passed_over_and_probed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledgermq.client.producer.faults.ROUND_S", 0.05)
    (a,) = await cluster.add("a", topics={"T": 2})
    (b,) = await cluster.add("b", topics={"T": 2})
    retries: list[FailedTry] = []
    strategy = FaultStrategy(probe=True)
    async with Producer(cluster.namesrv, faults=strategy, on_retry=retries.append) as producer:
        await producer.queues("T")
        for _ in range(4):
            await producer.send("T", b"x")
        a.plan(RequestCode.SEND_MESSAGE_V2, refuse(2, "busy"))
        sent = [await producer.send("T", b"x") for _ in range(20)]
        assert {result.broker for result in sent} == {"b"}
        assert [(retry.broker, retry.attempts, type(retry.failure)) for retry in retries] == [("a", 1, BusyError)]
        strategy.observe("b", 0, 0, isolate=False, reachable=False)
        await eventually(lambda: strategy.is_reachable("b"))
    assert b.count(RequestCode.GET_MAX_OFFSET) > 0


async def test_a_hook_that_fails_hurts_nobody(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.plan(RequestCode.SEND_MESSAGE_V2, refuse(2, "busy"))

    def fail(retry: FailedTry) -> None:
        raise ValueError(retry.what)

    async with Producer(cluster.namesrv, on_retry=fail) as producer:
        assert (await producer.send("T", b"x")).attempts == 2
    assert "on_retry failed" in caplog.text
