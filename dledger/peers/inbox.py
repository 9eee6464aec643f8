"""Hands messages of peers, and changes of their connections, to the node and to those beside it that follow them.

a peer's span --> chain of headers, CRC --> node          copies for damaged entries --> `CopyFetcher`
joined, lost  --> who is connected, copies asked for, node, the role's listeners
"""

import asyncio
import logging
from collections.abc import Callable

from dledger.background import CopyFetcher
from dledger.core.errors import ImplausibleMessageError
from dledger.core.messages import AppendRequest
from dledger.errors import EntryFormatError, PeerProtocolError
from dledger.log.entry_log import EntryLog
from dledger.log.hard_state import RETRY_S
from dledger.log_events import LogEvents
from dledger.node import RaftNode
from dledger.peers.book import PeerBook
from dledger.peers.hello import Hello
from dledger.peers.wire import CopyRequest, CopyResponse, PeerMessage
from dledger.pulse import Pulse
from store.errors import DiskFullError, StoreError

_log = logging.getLogger(__name__)


class PeerInbox:
    """The transport's `PeerListener`.

    Args:
        log: whose entries spans must go on.
        peers: who is connected.
        events: told when a hint may have changed.
        on_disk_failed: told why this node can take no part any more.
    """

    def __init__(
        self, log: EntryLog, peers: PeerBook, events: LogEvents, on_disk_failed: Callable[[StoreError], None]
    ) -> None:
        self._log = log
        self._peers = peers
        self._events = events
        self._on_disk_failed = on_disk_failed

    def attach(self, node: RaftNode, copies: CopyFetcher, pulse: Pulse) -> None:
        """Who gets the messages was made; comes before the transport starts."""
        self._node = node
        self._copies = copies
        self._pulse = pulse

    def on_message(self, peer_id: str, message: PeerMessage) -> None:
        """A peer's message, whole; a span is checked before the core hears of it.

        Raises:
            PeerProtocolError: the span is no chain of entries, or no member of a sound group says that.
        """
        if isinstance(message, CopyRequest):
            self._copies.on_request(peer_id, message)
        elif isinstance(message, CopyResponse):
            self._copies.on_response(peer_id, message)
        else:
            if type(message) is AppendRequest and message.span is not None:
                try:
                    self._log.check(message.span)
                except EntryFormatError as error:
                    raise PeerProtocolError(f"{peer_id} sent a bad span: {error}") from error
            try:
                self._node.on_message(peer_id, message)
            except ImplausibleMessageError as error:
                raise PeerProtocolError(str(error)) from error
            except EntryFormatError as error:  # the log and the core disagree: neither is to be believed
                self._node.on_disk_failed(error)

    def on_peer_joined(self, peer_id: str, hello: Hello) -> None:
        """Connections stand both ways."""
        if self._peers.greet(peer_id, hello):
            self._pulse.spawn(self._save_peers())
        self._copies.ask(peer_id)
        self._node.on_peer_joined(peer_id)
        self._events.tell_role()

    def on_peer_lost(self, peer_id: str) -> None:
        """A connection broke."""
        self._peers.joined.discard(peer_id)
        self._node.on_peer_lost(peer_id)

    async def _save_peers(self) -> None:
        """Save what was learned of the peers; a full disk is waited out."""
        while True:
            try:
                await self._peers.save()
            except DiskFullError as error:
                _log.warning("the peers' incarnations cannot be saved until the disk has room: %s", error)
                await asyncio.sleep(RETRY_S)
            except StoreError as error:
                self._on_disk_failed(error)
                return
            else:
                return
