"""What is asked about replicas: of a broker that has none, and of a Raft group; and what is refused with a reason."""

import orjson
import pytest

from broker.unserved import REASONS
from ledgermq.remoting.codes import RequestCode
from tests.broker.conftest import Desk, MemoryClient, topic_fields
from tests.broker.test_broker import ask
from tests.broker.test_raft_brokers import Group, group  # noqa: F401


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, {"minBrokerId": "0", "brokerName": "b"}),
        (RequestCode.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": "0"}),
        (RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON, {"configType": "topics"}),
        (RequestCode.POP_ROLLBACK, {}),
    ],
)
async def test_what_needs_nothing_done_is_answered_with_success(
    client: MemoryClient, code: int, fields: dict[str, str]
) -> None:
    assert (await client.ask(code, fields)).code == 0


async def test_a_broker_that_is_not_elected_has_no_epochs(client: MemoryClient) -> None:
    answer = await client.ask(RequestCode.GET_BROKER_EPOCH_CACHE)
    assert (answer.code, answer.remark) == (1, "this request only for controllerMode ")


async def test_every_request_that_is_known_but_not_served_says_why(desk: Desk, client: MemoryClient) -> None:
    assert not set(REASONS) & desk.parts.handler.codes
    for code, reason in REASONS.items():
        answer = await client.ask(code)
        assert (answer.code, answer.remark) == (3, f" request type {code} not supported: {reason}")


async def test_every_known_request_is_served_or_refused_with_a_reason(desk: Desk) -> None:
    codes = {value for value in vars(RequestCode).values() if isinstance(value, int)}
    started_with_the_listener = {RequestCode.UPDATE_BROKER_CONFIG}
    assert codes <= desk.parts.handler.codes | REASONS.keys() | started_with_the_listener


async def test_a_raft_member_tells_its_terms(group: Group) -> None:  # noqa: F811
    answer = await group.ask_leader(RequestCode.GET_BROKER_EPOCH_CACHE, {})
    told = orjson.loads(answer.body)
    (*_, last) = told["epochList"]
    log = group.leader.parts.store.log
    assert last["epoch"] == log.state.generation
    assert last["startOffset"] < told["maxOffset"] == log.max_offset
    assert last["endOffset"] == (1 << 63) - 1
    for broker in group.followers:
        other = orjson.loads((await ask(group.client, broker, RequestCode.GET_BROKER_EPOCH_CACHE, {})).body)
        assert other["epochList"] == told["epochList"]
        assert other["brokerId"] > 0


async def test_a_raft_log_is_never_read_ahead(group: Group) -> None:  # noqa: F811
    answer = await ask(group.client, group.leader, RequestCode.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": "0"})
    assert answer.code == 3
    await group.ask_leader(RequestCode.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": "1"})


async def test_a_topic_is_removed_whichever_member_is_asked(group: Group) -> None:  # noqa: F811
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))
    await group.everywhere(lambda broker: "T" in broker.parts.state.topics)
    for broker in (*group.followers, group.leader):
        answer = await ask(group.client, broker, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert answer.code == 0, answer
    await group.everywhere(lambda broker: "T" not in broker.parts.state.topics)
