"""Peers as their hellos described them: connections, addresses and incarnations."""

import asyncio
import logging

from dledger.log.identity import KnownPeers
from dledger.peers.hello import Hello
from ledgermq.remoting.refusal import LeaderHint

_log = logging.getLogger(__name__)


class PeerBook:
    """Addresses and incarnations by node id.

    Args:
        known: incarnations from before the last restart.
        own: where clients and peers find this node.
    """

    def __init__(self, known: KnownPeers, own: LeaderHint) -> None:
        self._known = known
        self._hints = {own.node_id: own}
        self._saving = asyncio.Lock()
        self.joined: set[str] = set()

    def hint(self, node_id: str | None) -> LeaderHint | None:
        """Return where a node is found; None while it has not sent its addresses."""
        return None if node_id is None else self._hints.get(node_id)

    def address(self, node_id: str) -> str:
        """Return where a node serves other members, `host:port`; empty while it has not sent its addresses."""
        hint = self._hints.get(node_id)
        return "" if hint is None else hint.inside_address or hint.address

    def greet(self, peer_id: str, hello: Hello) -> bool:
        """Take over what a hello says; return whether `save` must be called."""
        self.joined.add(peer_id)
        self._hints[peer_id] = LeaderHint(peer_id, hello.client_address, hello.inside_address)
        if self._known.incarnations.get(peer_id) == hello.incarnation:
            return False
        if self._known.learn(peer_id, hello.incarnation):
            _log.warning("%s came back with another disk (incarnation %s)", peer_id, hello.incarnation)
        return True

    async def save(self) -> None:
        """Save the incarnations; durable on return.

        Raises:
            DiskFullError, DiskFailedError: the disk is full or failed.
        """
        async with self._saving:
            await asyncio.get_running_loop().run_in_executor(None, self._known.save, self._known.picture())
