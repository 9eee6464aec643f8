"""The follower's end: one connection to the leader, on which all clients' requests are passed on."""

from typing import Final

from broker.passing.claims import Claims, read_nonce
from broker.passing.peer_desk import GREETING
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import ConnectError
from ledgermq.remoting.outgoing import Settle
from ledgermq.remoting.proof import Secrets, make_nonce

ANSWER_TIMEOUT_S: Final = 10.0
"""Longer than a leader waits for a quorum; after that a request may or may not have been carried out."""

_GREETING_TIMEOUT_S: Final = 1.0


class LeaderLink:
    """An open connection to the leader that has answered the greeting.

    Attributes:
        address: where the leader serves clients.
        connection: the connection; it stays with this link.
    """

    def __init__(self, address: str, connection: Connection, claims: Claims) -> None:
        self.address = address
        self.connection = connection
        self._claims = claims

    def pass_on(self, command: Command, client: str, settle: Settle) -> None:
        """Pass a client's request on; `settle` gets the answer, or the error if none comes."""
        self.connection.call(self._passed(command, client), ANSWER_TIMEOUT_S, settle)

    def pass_on_oneway(self, command: Command, client: str) -> None:
        """Pass a client's one-way request on."""
        self.connection.oneway(self._passed(command, client))

    def _passed(self, command: Command, client: str) -> Command:
        """The request with the same fields and body, so that the client's signature stays valid."""
        claim = self._claims.make(command, client)
        language, version, header_type = command.language, command.version, command.header_type
        return Command(command.code, 0, 0, command.ext, command.body, claim, language, version, header_type)


async def open_link(client: RemotingClient, address: str, secrets: Secrets) -> LeaderLink:
    """Connect and greet.

    Raises:
        RemotingError: nobody answers there, or the node takes nothing from members.
        Refusal: MALFORMED_FIELD, the answer has no nonce.
    """
    connection = await client.connection(address)
    own = make_nonce()
    answer = await connection.request(Command(GREETING, ext={"nonce": own.hex()}), _GREETING_TIMEOUT_S)
    if answer.code != ResponseCode.SUCCESS:
        raise ConnectError(address, f"the leader takes no requests of other members' clients: {answer.remark}")
    return LeaderLink(address, connection, Claims(secrets, own, read_nonce(answer.ext.get("nonce", ""))))
