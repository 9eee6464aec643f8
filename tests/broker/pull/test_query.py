"""Queries by key: what Java answers, what the index cannot know, and every bad field."""

from typing import Any

import pytest

from ledgermq.message.record import decode_records
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from tests.broker.conftest import Desk, MemoryClient, make_topic, send
from tests.node_config import node_config

QUERY = RequestCode.QUERY_MESSAGE
NOT_FOUND = "can not find message, maybe time range not correct"


def query_fields(key: str, topic: str = "T", **changes: object) -> dict[str, str]:
    fields = {"topic": topic, "key": key, "maxNum": 64, "beginTimestamp": 0, "endTimestamp": (1 << 63) - 1, **changes}
    return {name: str(value) for name, value in fields.items() if value is not None}


async def give(client: MemoryClient, body: str, keys: str, unique: str = "ID", topic: str = "T") -> None:
    await send(client, body.encode(), b=topic, i=f"KEYS\x01{keys}\x02UNIQ_KEY\x01{unique}\x02TAGS\x01A\x02")


def bodies(answer: Command) -> list[str]:
    return [record.body.decode() for record in decode_records(answer.body)]


async def test_messages_of_a_key_come_in_the_logs_order_with_the_state_of_the_index(client: MemoryClient) -> None:
    await make_topic(client)
    for number in range(5):
        await give(client, f"m{number}", f"all k{number % 2}", f"ID{number}")
    answer = await client.ask(QUERY, query_fields("k1"))
    assert (answer.code, answer.remark) == (0, None)
    assert bodies(answer) == ["m1", "m3"]
    every = await client.ask(QUERY, query_fields("all"))
    last = decode_records(every.body)[-1]
    assert every.ext["indexLastUpdatePhyoffset"] == str(last.physical_offset)
    assert every.ext["indexLastUpdateTimestamp"] == str(last.store_timestamp)
    assert bodies(await client.ask(QUERY, query_fields("all", maxNum=2))) == ["m3", "m4"]
    assert bodies(await client.ask(QUERY, query_fields("ID2"))) == ["m2"]


@pytest.mark.parametrize("changes", [{"key": "nobody"}, {"topic": "U"}, {"endTimestamp": 1}, {"maxNum": 0}])
async def test_nothing_found_is_code_22(client: MemoryClient, changes: dict[str, Any]) -> None:
    await make_topic(client)
    await give(client, "m", "k")
    answer = await client.ask(QUERY, {**query_fields("k"), **{name: str(value) for name, value in changes.items()}})
    assert (answer.code, answer.remark, answer.body) == (22, NOT_FOUND, b"")
    assert dict(answer.ext) == {"indexLastUpdatePhyoffset": "0", "indexLastUpdateTimestamp": "0"}


async def test_keys_of_one_hash_are_told_apart(client: MemoryClient) -> None:
    await make_topic(client)
    await give(client, "one", "Aa")
    await give(client, "two", "BB")
    assert bodies(await client.ask(QUERY, query_fields("Aa"))) == ["one"]


async def test_the_window_is_exact_at_its_beginning(client: MemoryClient) -> None:
    await make_topic(client)
    await give(client, "m", "k")
    (record,) = decode_records((await client.ask(QUERY, query_fields("k"))).body)
    stored = record.store_timestamp
    for begin, code in ((stored, 0), (stored + 1, 22)):
        assert (await client.ask(QUERY, query_fields("k", beginTimestamp=begin, endTimestamp=begin + 5))).code == code


@pytest.mark.parametrize("desk", [{"default_query_max_count": 2}], indirect=True)
async def test_a_query_by_unique_key_has_the_brokers_own_limit(client: MemoryClient) -> None:
    await make_topic(client)
    for number in range(3):
        await give(client, f"m{number}", "k", "SAME")
    fields = query_fields("SAME", maxNum=1)
    assert bodies(await client.ask(QUERY, fields)) == ["m2"]
    assert bodies(await client.ask(QUERY, {**fields, "_UNIQUE_KEY_QUERY": "false"})) == ["m2"]
    assert bodies(await client.ask(QUERY, {**fields, "_UNIQUE_KEY_QUERY": "true"})) == ["m1", "m2"]


@pytest.mark.parametrize("desk", [{"max_message_size_bytes": 1000, "maxFrameSize": (1 << 16) + 2000}], indirect=True)
async def test_no_answer_is_larger_than_a_frame(client: MemoryClient) -> None:
    await make_topic(client)
    for number in range(5):
        await give(client, f"{number}" * 700, "k")
    assert [body[0] for body in bodies(await client.ask(QUERY, query_fields("k")))] == ["3", "4"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"topic": None}, "topic"),
        ({"key": None}, "key"),
        ({"maxNum": None}, "maxNum"),
        ({"maxNum": "many"}, "maxNum"),
        ({"beginTimestamp": "x"}, "beginTimestamp"),
        ({"endTimestamp": 1 << 63}, "endTimestamp"),
    ],
)
async def test_a_bad_field_is_named(client: MemoryClient, changes: dict[str, Any], named: str) -> None:
    answer = await client.ask(QUERY, query_fields(**{"key": "k", **changes}))
    assert answer.code != 0
    assert f"field {named} " in str(answer.remark)


@pytest.mark.parametrize("desk", [{"messageIndexEnable": False}], indirect=True)
async def test_without_an_index_nothing_is_found(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await give(client, "m", "k")
    assert (await client.ask(QUERY, query_fields("k"))).code == 22
    assert not (desk.config.store.root / "index").exists()


async def test_keys_are_found_after_a_restart(desk: Desk) -> None:
    client = desk.client()
    await make_topic(client)
    await give(client, "m", "k")
    await desk.stop()
    await desk.start()
    assert bodies(await desk.client().ask(QUERY, query_fields("k"))) == ["m"]


def test_sizes_that_no_index_file_can_have_are_refused() -> None:
    assert [name for name, _ in node_config(maxIndexNum=1).problems()] == ["maxIndexNum"]
    assert [name for name, _ in node_config(maxIndexNum=107_374_181).problems()] == ["maxIndexNum"]
    assert node_config(maxIndexNum=2, maxHashSlotNum=1).problems() == []
