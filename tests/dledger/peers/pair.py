"""Two transports of one group, what they hear, and a stranger's side of a handshake."""

import asyncio
from dataclasses import replace
from typing import Any, Self

from dledger.config import PeerAddress
from dledger.peers.hello import PROTOCOL_VERSION, Hello
from dledger.peers.transport import TcpTransport
from dledger.peers.wire import CHALLENGE, HELLO, PeerMessage, seal
from ledgermq.remoting.proof import NONCE_SIZE, Secrets
from tests.limits import WAIT_S
from tests.ports import free_ports

_CHALLENGE_SIZE = len(seal(CHALLENGE, bytes(NONCE_SIZE)))


class Ear:
    """A peer listener that keeps what it hears."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, PeerMessage]] = []
        self.joined: list[str] = []
        self.lost: list[str] = []
        self.hellos: dict[str, Hello] = {}

    def on_message(self, peer_id: str, message: PeerMessage) -> None:
        self.messages.append((peer_id, message))

    def on_peer_joined(self, peer_id: str, hello: Hello) -> None:
        self.joined.append(peer_id)
        self.hellos[peer_id] = hello

    def on_peer_lost(self, peer_id: str) -> None:
        self.lost.append(peer_id)


def hello(node_id: str, **changes: object) -> Hello:
    """What a node of the test's group says."""
    values = {
        "version": PROTOCOL_VERSION, "cluster": "C", "group": "G", "members": "n0;n1", "node_id": node_id, "to": "",
        "nonce": "00" * NONCE_SIZE, "incarnation": f"i-{node_id}",
        "session": f"s-{node_id}", "client_address": f"{node_id}:10911", "inside_address": f"{node_id}.inside:10911",
        "data_file_size": 4096,
    }  # fmt: skip
    return Hello(**{**values, **changes})  # type: ignore[arg-type]  # the values above have the right types


class Pair:
    """Two transports of a group of two, made one by one."""

    def __init__(self) -> None:
        self.ports = dict(zip(("n0", "n1"), free_ports(2), strict=True))
        self.transports: list[TcpTransport] = []

    async def start(
        self, name: str, *, queue_limit: int = 1 << 20, secrets: Secrets = (), **changes: Any
    ) -> tuple[TcpTransport, Ear]:
        other = "n1" if name == "n0" else "n0"
        ear = Ear()
        peers = {other: PeerAddress(other, "127.0.0.1", self.ports[other])}
        transport = TcpTransport(hello(str(changes.pop("node_id", name)), **changes), peers, ear, queue_limit, secrets)
        self.transports.append(transport)
        await transport.start("127.0.0.1", self.ports[name])
        return transport, ear


class Stranger:
    """One connection to a node's Raft port, made by whoever wants to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, nonce: bytes) -> None:
        self.reader, self.writer = reader, writer
        self.nonce = nonce

    @classmethod
    async def dial(cls, port: int, host: str = "127.0.0.1") -> Self:
        """Connect from the address `host`, and take the node's challenge."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
        challenge = await asyncio.wait_for(reader.readexactly(_CHALLENGE_SIZE), WAIT_S)
        return cls(reader, writer, challenge[-NONCE_SIZE:])

    def say(self, said: bytes, proof: bytes) -> None:
        self.writer.write(seal(HELLO, said, proof))

    async def rest(self) -> bytes:
        """All that the node still says, up to the end of the connection."""
        try:
            return await asyncio.wait_for(self.reader.read(), WAIT_S)
        finally:
            self.writer.close()


def said_by(node_id: str, to: str, **changes: object) -> bytes:
    """The hello of `node_id` to `to` as it is sent."""
    return replace(hello(node_id, **changes), to=to).encode()
