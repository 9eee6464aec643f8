"""What a producer does when something goes wrong: retry, redirect, give up, and what it then says."""

import asyncio
import time

import pytest

from ledgermq.client import Action, Producer
from ledgermq.client.core import calls
from ledgermq.client.core.routes import ASK_AGAIN_S, Routes
from ledgermq.client.core.session import ATTEMPT_TIMEOUT_S
from ledgermq.client.errors import (
    AnswerTimeoutError,
    BusyError,
    ClosedError,
    ConnectFailedError,
    ConnectionLostError,
    DeadlineExceededError,
    MessageRejectedError,
    NoRouteError,
    NotLeaderError,
    PermissionDeniedError,
    RefusedError,
    TopicNotFoundError,
)
from ledgermq.message.properties import decode_properties
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from node.node_config import RaftKeys
from tests.client.conftest import StartCluster
from tests.client.fake import FakeCluster, eventually, hang_up, ignore, refuse, store_and_hang_up
from tests.limits import WAIT_S

SEND = RequestCode.SEND_MESSAGE_V2


async def test_a_send_whose_answer_is_lost_is_sent_again_under_the_same_id(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.plan(SEND, store_and_hang_up)
    async with Producer(cluster.namesrv) as producer:
        result = await producer.send("T", b"x")
    first, second = broker.ledger.queues["T", 0]
    assert {decode_properties(record.properties)["UNIQ_KEY"] for record in (first, second)} == {result.message_id}
    assert (result.attempts, result.queue_offset) == (2, 1)


async def test_a_send_that_is_not_answered_in_time_is_tried_at_another_broker(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    await cluster.add("b2", topics={"T": 1})
    broker.silent = True
    async with Producer(cluster.namesrv, attempt_timeout_s=0.1) as producer:
        results = [await producer.send("T", b"x") for _ in range(2)]
    assert max(result.attempts for result in results) == 2
    assert {result.queue.broker for result in results} == {"b2"}


async def test_a_send_waits_for_the_only_broker_while_the_connection_stands_and_is_stored_once(
    cluster: FakeCluster,
) -> None:
    """The broker stands still, and reads what was sent to it when it wakes up. Others' time-outs end no connection."""
    (broker,) = await cluster.add(topics={"T": 1})
    late: list[tuple[Connection, Command]] = []
    broker.plan(SEND, *[lambda _, connection, command: late.append((connection, command))] * 3, ignore)
    async with Producer(cluster.namesrv, attempt_timeout_s=0.05) as producer:
        sends = [asyncio.ensure_future(producer.send("T", b"%d" % number)) for number in range(3)]
        await eventually(lambda: len(late) == 3)
        with pytest.raises(AnswerTimeoutError):
            await producer.send("T", b"no", attempts_max=1)
        for connection, command in late:
            broker.answer_send(connection, command, [broker.store(command)])
        assert [(await send).attempts for send in sends] == [1, 1, 1]
    assert len(broker.ledger.queues["T", 0]) == 3


async def test_a_send_does_not_wait_where_the_network_loses_what_is_sent(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.plan(SEND, ignore)
    monkeypatch.setattr(Connection, "is_standing", property(lambda _: False))
    async with Producer(cluster.namesrv, attempt_timeout_s=0.1) as producer:
        assert (await producer.send("T", b"x")).attempts == 2


def test_a_try_takes_longer_than_a_broker_waits_for_replicas() -> None:
    """Otherwise each message that a master without its slave has stored is sent, and stored, again."""
    assert RaftKeys().append_timeout_ms + 1000 <= 1000 * ATTEMPT_TIMEOUT_S


async def test_a_leader_hint_is_followed_without_a_nameserver(start_cluster: StartCluster) -> None:
    cluster = await start_cluster(holds=False)
    old, new = await cluster.add(nodes=2, topics={"T": 1})
    cluster.nameserver.freeze("T")
    cluster.lead(new)
    old.hint = new.address
    async with Producer(cluster.namesrv) as producer:
        result = await producer.send("T", b"x")
        assert result.attempts == 2
        assert (await producer.send("T", b"x")).attempts == 1, "the hint is remembered"
    assert old.count(SEND) == 1


async def test_a_hint_gives_way_to_a_route_that_names_somebody_else(start_cluster: StartCluster) -> None:
    cluster = await start_cluster(holds=False)
    first, second, third = await cluster.add(nodes=3, topics={"T": 1})
    async with Producer(cluster.namesrv) as producer:
        await producer.send("T", b"x")
        cluster.lead(second)
        first.hint = second.address
        await producer.send("T", b"x")
        cluster.lead(third)  # the second gives no hint
        await producer.send("T", b"x")
    assert len(cluster.ledgers["b"].bodies("T")) == 3


@pytest.mark.parametrize("holds", [True, False], ids=["held questions", "polling"])
async def test_sends_survive_a_leader_that_is_killed(start_cluster: StartCluster, holds: bool) -> None:
    cluster = await start_cluster(holds=holds)
    old, new = await cluster.add(nodes=2, topics={"T": 4})
    async with Producer(cluster.namesrv) as producer:
        await producer.send("T", b"warm")
        old.plan(SEND, *[ignore] * 20)
        sends = [asyncio.ensure_future(producer.send("T", b"x")) for _ in range(200)]
        await eventually(lambda: old.count(SEND) >= 100)
        await cluster.kill(old)
        await asyncio.sleep(0.1)
        assert not all(send.done() for send in sends), "some wait for a leader"
        cluster.lead(new)
        results = await asyncio.gather(*sends)
    assert len({result.message_id for result in results}) == 200
    stored = {decode_properties(r.properties)["UNIQ_KEY"] for q in range(4) for r in new.ledger.queues["T", q]}
    assert {result.message_id for result in results} <= stored
    assert max(result.attempts for result in results) > 1


async def test_sends_leave_a_leader_that_is_silent_once_another_leads(cluster: FakeCluster) -> None:
    old, new = await cluster.add(nodes=2, topics={"T": 1})
    async with Producer(cluster.namesrv, attempt_timeout_s=600, deadline_s=600) as producer:
        await producer.send("T", b"warm")
        old.silent = True
        send = asyncio.ensure_future(producer.send("T", b"x"))
        await eventually(lambda: old.count(SEND) == 2)
        cluster.lead(new)
        async with asyncio.timeout(WAIT_S):
            assert (await send).attempts == 2


async def test_a_nameserver_that_does_not_answer_is_passed_over(start_cluster: StartCluster) -> None:
    cluster = await start_cluster(nameserver_count=2)
    await cluster.add(topics={"T": 1})
    await cluster.nameservers[0].kill()
    async with Producer(cluster.namesrv) as producer:
        assert (await producer.send("T", b"x")).attempts == 1


async def test_a_nameserver_that_lives_in_the_past_is_not_asked_for_ever(start_cluster: StartCluster) -> None:
    cluster = await start_cluster(nameserver_count=2)
    old, new = await cluster.add(nodes=2, topics={"T": 1})
    cluster.nameservers[0].freeze("T")
    await cluster.kill(old)
    cluster.lead(new)
    async with Producer(cluster.namesrv) as producer:
        assert (await producer.send("T", b"x")).queue_offset == 0


@pytest.mark.parametrize("with_hint", [True, False])
async def test_without_nameservers_the_members_of_the_last_route_tell_who_leads(
    start_cluster: StartCluster, with_hint: bool
) -> None:
    cluster = await start_cluster(nameserver_count=2)
    old, follower, new = await cluster.add(nodes=3, topics={"T": 1})
    async with Producer(cluster.namesrv) as producer:
        await producer.send("T", b"warm")
        for nameserver in cluster.nameservers:
            await nameserver.kill()
        await cluster.kill(old)
        cluster.lead(new)
        follower.hint = new.address if with_hint else None
        assert (await producer.send("T", b"x", deadline_s=30)).queue_offset == 1
        assert (await producer.send("T", b"y")).attempts == 1, "the new leader is remembered"


async def test_without_nameservers_a_leader_elected_later_is_found(cluster: FakeCluster) -> None:
    old, follower, new = await cluster.add(nodes=3, topics={"T": 1})
    async with Producer(cluster.namesrv) as producer:
        await producer.send("T", b"warm")
        cluster.lead(None)  # the last that nameservers tell: nobody leads
        await eventually(lambda: producer._session.routes.leader("b") is None)
        await cluster.nameserver.kill()
        await old.kill()
        sending = asyncio.ensure_future(producer.send("T", b"x", deadline_s=30))
        await eventually(lambda: follower.count(SEND) > 0 and new.count(SEND) > 0, "the members are asked in turn")
        cluster.lead(new)
        assert (await sending).queue_offset == 1


async def test_nameservers_that_come_back_are_asked_within_a_second(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def watched_sleep(delay_s: float) -> None:
        pauses.append(delay_s)
        await sleep(delay_s / 100)  # two minutes in little time

    await cluster.add(topics={"T": 1})
    monkeypatch.setattr(asyncio, "sleep", watched_sleep)
    async with Producer(cluster.namesrv) as producer:
        await producer.send("T", b"warm")
        await cluster.nameserver.kill()
        await eventually(lambda: sum(pauses) > 120)
        assert max(pauses) <= 0.3
        await cluster.nameserver.start()
        asked_count = cluster.nameserver.count(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        await eventually(lambda: cluster.nameserver.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) > asked_count)


async def test_a_round_robin_send_goes_to_another_broker_at_once(cluster: FakeCluster) -> None:
    (bad,) = await cluster.add("b1", topics={"T": 1})
    (good,) = await cluster.add("b2", topics={"T": 1})
    bad.plan(SEND, *[refuse(14, "disk full", cause="disk-full", retryAfterMs="60000")] * 5)
    async with Producer(cluster.namesrv, deadline_s=5) as producer:
        results = [await producer.send("T", b"x") for _ in range(4)]
    assert {result.broker for result in results} == {"b2"}
    assert len(good.ledger.bodies("T")) == 4


async def test_a_send_to_one_queue_goes_nowhere_else(cluster: FakeCluster) -> None:
    (bad,) = await cluster.add("b1", topics={"T": 1})
    await cluster.add("b2", topics={"T": 1})
    bad.plan(SEND, hang_up, hang_up)
    async with Producer(cluster.namesrv) as producer:
        queue = (await producer.queues("T"))[0]
        result = await producer.send("T", b"x", queue=queue)
    assert (result.queue, result.attempts) == (queue, 3)


async def test_sends_of_one_key_keep_their_order_when_one_is_tried_again(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 8})
    broker.plan(SEND, hang_up, hang_up)
    async with Producer(cluster.namesrv) as producer:
        results = await asyncio.gather(*(producer.send("T", b"%d" % i, order_key="k") for i in range(20)))
    assert len({result.queue for result in results}) == 1
    assert broker.ledger.bodies("T") == [b"%d" % i for i in range(20)]


async def test_a_busy_broker_is_left_alone_for_as_long_as_it_says(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.plan(SEND, refuse(2, "busy", cause="busy", retryAfterMs="300"))
    async with Producer(cluster.namesrv) as producer:
        began_at = time.monotonic()
        assert (await producer.send("T", b"x")).attempts == 2
        assert time.monotonic() - began_at >= 0.3


async def test_of_many_sends_only_those_that_failed_are_sent_again(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 4})
    broker.plan(SEND, *[refuse(2)] * 10)
    async with Producer(cluster.namesrv) as producer:
        results = await asyncio.gather(*(producer.send("T", b"x") for _ in range(100)))
    assert sum(result.attempts - 1 for result in results) == 10
    assert len(broker.ledger.bodies("T")) == 100


@pytest.mark.parametrize(
    ("code", "kind", "tries"),
    [(13, MessageRejectedError, 1), (16, PermissionDeniedError, 3), (17, TopicNotFoundError, 3)],
)
async def test_a_refusal_for_good_is_raised(
    cluster: FakeCluster, code: int, kind: type[RefusedError], tries: int
) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.plan(SEND, *[refuse(code, "the reason")] * 5)
    async with Producer(cluster.namesrv) as producer:
        with pytest.raises(kind, match="the reason") as caught:
            await producer.send("T", b"x")
    assert (caught.value.code, caught.value.outcome_known, caught.value.action) == (code, True, Action.GIVE_UP)
    assert broker.count(SEND) == tries


async def test_a_refusal_after_a_lost_answer_leaves_the_outcome_unknown(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.plan(SEND, store_and_hang_up, refuse(13))
    async with Producer(cluster.namesrv) as producer:
        with pytest.raises(MessageRejectedError) as caught:
            await producer.send("T", b"x")
    assert not caught.value.outcome_known


async def test_the_deadline_ends_a_send_and_says_what_is_not_known(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.silent = True
    async with Producer(cluster.namesrv, attempt_timeout_s=0.4, deadline_s=2) as producer:
        with pytest.raises(DeadlineExceededError, match="may have been carried out") as caught:
            await producer.send("T", b"x")
    assert caught.value.attempts == 1
    assert [type(failure) for failure in caught.value.failures] == [AnswerTimeoutError]
    assert not caught.value.outcome_known
    assert caught.value.action is Action.RETRY


async def test_a_send_that_never_left_has_a_known_outcome(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    cluster.nameserver.freeze("T")  # it does not notice
    await broker.kill()
    async with Producer(cluster.namesrv, deadline_s=0.3) as producer:
        with pytest.raises(DeadlineExceededError) as caught:
            await producer.send("T", b"x")
    assert {type(failure) for failure in caught.value.failures} == {ConnectFailedError}
    assert caught.value.outcome_known


async def test_without_a_leader_the_deadline_says_so(cluster: FakeCluster) -> None:
    await cluster.add(topics={"T": 1})
    cluster.lead(None)
    async with Producer(cluster.namesrv) as producer:
        with pytest.raises(DeadlineExceededError, match="no broker to ask") as caught:
            await producer.send("T", b"x", deadline_s=0.2)
    assert caught.value.attempts == 0


@pytest.mark.parametrize("holds", [True, False], ids=["told", "asked"])
async def test_a_send_without_a_leader_waits_for_a_change_while_one_of_all_asks(
    start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch, holds: bool
) -> None:
    waits = 0
    changed = Routes.changed

    async def counted(routes: Routes, timeout_s: float, asked_topic: str | None = None) -> None:
        nonlocal waits
        waits += 1
        await changed(routes, timeout_s, asked_topic)

    cluster = await start_cluster(holds=holds)
    broker, _ = await cluster.add(nodes=2, topics={"T": 1})
    async with Producer(cluster.namesrv) as producer:
        await producer.send("T", b"warm")
        cluster.lead(None)
        sends = [asyncio.ensure_future(producer.send("T", b"x", deadline_s=WAIT_S)) for _ in range(100)]
        routes = producer._session.routes
        await eventually(lambda: [*routes._waiters.values()] == ["T"] * len(sends))  # until then each waits after a try
        monkeypatch.setattr(Routes, "changed", counted)
        revision = routes.revision
        asked, began_s = cluster.nameserver.count(RequestCode.GET_ROUTEINFO_BY_TOPIC), time.monotonic()
        await eventually(lambda: cluster.nameserver.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) >= asked + 10)
        asks = cluster.nameserver.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) - asked
        changes = routes.revision - revision
        assert waits <= len(sends) * changes and changes < 5  # each waits anew at a change, not whenever one asks
        assert asks <= 10 + (time.monotonic() - began_s) / ASK_AGAIN_S
        cluster.lead(broker)
        assert {(await send).queue.broker for send in sends} == {"b"}
    assert waits < 120


async def test_a_number_of_attempts_can_be_asked_for(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.plan(SEND, hang_up, refuse(2), refuse(2))
    async with Producer(cluster.namesrv) as producer:
        with pytest.raises(ConnectionLostError):
            await producer.send("T", b"x", attempts_max=1)
        with pytest.raises(BusyError):
            await producer.send("T", b"x", attempts_max=2)
    assert broker.count(SEND) == 3


async def test_an_unknown_topic_is_an_error_that_names_who_was_asked(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "UNKNOWN_TOPIC_PATIENCE_S", 0.1)
    await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv) as producer:
        with pytest.raises(NoRouteError, match=f"'Nowhere'.*{cluster.namesrv}") as caught:
            await producer.send("Nowhere", b"x")
    assert list(caught.value.answers) == [cluster.namesrv]


async def test_a_topic_created_while_a_send_waits_is_found(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv, create_topics=False) as producer:
        send = asyncio.ensure_future(producer.send("Later", b"x"))
        await eventually(lambda: cluster.nameserver.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) > 0)
        broker.ledger.topics["Later"] = 1
        cluster.changed()
        assert (await send).attempts == 1


async def test_more_than_the_bound_are_never_under_way(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv, in_flight_max=8) as producer:
        await producer.send("T", b"warm")
        broker.silent = True
        sends = [asyncio.ensure_future(producer.send("T", b"x", attempts_max=1)) for _ in range(50)]
        await eventually(lambda: broker.count(SEND) == 9)
        await asyncio.sleep(0.05)
        assert broker.count(SEND) == 9
        for send in sends[:9]:
            send.cancel()  # eight under way, and one that waits for room
        await eventually(lambda: broker.count(SEND) == 17)
        for send in sends:
            send.cancel()
        await asyncio.gather(*sends, return_exceptions=True)


async def test_closing_without_waiting_ends_sends_under_way(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    producer = Producer(cluster.namesrv)
    await producer.start()
    broker.silent = True
    send = asyncio.ensure_future(producer.send("T", b"x"))
    await eventually(lambda: broker.count(SEND) == 1)
    await producer.close(drain=False)
    with pytest.raises(ClosedError):
        await send


async def test_not_leader_is_a_redirect(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.plan(SEND, refuse(14, "n1 leads", cause="not-leader", leaderHint="127.0.0.1:1", retryAfterMs="50"))
    async with Producer(cluster.namesrv) as producer:
        with pytest.raises(NotLeaderError) as caught:
            await producer.send("T", b"x", attempts_max=1)
    error = caught.value
    assert (error.action, error.cause, error.leader_hint) == (Action.REDIRECT, "not-leader", "127.0.0.1:1")
    assert (error.retry_after_s, error.code, error.is_retryable) == (0.05, 14, True)


async def test_a_loop_that_is_held_up_is_told_of(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv) as producer:
        await producer.send("T", b"x")
        time.sleep(1.5)  # noqa: ASYNC251  # the point
        await eventually(lambda: "the event loop was blocked" in caplog.text)
        assert (await producer.send("T", b"y")).attempts == 1
