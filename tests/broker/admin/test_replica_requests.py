"""What is asked about replicas of a broker that has none, and what is refused with a reason."""

import pytest

from broker.admin.unserved import REASONS
from ledgermq.remoting.codec.codes import RequestCode
from tests.broker.conftest import Desk, MemoryClient


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
