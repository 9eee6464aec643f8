"""Who reads what by POP: modes set and listed, queues shared out, as RocketMQ's clients ask for them."""

from pathlib import Path
from typing import cast

import orjson
import pytest

from broker.state.files import load_state
from broker.state.pop_tables import RequestMode
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.java_json import load_json
from ledgermq.remoting.errors import RequestTimeoutError
from tests.broker.conftest import Desk, MemoryClient, make_topic, small_config

CODE = RequestCode


def mode_body(**changes: object) -> bytes:
    return orjson.dumps({"topic": "T", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 8, **changes})


async def beat(client: MemoryClient, member: str = "c", group: str = "g") -> None:
    data = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": 1, "expressionType": "TAG"}],
    }
    body = orjson.dumps({"clientID": member, "producerDataSet": [], "consumerDataSet": [data]})
    assert (await client.ask(CODE.HEART_BEAT, body=body)).code == 0


async def query(client: MemoryClient, **changes: object) -> Command:
    fields = {
        "topic": "T",
        "consumerGroup": "g",
        "clientId": "c",
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
        **changes,
    }
    return await client.ask(CODE.QUERY_ASSIGNMENT, body=orjson.dumps(fields))


async def test_a_group_that_was_set_to_pop_reads_the_whole_broker(client: MemoryClient) -> None:
    await make_topic(client, "T", 2)
    await beat(client)
    pulled = await query(client)
    assert pulled.body == (
        b'{"messageQueueAssignments":[{"messageQueue":{"brokerName":"b","queueId":0,"topic":"T"},"mode":"PULL"},'
        b'{"messageQueue":{"brokerName":"b","queueId":1,"topic":"T"},"mode":"PULL"}]}'
    )
    assert (await client.ask(CODE.SET_MESSAGE_REQUEST_MODE, body=mode_body())).code == 0
    popped = await query(client)
    assert popped.body == (
        b'{"messageQueueAssignments":[{"messageQueue":{"brokerName":"b","queueId":-1,"topic":"T"},"mode":"POP"}]}'
    )
    assert (await query(client, topic="%RETRY%g", consumerGroup="g")).code == 0
    listed = await client.ask(CODE.GET_ALL_MESSAGE_REQUEST_MODE)
    assert orjson.loads(listed.body) == {
        "messageRequestModeMap": {
            "T": {"g": {"consumerGroup": "g", "mode": "POP", "popShareQueueNum": 8, "topic": "T"}}
        }
    }


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "%RETRY%g"}, 16),
        ({"topic": "Unknown"}, 17),
        ({"mode": "PUSH"}, 1),
        ({"popShareQueueNum": "many"}, 1),
        ({"consumerGroup": None}, 1),
    ],
)
async def test_a_mode_that_cannot_be_is_refused(client: MemoryClient, changes: dict[str, object], code: int) -> None:
    await make_topic(client, "T", 1)
    assert (await client.ask(CODE.SET_MESSAGE_REQUEST_MODE, body=mode_body(**changes))).code == code


async def test_no_list_at_all_means_ask_again(client: MemoryClient) -> None:
    await make_topic(client, "T", 2)
    assert (await query(client)).body == b"{}", "nobody is connected"
    await beat(client)
    assert (await query(client, topic="Unknown")).body == b"{}"
    assert (await query(client, strategyName="MINE")).body == b"{}"
    assert (await client.ask(CODE.QUERY_ASSIGNMENT, body=b"[]")).code == 1
    assert (await client.ask(CODE.QUERY_ASSIGNMENT, body=b"{")).code == 1
    everything = orjson.loads((await query(client, messageModel="BROADCASTING", clientId="other")).body)
    assert len(everything["messageQueueAssignments"]) == 2


async def test_the_mode_outlives_a_restart(tmp_path: Path) -> None:
    desk = Desk(small_config(tmp_path))
    await desk.start()
    try:
        client = desk.client()
        await make_topic(client, "T", 1)
        assert (await client.ask(CODE.SET_MESSAGE_REQUEST_MODE, body=mode_body())).code == 0
        await desk.stop()
        written = (tmp_path / "config" / "messageRequestMode.json").read_bytes()
        assert load_json(written)["messageRequestModeMap"]["T"]["g"]["popShareQueueNum"] == 8
        await desk.start()
        assert desk.parts.context.state.pop.modes == {"T@g": RequestMode("POP", 8)}
    finally:
        await desk.stop()


class FakeNameserver:
    """Stands for the client that reaches nameservers; `body` None: nobody answers."""

    def __init__(self, body: bytes | None) -> None:
        self.body = body
        self.asked = 0

    async def request(self, address: str, command: Command, timeout_s: float) -> Command:
        self.asked += 1
        if self.body is None:
            raise RequestTimeoutError(address, command.name, timeout_s)
        return Command(0, command.opaque, body=self.body)


ROUTE = orjson.dumps(
    {
        "brokerDatas": [{"brokerName": name, "cluster": "c", "brokerAddrs": {"0": "h:1"}} for name in ("b", "other")],
        "queueDatas": [
            {"brokerName": name, "perm": 6, "readQueueNums": 1, "writeQueueNums": 1} for name in ("b", "other")
        ],
    }
)


@pytest.mark.parametrize("desk", [{"namesrv_addrs": ("ns:9876",)}], indirect=True)
async def test_queues_of_all_brokers_are_shared_out(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "T", 1)
    await beat(client)
    nameserver = FakeNameserver(None)
    desk.parts.context.nameservers.client = cast(RemotingClient, nameserver)
    alone = orjson.loads((await query(client)).body)["messageQueueAssignments"]
    assert [row["messageQueue"]["brokerName"] for row in alone] == ["b"], "its own while no nameserver answers"
    nameserver.body = ROUTE
    for _ in range(2):
        rows = orjson.loads((await query(client)).body)["messageQueueAssignments"]
        assert [row["messageQueue"]["brokerName"] for row in rows] == ["b", "other"]
    assert nameserver.asked == 2, "what was heard is remembered for a while"


def test_modes_that_java_wrote_are_taken_over(tmp_path: Path) -> None:
    row = b'"consumerGroup":"g","mode":"POP","popShareQueueNum":-1,"topic":"T"'
    file = b'{"messageRequestModeMap":{"T":{"g":{' + row + b'},"h":{"mode":"PULL"}}}}'
    (tmp_path / "messageRequestMode.json").write_bytes(file)
    assert load_state(tmp_path).pop.modes == {"T@g": RequestMode("POP", -1), "T@h": RequestMode("PULL", 0)}
