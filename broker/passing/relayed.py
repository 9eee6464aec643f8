"""A client of another member, as the leader sees it: behind the connection on which that member passes requests on.

leader --FOR_CLIENT {to} body: the frame--> member --the frame--> client      and the answer back
"""

from collections.abc import Sequence
from typing import Final

from ledgermq.message.hosts import Host, encode_host
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import ONEWAY_FLAG, Command
from ledgermq.remoting.codec.frame import FrameParser, encode
from ledgermq.remoting.connection import Buffer, Connection, RequestHandler
from ledgermq.remoting.errors import ConnectionLostError, FrameError, RemotingError
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.outgoing_requests import Patience, Settle
from ledgermq.remoting.quotas import address_block

FOR_CLIENT: Final = 53004
"""A leader's request to a member's client: `to`, its address; the frame is the body. The answer's frame likewise."""


class RelayedClient(Connection):
    """A client behind a member: has the client's address; answers go out on the member's connection.

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
        self.block = address_block(host.address)
        self.local_address = carrier.local_address

    @property
    def is_closed(self) -> bool:
        """Whether the client, or the member between, is gone."""
        return self._closed or self._carrier.is_closed

    @property
    def unsent_bytes(self) -> int:
        """Unsent bytes of the member's connection."""
        return self._carrier.unsent_bytes

    @property
    def held_bytes(self) -> int:
        """Held bytes of the member's connection."""
        return self._carrier.held_bytes

    @property
    def is_full(self) -> bool:
        """Whether the member's connection is full."""
        return self._carrier.is_full

    def send(self, data: Buffer | Sequence[Buffer], size: int | None = None) -> None:
        """Queue frames on the member's connection."""
        if not self._closed:
            self._carrier.send(data, size)

    def answer(self, data: Buffer | Sequence[Buffer], count: int = 1, size: int | None = None) -> None:
        """Queue answers on the member's connection, which counts the requests."""
        self._carrier.answer(data, count, size)

    def serve(self, command: Command) -> None:
        """Serve a request that was postponed."""
        self._serve(command)

    def call(self, command: Command, timeout_s: float, settle: Settle, patience: Patience | None = None) -> None:
        """Have the member ask its client."""

        def answered(outcome: Command | RemotingError) -> None:
            settle(_unwrapped(self.address, outcome))

        self._carrier.call(self._wrapped(command), timeout_s, answered, patience)

    def oneway(self, command: Command) -> None:
        """Have the member tell its client."""
        command.flag |= ONEWAY_FLAG
        self._carrier.oneway(self._wrapped(command))

    def frames_in(self, data: bytes | memoryview) -> list[Command]:
        """Return the client's commands in a body of whole frames; their bodies are views of a copy.

        Raises:
            FrameError: it has others.
        """
        commands = self._parser.feed(bytes(data))
        if rest := self._parser.held_bytes:
            self._parser.forget()
            raise FrameError(len(data) - rest, "the last frame is not whole")
        return commands

    def _wrapped(self, command: Command) -> Command:
        return Command(FOR_CLIENT, ext={"to": self.address}, body=encode(command))


def only_frame(data: bytes | memoryview) -> Command:
    """Return the command in a body that is one frame.

    Raises:
        FrameError: it is not.
    """
    commands = FrameParser().feed(bytes(data))
    if len(commands) != 1:
        raise FrameError(0, f"{len(commands)} frames where one belongs")
    return commands[0]


def _unwrapped(client: str, outcome: Command | RemotingError) -> Command | RemotingError:
    if isinstance(outcome, RemotingError):
        return outcome
    if outcome.code != ResponseCode.SUCCESS:
        return ConnectionLostError(client, f"the member between answers: {outcome.remark}")
    try:
        return only_frame(outcome.body)
    except FrameError as error:
        return error
