"""Cold data: what groups read of it is counted and kept within limits; readers that are behind are sent elsewhere."""

from typing import Any

import orjson
import pytest

from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from store.queues import cold_limits
from tests.broker.conftest import Desk, MemoryClient, eventually, make_topic, pull_fields, send
from tests.broker.groups.test_clients import beat

CONTROLLED: dict[str, Any] = {"cold_data_control": True, "hot_memory_percent": 0, "cold_group_threshold_bytes": 300}
WHERE = "suggestWhichBrokerId"


async def shown(client: MemoryClient) -> dict[str, Any]:
    answer = await client.ask(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
    assert answer.code == 0
    return dict(orjson.loads(answer.body))


async def make_group(client: MemoryClient) -> None:
    body = b'{"groupName":"g","brokerId":2,"whichBrokerWhenConsumeSlowly":3}'
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)).code == 0


async def pull(client: MemoryClient, offset: int, **changes: object) -> Command:
    return await client.ask(RequestCode.PULL_MESSAGE, pull_fields(offset=offset, **changes))


@pytest.fixture
async def filled(desk: Desk, client: MemoryClient) -> MemoryClient:
    """A topic of six messages, of which all but the last lie behind the border."""
    await make_topic(client, "T", 1)
    for _ in range(6):
        await send(client)
    return client


@pytest.mark.parametrize("desk", [CONTROLLED], indirect=True)
async def test_a_push_consumer_that_has_read_its_share_of_cold_data_is_told_so(
    desk: Desk, filled: MemoryClient
) -> None:
    await beat(filled, "c")
    assert (await pull(filled, 0)).code == 0
    table = await shown(filled)
    assert table["runtimeTable"]["g"]["coldAcc"] == table["globalAcc"] > 300
    answer = await pull(filled, 0)
    assert answer.code == 2
    assert answer.remark is not None and "reading cold data" in answer.remark
    desk.parts.pull.cold.end_period()
    assert (await shown(filled))["globalAcc"] == 0
    assert (await pull(filled, 0)).code == 0


@pytest.mark.parametrize("desk", [CONTROLLED], indirect=True)
async def test_a_pull_consumer_waits_and_then_gets_one_message(desk: Desk, filled: MemoryClient) -> None:
    assert (await pull(filled, 0)).ext["nextBeginOffset"] == "6"
    now = 0.0
    desk.parts.pull.cold._clock = lambda: now
    opaque = filled.start(RequestCode.PULL_MESSAGE, pull_fields(offset=0))
    desk.parts.pull.cold.end_period()
    filled.take()
    assert opaque not in filled.answers
    now = 3.5
    desk.parts.pull.cold.end_period()
    answer = await filled.answer_to(opaque)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (0, "1")


@pytest.mark.parametrize("desk", [CONTROLLED], indirect=True)
async def test_a_group_may_have_a_threshold_of_its_own(desk: Desk, filled: MemoryClient) -> None:
    await beat(filled, "c")
    assert (await filled.ask(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, {}, b"g=1000000\n")).code == 0
    assert (await shown(filled))["configTable"] == {"g": 1000000}
    assert [(await pull(filled, 0)).code for _ in range(3)] == [0, 0, 0]
    assert (await filled.ask(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, {}, b"g")).code == 0
    assert (await pull(filled, 0)).code == 2


@pytest.mark.parametrize("desk", [CONTROLLED | {"cold_global_threshold_bytes": 1}], indirect=True)
async def test_what_all_groups_read_together_is_limited_for_each_that_reads_cold_data(
    desk: Desk, filled: MemoryClient
) -> None:
    await beat(filled, "c")
    await filled.ask(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, {}, b"g=1000000\n")
    assert [(await pull(filled, 0)).code for _ in range(2)] == [0, 2]


async def test_nothing_is_counted_when_it_is_off(desk: Desk, filled: MemoryClient) -> None:
    desk.config.hot_memory_percent = 0
    assert (await pull(filled, 0)).code == 0
    assert (await shown(filled))["runtimeTable"] == {}


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"g=many", "'many'"),
        (b"g=-1", "'-1'"),
        (b"g=" + b"9" * 30, "999"),
        (b"g=" + b"9" * 5000, "999"),
        (b"\xff", "UTF-8"),
    ],
)
async def test_a_threshold_that_is_no_number_is_refused(client: MemoryClient, body: bytes, part: str) -> None:
    answer = await client.ask(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, {}, body)
    assert answer.code == 29
    assert part in str(answer.remark)


async def test_the_log_is_read_ahead_or_not(desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    monkeypatch.setattr(type(desk.store.log), "set_reads_ahead", lambda _, reads_ahead: told.append(reads_ahead))
    for mode in ("1", "0"):
        answer = await client.ask(RequestCode.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": mode})
        assert (answer.code, answer.remark) == (0, f"set commitlog readahead mode success, mode: {mode}")
    for wrong, code in (("7", 29), ("x", 1)):
        assert (await client.ask(RequestCode.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": wrong})).code == code
    assert (await client.ask(RequestCode.SET_COMMITLOG_READ_MODE)).code == 1
    assert told == [False, True]


async def test_readers_stay_where_they_are_unless_slaves_may_be_read(desk: Desk, filled: MemoryClient) -> None:
    await make_group(filled)
    assert (await pull(filled, 0)).ext[WHERE] == "0"
    desk.config.slave_read = True
    assert (await pull(filled, 0)).ext[WHERE] == "2"


@pytest.mark.parametrize("desk", [{"slave_read": True, "accessMessageInMemoryMaxRatio": 0}], indirect=True)
async def test_a_reader_that_is_behind_is_sent_where_its_group_says(desk: Desk, filled: MemoryClient) -> None:
    await make_group(filled)
    assert (await pull(filled, 0, maxMsgNums=1)).ext[WHERE] == "3"
    assert (await pull(filled, 6)).ext[WHERE] == "2"
    assert cold_limits.MEMORY_BYTES > 0


@pytest.mark.parametrize("desk", [CONTROLLED], indirect=True)
async def test_a_client_that_goes_while_it_waits_is_forgotten(desk: Desk, filled: MemoryClient) -> None:
    other = desk.client()
    await other.ask(RequestCode.PULL_MESSAGE, pull_fields(offset=0))
    other.start(RequestCode.PULL_MESSAGE, pull_fields(offset=0))
    await eventually(lambda: len(desk.parts.pull.cold._held) == 1)
    other.close()
    desk.parts.pull.cold._clock = lambda: float("inf")
    desk.parts.pull.cold.end_period()
    assert desk.parts.pull.cold._held == []
