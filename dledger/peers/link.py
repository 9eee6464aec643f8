"""The two connections between this node and a peer.

Each end dials one of them, and only the dialer sends messages on it.

    Dialed     made by this node: waits for a challenge, sends a hello, waits for the peer's hello, then only writes
    Accepted   made by the peer: challenges it, waits for its hello, answers it, then only reads
    Link       owns one of each, dials again whenever the dialed one is down; the peer is *joined* while both stand
"""

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import Final, Protocol

from dledger.config import PeerAddress
from dledger.errors import PeerError, PeerProtocolError, PeerRefusedError, UnprovenError, WrongPeerError
from dledger.peers.frame_stream import FrameStream
from dledger.peers.hello import SEALED_FRAMES, SIZE_LIMIT, Hello, decode_hello
from dledger.peers.wire import CHALLENGE, HELLO, REFUSAL, open_sealed, seal, unseal
from ledgermq.remoting.proof import (
    DIALER,
    LISTENER,
    NONCE_SIZE,
    Secrets,
    is_proven,
    make_nonce,
    notice_key,
    prove,
    proving_secret,
)
from ledgermq.remoting.serving.frame_seal import FrameSeal
from ledgermq.remoting.serving.lost_machine import watch

_FRAME_LIMIT: Final = 64 << 20
_HANDSHAKE_S: Final = 3.0
_BACK_OFF_S: Final = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)

_log = logging.getLogger(__name__)


class PeerLinkOwner(Protocol):
    """The part of the transport that a link uses."""

    hello: Hello
    secrets: Secrets
    live: "set[Dialed | Accepted]"  # all open connections, known or not
    is_closing: bool

    def report_error(self, error: PeerError) -> None:
        """Count an error of a peer, and log it once for each text."""

    def report_stranger(self, error: PeerError) -> None:
        """Count an error of an unknown sender that connected to this node; log it from time to time."""

    def admit(self, accepted: "Accepted") -> None:
        """Handle a new connection, whose sender is not known yet."""

    def welcome(self, accepted: "Accepted", other: Hello) -> "PeerLink":
        """Return the link of an accepted connection after its hello. Raises `WrongPeerError`."""

    def forget(self, accepted: "Accepted") -> None:
        """Handle that a connection closed before its sender was known."""

    def deliver(self, peer_id: str, code: int, body: memoryview) -> None:
        """Handle a frame of a peer."""

    def joined(self, peer_id: str, hello: Hello) -> None:
        """Handle that both connections to a peer stand."""

    def lost(self, peer_id: str) -> None:
        """Handle that one of them has closed."""


