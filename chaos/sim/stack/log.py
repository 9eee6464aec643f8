"""The classes of a Raft log in a simulation: the shipping classes, which report to it, and a simulated transport.

EntryLog   reports each entry that is written or dropped to the disk's image and to the observer
RaftNode   reports its ticks to the process               LogEvents   reports the node's events to it
Transport  frames of the shipping codec over `chaos.sim.network`
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Protocol

from chaos.sim.stack.disk import StoreDisk
from dledger.core.messages import Message
from dledger.core.roles import SoftState
from dledger.errors import WrongPeerError
from dledger.log.entry_log import DroppedFiles, EntryLog
from dledger.log.opening import OpenedLog
from dledger.log_events import LogEvents
from dledger.node import RaftNode
from dledger.peers.frame_stream import FrameStream
from dledger.peers.hello import Hello
from dledger.peers.link import PeerLink
from dledger.peers.transport import PeerListener
from dledger.peers.wire import CopyRequest, CopyResponse, Encoder, PeerMessage, decode

_FRAME_LIMIT = 1 << 26


@dataclass(frozen=True, slots=True)
class SimFrame:
    """One message in transit. `what`: its name in the trace."""

    what: str
    content: bytes


class LogOwner(Protocol):
    """The process that owns a simulated log; it is told of all events."""

    files: StoreDisk

    def opened(self, log: EntryLog) -> None:
        """Take the log that a start has opened, with its entries."""

    def grown(self, log: EntryLog, term: int) -> None:
        """Note that entries of `term` were written, up to the log's last."""

    def truncates(self, last_index: int) -> None:
        """Note that entries above `last_index` are about to be dropped."""

    def was_reset(self, first_index: int, prev_term: int) -> None:
        """Note that everything was dropped; the next entry is `first_index`."""

    def node_made(self, node: RaftNode) -> None:
        """Take the new node, before its first event."""

    def transport_made(self, transport: "SimTransport") -> None:
        """Take the new transport."""

    def ticks(self) -> None:
        """Note that the node is about to be told the time."""

    def says(self, what: str, detail: Any) -> None:
        """Note an event of the node: `commits`, `role`, `truncated`, `reset` or `failed`."""

    def note_sent(self, peer_id: str, message: Message) -> None:
        """Check a message that is about to be sent."""

    def transmit(self, peer_id: str, frame: SimFrame) -> None:
        """Send a frame over the network; it is lost without a connection."""

    def overflows(self, peer_id: str) -> None:
        """Close the connection to a peer for which too much waits."""

    def mark(self, what: str) -> None:
        """Count an event."""


