"""Passes messages of peers, and changes of their connections, to the node and to the objects beside it.

a peer's span --> chain of headers, CRC --> node          copies for damaged entries --> `CopyFetcher`
joined, lost  --> who is connected, copies asked for, node, the role's listeners
"""

import asyncio
import logging
from collections.abc import Callable

from dledger.background import CopyFetcher
from dledger.core.errors import ImplausibleMessageError
from dledger.core.messages import AppendRequest, InstallRequest
from dledger.errors import EntryFormatError, PeerProtocolError
from dledger.log.entry_log import EntryLog
from dledger.log.hard_state import RETRY_S
from dledger.log_events import LogEvents
from dledger.node import RaftNode
from dledger.node_timers import NodeTimers
from dledger.peers.hello import Hello
from dledger.peers.peer_book import PeerBook
from dledger.peers.wire import CopyRequest, CopyResponse, PeerMessage
from ledgermq.remoting.rate_limited_log import RateLimitedLog
from store.errors import DiskFullError, StoreError

_log = logging.getLogger(__name__)


class PeerInbox:
    """The `PeerListener` of the transport.

    Args:
        log: the log that spans must continue.
        peers: records who is connected.
        events: called when the address of the leader may have changed.
        on_disk_failed: called when this node can take no further part, with the reason.
    """

    def __init__(
        self, log: EntryLog, peers: PeerBook, events: LogEvents, on_disk_failed: Callable[[StoreError], None]
    ) -> None:
        self._log = log
        self._peers = peers
        self._events = events
        self._on_disk_failed = on_disk_failed
        self._of_installs = RateLimitedLog(_log)

    def attach(self, node: RaftNode, copies: CopyFetcher, timers: NodeTimers) -> None:
        """Set the receivers of messages; called before the transport starts."""
        self._node = node
        self._copies = copies
        self._timers = timers

    def on_message(self, peer_id: str, message: PeerMessage) -> None:
        """Handle a whole message of a peer; a span is checked before the core gets it.

        Raises:
            PeerProtocolError: the span is not a chain of entries, or the message is implausible.
        """
        if isinstance(message, CopyRequest):
            self._copies.on_request(peer_id, message)
        elif isinstance(message, CopyResponse):
            if message.entry:
                self._copies.on_response(peer_id, message)
            else:
                self._node.on_no_copy(peer_id, message.index)
        else:
            if type(message) is AppendRequest and message.span is not None:
                try:
                    self._log.check(message.span)
                except EntryFormatError as error:
                    raise PeerProtocolError(f"{peer_id} sent a bad span: {error}") from error
            ignored = self._node.ignored_count
            try:
                self._node.on_message(peer_id, message)
            except ImplausibleMessageError as error:
                raise PeerProtocolError(str(error)) from error
            except EntryFormatError as error:  # the log and the core disagree, so neither can be trusted
                self._node.on_disk_failed(error)
            if type(message) is InstallRequest and self._node.ignored_count > ignored:
                self._of_installs.warning(
                    "%s sent an install of term %d for a log that begins at %d: late or impossible, it changed nothing",
                    peer_id,
                    message.term,
                    message.first_index,
                )

    def on_peer_joined(self, peer_id: str, hello: Hello) -> None:
        """Handle that connections to the peer stand in both directions."""
        if self._peers.greet(peer_id, hello):
            self._timers.spawn(self._save_peers())
        self._copies.ask(peer_id)
        self._node.on_peer_joined(peer_id)
        self._events.tell_role()

    def on_peer_lost(self, peer_id: str) -> None:
        """Handle that one of the two connections to the peer has closed."""
        self._peers.joined.discard(peer_id)
        self._node.on_peer_lost(peer_id)

    async def _save_peers(self) -> None:
        """Save the incarnations of the peers; on a full disk try again every `RETRY_S` seconds."""
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
