"""Notices that this node's event loop is busy, sent by a thread as datagrams; why and when is in `dledger.core.busy`.

    each tick (loop) --> term and links, if this node leads --> thread --datagram to the Raft port--> follower's loop

The thread needs nothing else of the node. It runs beside Python code, which gives up the GIL after the interpreter's
switch interval (1 ms in a broker), but not beside a C call that holds the GIL, such as the parsing of a long JSON text;
such calls must be short. Followers read notices on their loop; they measure their own stalls, which start no election.

A datagram is sealed by a key of the TCP connection of the two nodes and has a rising number, so it is valid once, and
only as long as that connection stands. If datagrams do not arrive, nodes behave as without notices.
"""

import asyncio
import hashlib
import hmac
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from dledger.core.busy import is_due
from dledger.core.messages import BusyNotice
from dledger.core.settings import RaftSettings
from dledger.peers.link import PeerLink

_HEAD: Final = struct.Struct(">4sQQ")
_MAGIC: Final = b"LMQb"
_SEAL_SIZE: Final = 16
_SIZE_MAX: Final = 300

_log = logging.getLogger(__name__)


class _Turn(NamedTuple):
    """What the loop leaves for the thread to read."""

    at_s: float
    term: int
    targets: tuple[tuple[tuple[str, int], bytes], ...]


class BusyNotices(asyncio.DatagramProtocol):
    """Sends this node's notices and hears those of others.

    Args:
        settings: of this node.
        links: to the other members.
        heard: called on the loop with a member's notice.

    Attributes:
        sent_count: notices sent.
    """

    def __init__(
        self, settings: RaftSettings, links: Mapping[str, PeerLink], heard: Callable[[str, BusyNotice], None]
    ) -> None:
        self._settings = settings
        self._links = links
        self._heard = heard
        self._turn = _Turn(time.monotonic(), 0, ())
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._endpoint: asyncio.DatagramTransport | None = None
        self.sent_count = 0

    async def start(self, host: str, port: int) -> None:
        """Listen at the same address as the transport, and start the thread; without the port only the latter."""
        if not self._links:
            return
        loop = asyncio.get_running_loop()
        try:
            self._endpoint, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(host, port))
        except OSError as error:
            _log.warning("notices of busy leaders are not heard, UDP port %d cannot be bound: %s", port, error)
        self._thread = threading.Thread(target=self._run, name="busy-notices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop both."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._endpoint is not None:
            self._endpoint.close()

    def turned(self, leads_term: int | None) -> None:
        """Note that the loop turns, and which term this node leads, if it leads."""
        targets = [link.target for link in self._links.values() if link.target] if leads_term is not None else []
        self._turn = _Turn(time.monotonic(), leads_term or 0, tuple(targets))

    def _run(self) -> None:
        own_id = self._settings.node_id.encode()
        while not self._stop.wait(self._settings.heartbeat_ms / 1000):
            turn = self._turn
            if not is_due(self._settings, int((time.monotonic() - turn.at_s) * 1000)):
                continue
            for address, key in turn.targets:
                self.sent_count += 1
                content = _HEAD.pack(_MAGIC, turn.term, self.sent_count) + own_id
                family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
                try:
                    with socket.socket(family, socket.SOCK_DGRAM) as sender:
                        sender.setblocking(False)
                        sender.sendto(content + _seal(key, content), address)
                except OSError as error:
                    _log.debug("a notice to %s is not sent: %s", address, error)

    # ---- asyncio.DatagramProtocol

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Pass a valid notice on; drop everything else."""
        if not _HEAD.size + _SEAL_SIZE < len(data) <= _SIZE_MAX:
            return
        content, seal = data[:-_SEAL_SIZE], data[-_SEAL_SIZE:]
        magic, term, number = _HEAD.unpack_from(content)
        peer_id = content[_HEAD.size :].decode(errors="replace")
        link = self._links.get(peer_id)
        if magic != _MAGIC or link is None or not link.notice_key or number <= link.notice_number:
            return
        if hmac.compare_digest(_seal(link.notice_key, content), seal):
            link.notice_number = number
            self._heard(peer_id, BusyNotice(term))

    def error_received(self, exc: Exception) -> None:
        """Do nothing: a peer without a listener is no fault."""


def _seal(key: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_SEAL_SIZE, key=key).digest()