class WatchedLog(EntryLog):
    """The shipping log; it reports each change to the disk's image and to its owner."""

    def __init__(self, owner: LogOwner, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._owner = owner
        opened = next(one for one in arguments if isinstance(one, OpenedLog))
        self.is_install_unfinished = opened.install_unfinished
        owner.opened(self)

    def _grow(self, term: int, last_index: int) -> None:
        super()._grow(term, last_index)
        self._owner.grown(self, term)

    def truncate_after(self, last_index: int) -> None:
        if last_index < self.last_index:
            self._owner.truncates(last_index)
            super().truncate_after(last_index)
            self._owner.files.truncate_after(last_index)

    def begin_install(self, first_index: int, start_position: int, prev_term: int, *, keep: bool = False) -> None:
        super().begin_install(first_index, start_position, prev_term, keep=keep)
        if keep:
            self._owner.files.trim(first_index)
            self._owner.mark("damaged entry dropped by install")
        else:
            self._owner.was_reset(first_index, prev_term)

    def take_before(self, position: int) -> DroppedFiles | None:
        taken = super().take_before(position)
        if taken is not None:
            self._owner.files.trim(self.first_index)
            self._owner.mark("file deleted")
        return taken


class WatchedNode(RaftNode):
    """The shipping node; it tells its owner when it ticks."""

    def __init__(self, owner: LogOwner, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._owner = owner
        owner.node_made(self)

    def on_tick(self, now_ms: int) -> None:
        self._owner.ticks()
        super().on_tick(now_ms)


class WatchedEvents(LogEvents):
    """The shipping listener; it tells its owner of each event first."""

    def __init__(self, owner: LogOwner, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._owner = owner

    def on_commit(self, commit_index: int) -> None:
        self._owner.says("commits", commit_index)
        super().on_commit(commit_index)

    def on_role(self, state: SoftState) -> None:
        self._owner.says("role", state)
        super().on_role(state)

    def on_truncated(self, last_index: int) -> None:
        self._owner.says("truncated", last_index)
        super().on_truncated(last_index)

    def on_reset(self, first_index: int, start_position: int) -> None:
        self._owner.says("reset", first_index)
        super().on_reset(first_index, start_position)

    def on_failed(self, error: Exception) -> None:
        self._owner.says("failed", error)
        super().on_failed(error)


class SimTransport:
    """`dledger.ports.Transport` over the simulated network: frames are encoded, and decoded at the other end.

    Attributes:
        hello: this node's part of the handshake.
        links: empty, so that no thread sends busy notices; the cluster sends them (`SimCluster.stall`).
    """

    def __init__(
        self, owner: LogOwner, hello: Hello, peers: dict[str, Any], listener: PeerListener, limit: int, _: bytes = b""
    ) -> None:
        self._owner = owner
        self._expected_ids = frozenset(peers)
        self._limit = limit
        self._listener = listener
        self._encoder = Encoder()
        self._streams: dict[str, FrameStream] = {}
        self._frame: tuple[int, memoryview] | None = None
        self.hello = hello
        owner.transport_made(self)
        self.links: dict[str, PeerLink] = {}
        self.refused_count = 0
        self.port = 0

    async def start(self, _host: str, _port: int) -> None:
        """Do nothing: the cluster connects the nodes."""

    async def close(self) -> None:
        """Do nothing: there are no sockets."""

    def send(self, peer_id: str, message: PeerMessage) -> None:
        """Encode and send a message; the buffers that it views are copied."""
        if not isinstance(message, CopyRequest | CopyResponse):
            self._owner.note_sent(peer_id, message)
        content = b"".join(self._encoder.encode(message))
        if len(content) > self._limit:
            self._owner.overflows(peer_id)
            return
        self._owner.transmit(peer_id, SimFrame(type(message).__name__, content))

    def takes(self, hello: Hello) -> bool:
        """Return whether this node accepts the hello of a peer, by the shipping rules."""
        try:
            self.hello.check(replace(hello, to=self.hello.node_id), "simulated", self._expected_ids)
        except WrongPeerError:
            self._owner.mark("peer refused")
            return False
        return True

    def message_of(self, peer_id: str, frame: SimFrame) -> PeerMessage:
        """Return the message in a received frame; the buffer that it views is valid until the next one."""
        if peer_id not in self._streams:
            self._streams[peer_id] = FrameStream(self, _FRAME_LIMIT)
        stream = self._streams[peer_id]
        content, at = memoryview(frame.content), 0
        while at < len(content):
            room = stream.get_buffer(0)
            size = min(len(room), len(content) - at)
            room[:size] = content[at : at + size]
            stream.buffer_updated(size)
            at += size
        assert self._frame is not None, f"no whole frame: {frame.what}"
        (code, body), self._frame = self._frame, None
        return decode(code, body, peer_id)

    def hand_over(self, peer_id: str, message: PeerMessage) -> None:
        """Hand a message to the shipping inbox. Raises `PeerError`: close the connection."""
        self._listener.on_message(peer_id, message)

    def joined(self, peer_id: str, hello: Hello) -> None:
        """Report a new connection."""
        self._listener.on_peer_joined(peer_id, hello)

    def lost(self, peer_id: str) -> None:
        """Report a lost connection."""
        self._listener.on_peer_lost(peer_id)

    # FrameHandler

    def on_open(self, transport: asyncio.Transport) -> None:
        """Do nothing: the cluster reports new connections."""

    def on_frame(self, code: int, body: memoryview) -> None:
        self._frame = code, body

    def on_closed(self, error: Exception | None) -> None:
        """Do nothing: the cluster reports lost connections."""
