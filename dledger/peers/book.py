"""What this node knows of its peers from their hellos: who is connected, their client addresses and incarnations."""

import asyncio
import logging

from dledger.log.identity import KnownPeers
from dledger.peers.hello import Hello
from ledgermq.remoting.refusal import LeaderHint

_log = logging.getLogger(__name__)


class PeerBook:
    """Addresses and incarnations by node id.

    Args:
        known: what was learned in earlier lives.
        self_id: this node.
        client_address: where clients find this node.
    """

    def __init__(self, known: KnownPeers, self_id: str, client_address: str) -> None:
        self._known = known
        self._addresses = {self_id: client_address}
        self._saving = asyncio.Lock()
        self.joined: set[str] = set()

    def hint(self, node_id: str | None) -> LeaderHint | None:
        """The address that clients are sent to for a node; None while the node has not told it."""
        address = None if node_id is None else self._addresses.get(node_id)
        return None if node_id is None or address is None else LeaderHint(node_id, address)

    def greet(self, peer_id: str, hello: Hello) -> bool:
        """Remember what a hello says. Returns whether `save` must be called."""
        self.joined.add(peer_id)
        self._addresses[peer_id] = hello.client_address
        if self._known.incarnations.get(peer_id) == hello.incarnation:
            return False
        if self._known.learn(peer_id, hello.incarnation):
            _log.warning("%s came back with another disk (incarnation %s)", peer_id, hello.incarnation)
        return True

    async def save(self) -> None:
        """Make what was learned durable.

        Raises:
            DiskFullError, DiskFailedError: the disk refused.
        """
        async with self._saving:
            await asyncio.get_running_loop().run_in_executor(None, self._known.save, self._known.picture())