class PeerLink:
    """Both connections to one peer.

    At most one connection of each kind is used: a newer accepted one replaces the older one, whose frames are then
    dropped.

    Attributes:
        is_open: the dialed connection stands and its hello was answered, so messages may be written.
        seals: of the frames on the dialed connection; None where members prove nothing.
        target: where this node's notices go, and their key; None while no connection stands.
        notice_key: of the peer's notices; empty while it is not connected. `notice_number`: of its last one.
    """

    def __init__(self, owner: PeerLinkOwner, address: PeerAddress, queue_limit_bytes: int) -> None:
        self._owner = owner
        self._address = address
        self._queue_limit_bytes = queue_limit_bytes
        self._dialed: Dialed | None = None
        self._accepted: Accepted | None = None
        self._hello: Hello | None = None
        self._is_joined = False
        self._is_closing = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.is_open = False
        self.seals: FrameSeal | None = None
        self.target: tuple[tuple[str, int], bytes] | None = None
        self.notice_key = b""
        self.notice_number = 0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._dial_forever())

    async def close(self) -> None:
        self._is_closing = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._dialed is not None:
            self._dialed.close()
        if self._accepted is not None:
            self._accepted.abort()

    def write(self, frame: list[bytes | memoryview]) -> None:
        """Queue a frame; the connection is closed when more than `queue_limit_bytes` wait for the peer to read."""
        dialed = self._dialed
        assert dialed is not None and dialed.transport is not None
        dialed.transport.writelines(frame)
        if dialed.transport.get_write_buffer_size() > self._queue_limit_bytes:
            _log.warning(
                "peer %s does not read, more than %d bytes wait: closing", self._address, self._queue_limit_bytes
            )
            dialed.abort()
            self.dialed_closed(dialed)

    def accepted_from(self, accepted: "Accepted", hello: Hello) -> None:
        """Use a connection on which the peer has sent its hello, in place of the older one, if there is one."""
        older, self._accepted = self._accepted, accepted
        if older is not None:
            older.abort()
        if self._dialed is not None and self._dialed.session not in (None, hello.session):
            self._dialed.abort()  # it leads to a process that has ended
            self.dialed_closed(self._dialed)
        if self._is_joined:
            self._is_joined = False  # messages in flight over the older one are lost
            self._owner.lost(self._address.node_id)
        self._hello = hello
        self.notice_key, self.notice_number = accepted.notice_key, 0
        self._wake.set()
        asyncio.get_running_loop().call_soon(self._check_joined)  # after the answer to its hello has been written

    def is_latest(self, accepted: "Accepted") -> bool:
        """Return whether this is the peer's latest connection; frames of an earlier one are dropped."""
        return accepted is self._accepted

    def accepted_closed(self, accepted: "Accepted") -> None:
        if accepted is self._accepted:
            self._accepted = None
            self.notice_key = b""
            self._check_joined()

    def dialed_closed(self, dialed: "Dialed") -> None:
        if dialed is self._dialed:
            self._dialed = self.target = None
            self.is_open = False
            self._check_joined()

    def _check_joined(self) -> None:
        is_joined = self.is_open and self._accepted is not None
        if is_joined == self._is_joined or self._is_closing:
            return
        self._is_joined = is_joined
        if is_joined and self._hello is not None:
            self._owner.joined(self._address.node_id, self._hello)
        else:
            self._owner.lost(self._address.node_id)

    async def _dial_forever(self) -> None:
        failures = 0
        while True:
            self._wake.clear()
            dialed = await self._dial()
            if dialed is not None:
                failures = 0
                await dialed.closed.wait()
            back_off_s = _BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)]
            failures += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(back_off_s):  # `wait_for` of Python 3.11 can lose a cancellation
                    await self._wake.wait()

    async def _dial(self) -> "Dialed | None":
        """Return a connection whose hello was answered; None when the peer cannot be reached or refused."""
        dialed = Dialed(self, self._owner, self._address)
        answer: Hello | None = None
        try:
            answer = await self._handshake(dialed)
        except PeerError as error:
            self._owner.report_error(error)
        except (OSError, TimeoutError) as error:
            _log.debug("peer %s cannot be reached: %s", self._address, error)
        finally:
            if answer is None:
                dialed.abort()
        if answer is None or dialed.transport is None:  # it may have closed right after its hello
            return None
        self._dialed, self.is_open, self.seals = dialed, True, dialed.seals
        self.target = (dialed.transport.get_extra_info("peername")[:2], dialed.notice_key)
        dialed.session = answer.session
        self._check_joined()
        return dialed

    async def _handshake(self, dialed: "Dialed") -> Hello:
        """Connect, send this node's hello, and return the peer's.

        Raises:
            UnprovenError, WrongPeerError, PeerRefusedError: one of the two refuses the other.
            PeerProtocolError: the answer is not a hello.
            OSError, TimeoutError: the peer cannot be reached, or does not answer in time.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_HANDSHAKE_S):
            await loop.create_connection(lambda: dialed.stream, self._address.host, self._address.port)
            answer = await dialed.answer
        self._owner.hello.check(answer, str(self._address), frozenset({self._address.node_id}))
        return answer


class Dialed:
    """A connection that this node made. After the handshake this node only writes on it.

    Attributes:
        answer: the peer's hello, with a valid proof; an exception if one end refused the other, or the connection
            closed.
        session: of the peer's process, from its hello; None before.
        seals: of the frames that this node sends behind the handshake; None before it, or where nothing is proven.
        closed: set when the connection is gone.
    """

    def __init__(self, link: PeerLink, owner: PeerLinkOwner, address: PeerAddress) -> None:
        self._link = link
        self._owner = owner
        self._address = address
        self._nonce = make_nonce()
        self._secret = owner.secrets[0] if owner.secrets else b""
        self._is_challenged = False
        self.stream = FrameStream(self, SIZE_LIMIT)
        self.transport: asyncio.Transport | None = None
        self.answer: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        self.session: str | None = None
        self.seals: FrameSeal | None = None
        self.notice_key = b""

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        """Close after sending what is queued."""
        if self.transport is not None:
            self.transport.close()

    def on_open(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._owner.live.add(self)
        watch(transport)

    def on_frame(self, code: int, body: memoryview) -> None:
        if self.answer.done():
            raise PeerProtocolError(
                f"peer {self._address} sent code {code} after the handshake, where only this node may send"
            )
        proof, data = (bytes(part) for part in unseal(code, body))
        if code == CHALLENGE and not self._is_challenged:
            self._send_hello(data)
        elif code == HELLO and self._is_challenged:
            if is_proven(self._secret, LISTENER, self._nonce, data, proof):
                self.answer.set_result(decode_hello(data))
            else:
                self._fail(UnprovenError(str(self._address)))
        elif code == REFUSAL and self._is_challenged:
            self._fail(PeerRefusedError(str(self._address), data[:80].decode(errors="replace")))
        else:
            raise PeerProtocolError(f"peer {self._address} sent code {code}, which is out of order in a handshake")

    def on_closed(self, error: Exception | None) -> None:
        self.transport = None
        self._owner.live.discard(self)
        if isinstance(error, PeerError):
            self._owner.report_error(error)
        if not self.answer.done():
            self._fail(error or ConnectionResetError("closed before its hello"))
        self._link.dialed_closed(self)
        self.closed.set()

    def _send_hello(self, challenge: bytes) -> None:
        assert self.transport is not None
        if len(challenge) != NONCE_SIZE:
            raise PeerProtocolError(
                f"peer {self._address} sent a challenge of {len(challenge)} bytes, expected {NONCE_SIZE}"
            )
        self._is_challenged = True
        self.notice_key = notice_key(self._secret, self._nonce, challenge)
        if self._secret:
            self.seals = FrameSeal(SEALED_FRAMES, self._secret, self._nonce, challenge)
        hello = replace(self._owner.hello, to=self._address.node_id, nonce=self._nonce.hex()).encode()
        self.transport.write(seal(HELLO, hello, prove(self._secret, DIALER, challenge, hello)))

    def _fail(self, error: Exception) -> None:
        self.answer.set_exception(error)
        self.answer.exception()  # the task that dialed may have given up


class Accepted:
    """A connection made to this node; it is closed unless its first frame is the hello of a member.

    Attributes:
        host: address of the other end.
    """

    def __init__(self, owner: PeerLinkOwner) -> None:
        self._owner = owner
        self._link: PeerLink | None = None
        self._seals: FrameSeal | None = None
        self._peer_id = ""
        self._nonce = make_nonce()
        self.notice_key = b""
        self.host = "?"
        self._transport: asyncio.Transport | None = None
        self._timer = asyncio.get_running_loop().call_later(_HANDSHAKE_S, self._time_out)
        self.stream = FrameStream(self, SIZE_LIMIT)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def on_open(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._owner.live.add(self)
        name = transport.get_extra_info("peername")
        self.host = str(name[0]) if name else "?"
        watch(transport)
        if self._owner.is_closing:
            transport.abort()
            return
        self._owner.admit(self)
        transport.write(seal(CHALLENGE, self._nonce))

    def on_frame(self, code: int, body: memoryview) -> None:
        if self._link is not None:
            if self._link.is_latest(self):
                whole = body if self._seals is None else open_sealed(code, body, self._seals)
                self._owner.deliver(self._peer_id, code, whole)
            return
        if self._transport is None or self._transport.is_closing():
            return  # refused or timed out: further frames are ignored
        if code != HELLO:
            raise PeerProtocolError(f"sent code {code} before a hello")
        proof, data = unseal(code, body)
        self._answer_hello(bytes(data), bytes(proof))

    def on_closed(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._transport = None
        self._owner.live.discard(self)
        if self._link is None:
            self._owner.forget(self)
            if error is not None:
                self._owner.report_stranger(PeerProtocolError(f"{self.host}: {error}"))
            return
        if error is not None:
            self._owner.report_error(PeerProtocolError(f"{self.host}: {error}"))
        self._link.accepted_closed(self)

    def _answer_hello(self, hello: bytes, proof: bytes) -> None:
        assert self._transport is not None
        self._timer.cancel()
        owner = self._owner
        try:
            secret = proving_secret(owner.secrets, DIALER, self._nonce, hello, proof)
            if secret is None:
                raise UnprovenError(self.host)
            other = decode_hello(hello)
            dialer_nonce = bytes.fromhex(other.nonce)
            self.notice_key = notice_key(secret, dialer_nonce, self._nonce)
            self._link = owner.welcome(self, other)
        except (UnprovenError, WrongPeerError) as error:
            self._transport.write(seal(REFUSAL, error.field.encode(), is_response=True))
            owner.report_stranger(error)
            self._transport.close()
            return
        self._peer_id = other.node_id
        self.stream.frame_limit = _FRAME_LIMIT
        own_hello = replace(owner.hello, to=other.node_id, nonce=self._nonce.hex()).encode()
        if secret:
            self._seals = FrameSeal(SEALED_FRAMES, secret, dialer_nonce, self._nonce)
        own_proof = prove(secret, LISTENER, dialer_nonce, own_hello)
        self._transport.write(seal(HELLO, own_hello, own_proof, is_response=True))

    def _time_out(self) -> None:
        self._owner.report_stranger(PeerProtocolError(f"{self.host} sent no hello within {_HANDSHAKE_S} s"))
        self.abort()
