"""Asking for messages by POP: header fields, handles as Java's client makes them."""

from broker.pop.handles import parse_handle
from ledgermq.message.record import Record, decode_records
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from tests.broker.conftest import MemoryClient

CODE = RequestCode


def pop_fields(**changes: object) -> dict[str, str]:
    fields: dict[str, object] = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
        "exp": "*",
        "expType": "TAG",
        "order": "false",
        **changes,
    }
    return {name: str(value) for name, value in fields.items() if value is not None}


async def pop(client: MemoryClient, **changes: object) -> Command:
    return await client.ask(CODE.POP_MESSAGE, pop_fields(**changes))


def records(answer: Command) -> list[Record]:
    return decode_records(answer.body)


def bodies(answer: Command) -> list[bytes]:
    assert answer.code == 0, answer
    return [record.body for record in records(answer)]


def handles(answer: Command) -> list[str]:
    """The handle of each message of an answer, as Java's client makes them."""
    ext = answer.ext
    made = []
    for start, offsets in zip(ext["startOffsetInfo"].split(";"), ext["msgOffsetInfo"].split(";"), strict=True):
        retry, queue, first = start.split(" ")
        for offset in offsets.split(" ")[2].split(","):
            head = f"{first} {ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']}"
            made.append(f"{head} {retry} b {queue} {offset}")
    return made


def handle_fields(handle: str, **changes: object) -> dict[str, str]:
    parsed = parse_handle(handle)
    fields: dict[str, object] = {
        "consumerGroup": "g",
        "topic": "%RETRY%g_T" if parsed.retry == "1" else "T",
        "queueId": parsed.queue_id,
        "extraInfo": handle,
        "offset": handle.split(" ")[7],
        **changes,
    }
    return {name: str(value) for name, value in fields.items()}


async def ack(client: MemoryClient, handle: str, **changes: object) -> Command:
    return await client.ask(CODE.ACK_MESSAGE, handle_fields(handle, **changes))


async def pop_again(client: MemoryClient, **changes: object) -> Command:
    """The next answer that has messages."""
    while (answer := await pop(client, pollTime=2000, **changes)).code != 0:
        assert answer.code == 210, answer
    return answer
