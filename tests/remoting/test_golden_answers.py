"""Our answers to the recorded requests have the code, the fields and the types of RocketMQ's."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from ledgermq.message.ids import parse_offset_message_id
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import RESPONSE_FLAG, Command
from ledgermq.remoting.codec.frame import FrameParser, encode
from tests.fuzz.nodes import NodePair, dial
from tests.limits import WAIT_S
from tests.remoting.golden_replay import Exchange, client_answer, differences, exchanges

_CONF: Final = {"brokerName": "golden-w", "brokerClusterName": "WireCluster", "autoCreateTopicEnable": "true"}
_GROUPS: Final = {"WireGroup": ("c1", "c2"), "WireOrderGroup": ("c3",), "WirePopGroup": ("pc",)}
_CONSUMERS_AT: Final = 190
"""About where the recorded consumers came."""

_WAITS: Final = ("200050-POP_MESSAGE/03",)
"""Answered when what was popped before is visible again, after ten seconds."""

_BEHIND_THE_LOG: Final = (11, 12, 14, 33, 361, 200050)
"""Requests that see a message a moment after it was sent."""

_TOPIC: Final = "WireTopic"

_HEARTBEATS: Final = "which heartbeat of the group came last is not in the record"
_EXCEPTIONS: Final = {
    "103-REGISTER_BROKER/09": "compressed, and its header denies it: Java fails on what its own brokers send",
    "103-REGISTER_BROKER/10": "likewise",
    "11-PULL_MESSAGE/13": _HEARTBEATS,
    "11-PULL_MESSAGE/14": _HEARTBEATS,
    "11-PULL_MESSAGE/15": _HEARTBEATS,
    "14-QUERY_CONSUMER_OFFSET/05": "an empty queue begins at 0; Java says not found, and its client takes 0",
    "14-QUERY_CONSUMER_OFFSET/06": "likewise",
    "25-UPDATE_BROKER_CONFIG/01": "a key that is read at the start only is refused, not taken without an effect",
    "310-SEND_MESSAGE_V2/05": "a refusal has its cause, not the region",
    "310-SEND_MESSAGE_V2/08": "likewise",
    "310-SEND_MESSAGE_V2/07": "a topic's permission binds also those who have an older route",
    "38-GET_CONSUMER_LIST_BY_GROUP/05": "the consumers of the record have left by then",
    "906-EXCHANGE_BROKER_HA_INFO/01": "not served, see docs/compatibility.md",
}
"""Exchanges whose answers differ, by name; and why."""


class Peer:
    """A connection that asks, and answers what the broker asks of clients as the recorded client did."""

    def __init__(self, port: int) -> None:
        self._socket = dial(port, WAIT_S)
        self._parser = FrameParser()
        self._opaque = 0

    def ask(self, request: Command) -> Command:
        self._opaque += 1
        request.opaque = self._opaque
        self._socket.sendall(encode(request))
        while True:
            for command in self._parser.feed(self._read()):
                if not command.is_response:
                    self._serve(command)
                elif command.opaque == self._opaque:
                    return command

    def _read(self) -> bytes:
        data = self._socket.recv(1 << 20)
        assert data, "the connection is closed"
        return data

    def _serve(self, command: Command) -> None:
        if command.is_oneway:
            return
        known = command.code in (221, 307, 309, 326)
        said = client_answer(command.code) if known else Command(0)
        answer = Command(said.code, command.opaque, RESPONSE_FLAG, dict(said.ext), bytes(said.body), said.remark)
        self._socket.sendall(encode(answer))

    def close(self) -> None:
        self._socket.close()


class Replay:
    """The nodes, and what of their state goes into requests."""

    def __init__(self, pair: NodePair) -> None:
        self._peers = {server: Peer(pair.port(server)) for server in "BN"}
        self._position = 0
        self._message_id = ""
        self._handle = {"popTime": "1", "invisibleTime": "60000", "reviveQid": "0"}

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()

    def ask(self, exchange: Exchange) -> Command:
        """Our answer; asked again for a moment while it says what the recorded one does not, as queues fill behind."""
        deadline = time.monotonic() + WAIT_S
        while True:
            request = self._fitted(exchange)
            ours = self._peers[exchange.server].ask(request)
            is_done = exchange.answer is None or ours.code == exchange.answer.code or exchange.name in _EXCEPTIONS
            if is_done or exchange.request.code not in _BEHIND_THE_LOG:
                return self._learn(exchange, ours)
            if time.monotonic() > deadline:
                return ours
            time.sleep(0.05)

    def prepare(self) -> None:
        """Consumers whose heartbeats were not recorded."""
        for group, clients in _GROUPS.items():
            for client in clients:
                self.put(RequestCode.HEART_BEAT, {}, _heartbeat(group, client))

    def put(self, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
        answer = self._peers["B"].ask(Command(code, ext=ext, body=body, language="JAVA"))
        assert answer.code == 0, answer
        return answer

    def _learn(self, exchange: Exchange, ours: Command) -> Command:
        code, ext = exchange.request.code, exchange.request.ext
        if code == 310 and ours.code == 0 and ext["b"] == _TOPIC:
            self._message_id = ours.ext["msgId"]
            self._position = parse_offset_message_id(self._message_id)[1]
        if code == 200050 and ours.code == 0:
            self._handle = {"queueId": "1", "popTime": ours.ext["popTime"], "invisibleTime": ours.ext["invisibleTime"]}
            self._handle |= {"reviveQid": ours.ext["reviveQid"]}
        return ours

    def _fitted(self, exchange: Exchange) -> Command:
        """The request with positions and handles as they are here."""
        recorded, wanted = exchange.request, exchange.answer
        ext = dict(recorded.ext)
        request = Command(recorded.code, ext=ext, body=recorded.body, language="JAVA", version=recorded.version)
        if recorded.code in (11, 361) and wanted is not None:
            ext["queueOffset"] = self._offset(ext, wanted.remark or "")
        elif (recorded.code == 33 and wanted is not None and wanted.code == 0) or recorded.code == 36:
            ext["offset"] = str(self._position)
        elif recorded.code == 309:
            ext["msgId"] = self._message_id
        elif recorded.code == 12:
            ext["endTimestamp"] = str(2**63 - 1)
        elif recorded.code == 200050:
            ext["bornTime"] = str(time.time_ns() // 1_000_000)
        elif recorded.code in (200051, 200053):
            handle = self._handle
            times = f"{handle['popTime']} {handle['invisibleTime']} {handle['reviveQid']}"
            ext |= {"offset": "0", "extraInfo": f"0 {times} 0 golden-w {ext['queueId']} 0"}
        return request

    def _offset(self, ext: dict[str, str], remark: str) -> str:
        where = {"topic": ext["topic"], "queueId": ext["queueId"]}
        answer = self._peers["B"].ask(Command(RequestCode.GET_MAX_OFFSET, ext=where))
        last = int(answer.ext["offset"]) if answer.code == 0 else 0
        if remark in ("OFFSET_OVERFLOW_ONE", "NO_MATCHED_LOGIC_QUEUE"):
            return str(last)
        if remark in ("OFFSET_OVERFLOW_BADLY", "OFFSET_RESET"):
            return str(last + 1000)
        return "0" if remark == "FOUND" else ext["queueOffset"]


def _heartbeat(group: str, client: str) -> bytes:
    subscription: dict[str, Any] = {
        "classFilterMode": False, "codeSet": [], "expressionType": "TAG", "subString": "*", "subVersion": 1,
        "tagsSet": [], "topic": "WirePop" if "Pop" in group else _TOPIC,
    }  # fmt: skip
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "consumeType": "CONSUME_PASSIVELY", "groupName": group,
        "messageModel": "CLUSTERING", "subscriptionDataSet": [subscription], "unitMode": False,
    }  # fmt: skip
    return json.dumps(
        {"clientID": f"192.0.2.2@{client}", "consumerDataSet": [consumer], "producerDataSet": [], "withoutSub": False}
    ).encode()


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[Replay]:
    with NodePair(tmp_path, _CONF) as pair:
        replay = Replay(pair)
        yield replay
        replay.close()
        assert pair.complaints() == []


@pytest.mark.cluster
def test_recorded_requests_are_answered_with_the_recorded_codes_fields_and_types(replay: Replay) -> None:
    found: dict[str, list[str]] = {}
    asked: set[str] = set()
    is_prepared = False
    for exchange in exchanges():
        if exchange.request.opaque > _CONSUMERS_AT and not is_prepared:
            replay.prepare()
            is_prepared = True
        if exchange.answer is None or exchange.is_held or exchange.name in _WAITS or exchange.request.is_oneway:
            continue
        try:
            ours = replay.ask(exchange)
        except (TimeoutError, OSError) as error:
            found[exchange.name] = [str(error)]
            continue
        asked.add(exchange.name)
        if (different := differences(exchange.answer, ours)) and exchange.name not in _EXCEPTIONS:
            found[exchange.name] = different
    assert len(asked) > 100
    assert set(_EXCEPTIONS) <= asked
    assert found == {}, "\n".join(f"{name}: {'; '.join(what)}" for name, what in found.items())
