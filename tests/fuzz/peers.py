"""Level `peers`: the port at which a broker in Raft mode hears the other members of its group.

A case dials, says a hello that is right or nearly so, with a proof of the secret or without, then frames between peers
and of clients, whole, damaged, cut off. The broker must close or wait, spend at most 0.3 s of processor time on it, log
no traceback and not grow. It never leads: two of three members are not there.
"""

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any, Final

from dledger.peers import wire
from dledger.peers.hello import PROTOCOL_VERSION
from ledgermq.remoting.proof import DIALER, LISTENER, NONCE_SIZE, prove
from tests.fuzz.cases import Failure
from tests.fuzz.cost import REQUEST_CPU_S, limit_cpu_s
from tests.fuzz.decoders import peer_bytes
from tests.fuzz.frames import Frames
from tests.fuzz.nodes import PEER_SECRET, Node, NodePair, dial, write_peer_secret
from tests.fuzz.values import Values
from tests.ports import free_ports

GROWTH_MAX_BYTES: Final = 64 << 20
_WARM_UP: Final = 100
_LISTEN_S: Final = 0.02
_LIMIT_S: Final = 30.0
_HELLO: Final[dict[str, Any]] = {
    "version": PROTOCOL_VERSION, "cluster": "DefaultCluster", "group": "g", "members": "n0;n1;n2", "node_id": "n1",
    "to": "n0", "nonce": "00" * NONCE_SIZE, "incarnation": "i", "session": "s", "client_address": "127.0.0.1:1",
    "inside_address": "", "data_file_size": 16 << 20,
}  # fmt: skip


def run(
    folder: Path, seed: int, count: int | None, seconds: float, only: int | None = None
) -> tuple[int, list[Failure]]:
    """Cases until `count` are done or the time is over, or one alone; returns how many, and what failed."""
    (port,) = free_ports(1)
    peers = ";".join(f"n{number}-127.0.0.1:{port + number}" for number in range(3))
    conf = {"enableDLegerCommitLog": "true", "dLegerGroup": "g", "dLegerSelfId": "n0", "dLegerPeers": peers}
    conf["dLegerPeerSecretFile"] = str(write_peer_secret(folder))
    deadline = time.monotonic() + seconds
    number = before = 0
    with NodePair(folder, conf) as pair:
        if only is not None:
            what = _run_case(pair.broker, port, seed, only) or "\n".join(pair.complaints())
            return 1, [Failure("peers", seed, only, what)] if what else []
        while (count is None or number < count) and time.monotonic() < deadline:
            what = _run_case(pair.broker, port, seed, number)
            number += 1
            if number == _WARM_UP:
                before = pair.broker.memory_bytes
            if what or (number % 100 == 0 and (what := "\n".join(pair.complaints()))):
                return number, [Failure("peers", seed, number - 1, what)]
        grown = pair.broker.memory_bytes - (before or pair.broker.memory_bytes)
        what = f"has grown by {grown >> 20} MiB" if grown > GROWTH_MAX_BYTES else "\n".join(pair.complaints())
    return number, [Failure("peers", seed, number - 1, what)] if what else []


def _run_case(broker: Node, port: int, seed: int, number: int) -> str:
    values = Values(f"peers {seed} {number}")
    before = broker.cpu_s
    try:
        with dial(port, _LIMIT_S) as peer:
            peer.sendall(_bytes(values, read_challenge(peer)))
            if values.chance(0.5):
                peer.shutdown(socket.SHUT_WR)
            peer.settimeout(_LISTEN_S)
            with contextlib.suppress(TimeoutError):
                while peer.recv(1 << 16):
                    pass
    except ConnectionRefusedError:
        return "listens no more for its peers"
    except OSError:
        pass  # closed by the node, which it may do
    spent = broker.cpu_s - before
    return f"has spent {spent:.2f} s" if spent > REQUEST_CPU_S and spent > limit_cpu_s() else ""


def read_challenge(peer: socket.socket) -> bytes:
    """The nonce with which a node greets whoever connects.

    Raises:
        OSError: the node closed the connection instead.
    """
    left = len(wire.seal(wire.CHALLENGE, bytes(NONCE_SIZE)))
    data = b""
    while len(data) < left:
        piece = peer.recv(left - len(data))
        if not piece:
            raise ConnectionResetError("closed before the challenge")
        data += piece
    return data[-NONCE_SIZE:]


def hello(values: Values, wrong: float, challenge: bytes, **right: str) -> bytes:
    """The first frame of a peer; one time in so many, `wrong` of 1, not quite that, and likewise its proof."""
    said = _HELLO | right
    if values.chance(wrong):
        said[values.random.choice(list(said))] = values.random.choice((values.text(), 1, None, [], {}, 1 << 70))
    if values.chance(wrong / 2.5):
        del said[values.random.choice(list(said))]
    text = json.dumps(said).encode()
    proof = prove(PEER_SECRET, DIALER, challenge, text)
    if values.chance(wrong):
        other = prove(PEER_SECRET, LISTENER, challenge, text)
        proof = values.random.choice((b"", other, proof[:-1], values.damaged(proof), values.random.randbytes(300)))
    return wire.seal(wire.HELLO, text, proof)


def _bytes(values: Values, challenge: bytes) -> bytes:
    first = hello(values, 0.5, challenge)
    data = first if values.chance(0.8) else b""
    frames = Frames(values, "B")
    for _ in range(values.random.randrange(4)):
        data += peer_bytes(values) if values.chance(0.7) else frames.bytes_of(frames.request(1))
    return data
