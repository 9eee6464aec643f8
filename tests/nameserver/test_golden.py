"""The nameserver answers recorded requests as RocketMQ's did, field by field."""

import json
from pathlib import Path
from typing import Any

import pytest

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.lenient_json import loads

WIRE = Path(__file__).parents[1] / "golden" / "wire"

TOPIC_LISTS = (206, 224)
UNFLAGGED_DEFLATE = "java.lang.NullPointerException"
"""What upstream answers to the registrations its own brokers send compressed; we read them."""


def exchanges(kind: str) -> list[tuple[Path, dict[str, Any]]]:
    """Recorded exchanges with the nameserver, in the order in which they happened."""
    entries = [json.loads(line) for line in (WIRE / kind / "index.jsonl").read_text().splitlines()]
    paths = [WIRE / kind / entry["path"] for entry in entries if entry["link"] == "ns"]
    return [(path, json.loads((path / "exchange.json").read_text())) for path in paths]


def check(code: int, recorded: dict[str, Any], answer: Command) -> None:
    assert answer.version == recorded["version"]
    if recorded["remark"] and UNFLAGGED_DEFLATE in recorded["remark"]:
        assert (answer.code, answer.ext) == (0, {})
        return
    assert answer.code == recorded["code"]
    check_body(code, bytes(answer.body).decode(), recorded.get("bodyText") or "")
    if answer.code == 0:
        assert dict(answer.ext) == (recorded["extFields"] or {})
        # 901's remark is what upstream forgot to take out of a fresh answer.
        assert answer.remark == (None if code == 901 else recorded["remark"])
    else:
        assert (answer.remark or "").startswith(recorded["remark"])


def check_body(code: int, body: str, recorded: str) -> None:
    if code in TOPIC_LISTS:  # upstream's order is that of Java's hash tables
        assert sorted(json.loads(body)["topicList"]) == sorted(json.loads(recorded)["topicList"])
    elif code == 319:
        assert "listenPort=" in body
        assert "listenPort=" in recorded
    else:
        assert body == recorded
        if body:
            loads(body)


class Recording:
    """A recording leaves out some changes of topics and KV: this makes them before they are missed."""

    def __init__(self, kind: str) -> None:
        self.exchanges = exchanges(kind)
        whole = [
            e for _, e in self.exchanges if e["request"]["extFields"] and "golden-z" in str(e["request"]["extFields"])
        ]
        body = next(e["request"]["bodyText"] for e in whole if e["request"].get("bodyText"))
        self._topics = json.loads(body)["topicConfigSerializeWrapper"]["topicConfigTable"]
        first_list = next(e for _, e in self.exchanges if e["request"]["code"] == 206)
        self._listed = json.loads(first_list["response"]["bodyText"])["topicList"]

    async def prepare(self, exchange: dict[str, Any], served: Any, peer: Any) -> None:
        request, response = exchange["request"], exchange.get("response") or {}
        wanted: list[str] = []
        if request["code"] in (105, 206) and response["code"] == 0:
            wanted = self._listed
        if request["code"] == 205:
            others = [topic for topic in self._topics if topic not in served.server.table.topics]
            wanted = others[: int(response["extFields"]["wipeTopicCount"]) - len(served.server.table.topics)]
        if request["code"] == 103 and "WireOrderKey" in str(response.get("bodyText")):
            entry = {"namespace": "ORDER_TOPIC_CONFIG", "key": "WireOrderKey", "value": "golden-w:2"}
            assert (await peer.ask(100, entry)).code == 0
        for topic in wanted:
            if topic not in served.server.table.topics:
                await self._register(topic, served, peer)

    async def _register(self, topic: str, served: Any, peer: Any) -> None:
        leader = served.server.table.group("golden-w").leader.registration
        version = leader.table.version.to_json() | {"counter": leader.table.version.counter + 1}
        wrapper = {"dataVersion": version, "topicConfigTable": {topic: self._topics[topic]}}
        ext = {"brokerName": "golden-w", "brokerAddr": leader.address, "brokerId": "0", "clusterName": "WireCluster"}
        ext |= {"haServerAddr": leader.ha_address, "enableActingMaster": str(leader.acting_master).lower()}
        answer = await peer.ask(103, ext, json.dumps({"topicConfigSerializeWrapper": wrapper}).encode())
        assert answer.code == 0, answer.remark


@pytest.mark.parametrize("kind", ["json", "binary"])
async def test_recorded_requests_get_the_recorded_answers(kind: str, served: Any) -> None:
    peer, recording = await served.peer(), Recording(kind)
    replayed = set()
    for path, exchange in recording.exchanges:
        await recording.prepare(exchange, served, peer)
        peer.send_bytes((path / "request.bin").read_bytes())
        if not exchange["oneway"]:
            answer = await peer.answer()
            assert answer.opaque == exchange["request"]["opaque"]
            check(exchange["request"]["code"], exchange["response"], answer)
        replayed.add(exchange["request"]["code"])
    assert replayed >= {100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 219, 224, 319, 327}
    await peer.close()
