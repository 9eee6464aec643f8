"""A broker and a nameserver without a free descriptor go on, tell it, and recover when there are some again."""

import contextlib
import re
import socket
import time
from collections import Counter
from pathlib import Path

import pytest

from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from tests.attacks.scene import Stranger
from tests.descriptors import limited_descriptors
from tests.fuzz.nodes import LIMIT_S, Node, NodePair

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]
_PUT = {"namespace": "n", "key": "k", "value": "v"}
_CONF = {"flushConsumeQueueThoroughInterval": "200", "flushConsumerOffsetInterval": "200"}


def send(topic: str) -> dict[str, str]:
    fields = {"a": "g", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
    return fields | {"i": "", "j": "0", "k": "false"}


def dial(port: int) -> Stranger:
    return Stranger(socket.create_connection(("127.0.0.1", port), LIMIT_S))


def is_closed_by(port: int) -> bool:
    """Whether a new connection is closed, and not left without an answer."""
    with contextlib.closing(dial(port)) as one:
        try:
            one.ask(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        except ConnectionError:
            return True
    return False


def use_all(port: int, stack: contextlib.ExitStack) -> None:
    """Open connections until three in turn are closed: numbers below the highest may be free, or used for a moment."""
    refused = 0
    for _ in range(64):
        if is_closed_by(port):
            refused += 1
            if refused == 3:
                return
            time.sleep(0.2)
        else:
            refused = 0
            stack.enter_context(contextlib.closing(dial(port)))
    raise AssertionError(f"64 connections to {port} left descriptors free")


def highest(node: Node) -> int:
    return max(int(entry.name) for entry in Path(f"/proc/{node.process.pid}/fd").iterdir())


def test_nodes_go_on_without_descriptors_and_recover(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        pair = stack.enter_context(NodePair(tmp_path, _CONF))
        nameserver, broker = pair.nodes
        to_broker, to_nameserver = (stack.enter_context(contextlib.closing(dial(pair.port(one)))) for one in "BN")
        assert to_broker.ask(310, send("old"), b"before").code == 0
        time.sleep(0.5)
        began = time.monotonic()
        with contextlib.ExitStack() as limited:
            for node in pair.nodes:
                limited.enter_context(limited_descriptors(node.process.pid, highest(node) + 1))
            for server in "BN":
                use_all(pair.port(server), stack)
            assert to_broker.ask(310, send("old"), b"meanwhile").code == 0, "what is open goes on"
            assert to_broker.ask(310, send("new"), b"x").code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert to_nameserver.ask(RequestCode.PUT_KV_CONFIG, _PUT).code == ResponseCode.SYSTEM_ERROR
            assert to_broker.ask(25, {}, b"transactionCheckMax=14\n").code == ResponseCode.SYSTEM_ERROR
            time.sleep(2.5)
        seconds = time.monotonic() - began
        assert broker.is_alive and nameserver.is_alive
        time.sleep(1.2)
        assert not is_closed_by(pair.port("B")) and not is_closed_by(pair.port("N"))
        assert to_nameserver.ask(RequestCode.PUT_KV_CONFIG, _PUT).code == 0
        assert to_broker.ask(25, {}, b"transactionCheckMax=14\n").code == 0
        assert to_broker.ask(310, send("new"), b"x").code == 0
        for server in "BN":
            assert pair.metric(server, "ledgermq_descriptors_exhausted") == 0
            assert pair.metric(server, "ledgermq_descriptors_exhausted_seconds_total") > 0
    for node in (nameserver, broker):
        assert node.log.read_text().count("no file descriptor is left (ulimit -n is ") == 1
        assert node.log.read_text().count("files can be opened again") == 1
    text = broker.log.read_text()
    assert "no checkpoint is written any more" not in text
    assert text.count("the checkpoint is written when there are room and descriptors again") == 1
    told = Counter(re.findall(r"^\S+ \S+ \w+ (.*) cannot be saved", text, re.MULTILINE))
    assert max(told.values()) <= 1 + seconds / 10, "a failure that lasts is told once, or once in ten seconds"
    assert not (tmp_path / "store" / "abort").exists(), "a stop is clean again: everything was synced"
