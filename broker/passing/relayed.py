"""A client of another member, as the leader sees it: behind the connection on which that member passes requests on."""

from collections.abc import Sequence

from ledgermq.message.hosts import Host, encode_host
from ledgermq.remoting.connection import Buffer, Connection, RequestHandler
from ledgermq.remoting.limits import Limits


class RelayedClient(Connection):
    """Has the client's address; what it is answered goes out on the member's connection.

    Args:
        carrier: the member's connection.
        handler: serves the client's requests.
        host: the client's address and port.
    """

    is_relayed = True

    def __init__(self, carrier: Connection, handler: RequestHandler, host: Host) -> None:
        super().__init__(handler, Limits(), lambda _: None, lambda _connection, _reason: None)
        self._carrier = carrier
        self.peer = (host.address, host.port)
        self.peer_host = encode_host(host)
        self.address = str(host)
        self.local_address = carrier.local_address

    @property
    def is_closed(self) -> bool:
        """Whether the client, or the member between, is gone."""
        return self._closed or self._carrier.is_closed

    @property
    def unsent_bytes(self) -> int:
        """Those of the member's connection."""
        return self._carrier.unsent_bytes

    @property
    def held_bytes(self) -> int:
        """Those of the member's connection."""
        return self._carrier.held_bytes

    @property
    def is_full(self) -> bool:
        """Whether the member's connection is full."""
        return self._carrier.is_full

    def send(self, data: Buffer | Sequence[Buffer]) -> None:
        """Queue frames on the member's connection."""
        if not self._closed:
            self._carrier.send(data)

    def answer(self, data: Buffer | Sequence[Buffer], count: int = 1) -> None:
        """Queue answers on the member's connection, which counts the requests."""
        self._carrier.answer(data, count)
