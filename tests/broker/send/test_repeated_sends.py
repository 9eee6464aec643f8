"""Sends whose headers repeat an earlier one are stored, answered and refused like all others."""

import dataclasses

import pytest

from ledgermq.message.flags import INNER_BATCH
from ledgermq.message.record import Record
from ledgermq.remoting.codec.command import ONEWAY_FLAG, Command
from ledgermq.remoting.codec.repeated_headers import RepeatedSend
from tests.broker.conftest import Desk, MemoryClient, eventually, make_topic, send_fields, topic_fields

COUNT = 24
FIRST = 100


def _repeated(client: MemoryClient) -> list[RepeatedSend]:
    """Have the client's connection note the repeated sends among its requests."""
    found: list[RepeatedSend] = []
    handler = client.connection._handler
    on_request = handler.on_request

    class Noting:
        def __getattr__(self, name: str) -> object:
            return getattr(handler, name)

        def on_request(self, connection: object, command: Command) -> None:
            if isinstance(command, RepeatedSend):
                found.append(command)
            on_request(connection, command)  # type: ignore[arg-type]

    client.connection._handler = Noting()  # type: ignore[assignment]
    return found


def _stored(desk: Desk, client: MemoryClient) -> list[object]:
    port = client.connection.peer[1]

    def plain(record: Record) -> object:
        blank = dict.fromkeys(("physical_offset", "store_timestamp", "queue_offset", "born_host"))
        return {**{field.name: getattr(record, field.name) for field in dataclasses.fields(record)}, **blank}

    return [plain(record) for record in desk.records() if record.born_host.port == port]


async def _send_all(
    client: MemoryClient, properties: str, changes: dict[str, str] | None = None, *, flag: int = 0
) -> list[object]:
    """Send messages with other keys, times and queues; return their answers without what differs anyway."""
    for number in range(COUNT):
        key = f"7F0000{number:02d}"
        fields = send_fields(queue=number % 3, g=str(1_700_000_000_000 + number), i=properties.replace("@", key))
        client.give(Command(310, FIRST + number, flag, fields | (changes or {}), b"x" * (number + 1), language="JAVA"))
    if flag:
        return []
    answers = [await client.answer_to(FIRST + number) for number in range(COUNT)]
    told = ("queueId", "transactionId", "TRACE_ON", "MSG_REGION", "copies", "term")
    return [(answer.code, answer.remark, *(answer.ext.get(name) for name in told)) for answer in answers]


@pytest.mark.parametrize(
    ("properties", "changes"),
    [
        ("UNIQ_KEY\x01@\x02WAIT\x01true\x02", {}),
        ("UNIQ_KEY\x01@", {"h": "5", "j": "2", "f": "1"}),
        ("TAGS\x01TagA\x02UNIQ_KEY\x01@\x02KEYS\x01a b\x02", {}),
        ("UNIQ_KEY\x01@\x02TAGS\x01é\x02", {}),
        ("UNIQ_KEY\x01@\x02WAIT\x01false\x02", {}),
        ("UNIQ_KEY\x01@\x02DELAY\x013\x02", {}),
        ("UNIQ_KEY\x01@\x02__SHARDINGKEY\x01s\x02", {}),
        ("UNIQ_KEY\x01@\x02CLUSTER\x01other\x02", {}),
        ("UNIQ_KEY\x01@\x02TRAN_MSG\x01true\x02", {"f": "4"}),
        ("XUNIQ_KEY\x01@\x02UNIQ_KEY\x01same\x02", {}),
        ("UNIQ_KEY\x01@\x02INNER_NUM\x012\x02", {}),
        ("UNIQ_KEY\x01@\x02INNER_BASE\x012\x02INNER_MULTI_QUEUE_OFFSET\x012\x02", {}),
        ("UNIQ_KEY\x01@\x02", {"f": str(INNER_BATCH)}),
        ("UNIQ_KEY\x01@\x02", {"g": "-1"}),
        ("UNIQ_KEY\x01@\x02", {"h": "no number"}),
        ("UNIQ_KEY\x01@\x02", {"b": "%RETRY%group"}),
        ("UNIQ_KEY\x01@\x02", {"b": "none", "c": "none"}),
    ],
)
async def test_what_is_stored_and_answered_is_the_same(desk: Desk, properties: str, changes: dict[str, str]) -> None:
    one, other = desk.client(), desk.client()
    other.connection._parser._learn_in = 1 << 40
    await make_topic(one, "T", 3)
    repeated = _repeated(one)
    assert await _send_all(one, properties, changes) == await _send_all(other, properties, changes)
    assert _stored(desk, one) == _stored(desk, other)
    assert bool(repeated) == ("g" not in changes and not properties.startswith("X"))


async def test_messages_that_were_retried_too_often_are_dead_letters(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "%RETRY%group", 3)
    repeated = _repeated(client)
    await _send_all(client, "UNIQ_KEY\x01@\x02", {"b": "%RETRY%group", "j": "17"})
    assert repeated
    assert {record.topic for record in desk.records() if record.born_host.port == client.connection.peer[1]} == {
        "%DLQ%group"
    }


async def test_oneway_sends_are_stored_and_not_answered(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "T", 3)
    repeated, writes = _repeated(client), len(client.transport.writes)
    await _send_all(client, "UNIQ_KEY\x01@\x02", flag=ONEWAY_FLAG)
    await eventually(lambda: len(_stored(desk, client)) == COUNT)
    assert repeated
    assert len(client.transport.writes) == writes


async def test_a_topic_that_is_changed_in_between_is_looked_at_again(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "T", 3)
    properties = "UNIQ_KEY\x01@\x02"
    assert {answer[0] for answer in await _send_all(client, properties)} == {0}  # type: ignore[index]
    repeated = _repeated(client)
    assert (await client.ask(17, topic_fields("T", 1))).code == 0
    client.answers.clear()
    answers = await _send_all(client, properties)
    assert [answer[0] for answer in answers] == [0, 29, 29] * (COUNT // 3)  # type: ignore[index]
    assert len(repeated) == COUNT


@pytest.mark.parametrize("size", [0, 100_001])
async def test_bodies_beyond_the_limits_are_refused(desk: Desk, client: MemoryClient, size: int) -> None:
    await make_topic(client, "T", 3)
    await _send_all(client, "UNIQ_KEY\x01@\x02")
    repeated = _repeated(client)
    fields = send_fields(i="UNIQ_KEY\x017F000099\x02")
    client.give(Command(310, 777, 0, fields, b"x" * size, language="JAVA"))
    assert (await client.answer_to(777)).code == 13
    assert len(repeated) == 1
