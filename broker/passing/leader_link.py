"""The follower's end: one connection to the leader, on which all clients' requests are passed on."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from broker.passing.claims import VERSION, Claims, read_nonce
from broker.passing.held_requests import Waiting
from broker.passing.member_requests import GREETING
from broker.passing.runs import RUN_MAX_BYTES, SendRun
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.frame import PREFIX_LENGTH, encode
from ledgermq.remoting.codec.repeated_headers import RepeatedSend
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import ConnectError, RemotingError
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.outgoing_requests import Settle
from ledgermq.remoting.proof import Secrets, make_nonce
from ledgermq.remoting.refusal import Cause, Refusal

ANSWER_TIMEOUT_S: Final = 10.0
"""Longer than a leader waits for a quorum; after that a request may or may not have been carried out."""

_GREETING_TIMEOUT_S: Final = 1.0

_ITSELF: Final = "itself"
"""The client in the claim of a request that a member makes for itself."""

_CLAIM_MAX_BYTES: Final = 256
"""Most bytes that a claim, and another opaque, add to a header."""

_OTHERS_MAX_BYTES: Final = 2048
"""Most bytes of a header besides its texts, of `FIELDS_MAX` fields."""


SettleRun = Callable[["LeaderLink", SendRun, Command | RemotingError | None], None]


class UnknownGreetingError(ConnectError):
    """The other node is none of ours: RocketMQ's broker answers that it does not know the request."""


class LeaderLink:
    """An open connection to the leader that has answered the greeting.

    Args:
        address: where the leader serves clients.
        connection: the connection; it stays with this link.
        claims: for whom requests are passed on.
        limits: of the leader, for what it receives.
        generation: the one of the greeting.
        is_bound: whether that node places what is passed on in this generation only.
        takes_runs: whether the leader takes the frame of a run.

    Attributes:
        rests_until: when requests may be passed on again, seconds of the loop's clock.
    """

    def __init__(
        self,
        address: str,
        connection: Connection,
        claims: Claims,
        limits: Limits,
        *,
        generation: int,
        is_bound: bool,
        takes_runs: bool,
    ) -> None:
        self.address = address
        self.connection = connection
        self.generation = generation
        self.is_bound = is_bound
        self.rests_until = 0.0
        self._claims = claims
        self._limits = limits
        self.takes_runs = takes_runs and limits.frame_bytes >= RUN_MAX_BYTES
        self._loop = asyncio.get_running_loop()
        self._run: tuple[SendRun, SettleRun] | None = None

    def pass_on(self, command: Command, client: str, settle: Settle, held_s: float = 0.0) -> None:
        """Pass a client's request on; `settle` gets the answer, or the error if none comes.

        The leader may hold it for `held_s` seconds.

        Raises:
            Refusal: MESSAGE_ILLEGAL, it is too long with its claim; nothing was sent.
        """
        self.connection.call(self._passed(command, client), ANSWER_TIMEOUT_S + held_s, settle)

    def pass_on_in_run(self, waiting: Waiting, send: RepeatedSend, settle: SettleRun) -> None:
        """Pass a client's send on at the end of this turn, with others of the client; `settle` gets the run's answer.

        It gets an error if none comes, or None if the connection ended before anything was sent.
        """
        if self._run is None or not self._run[0].takes(waiting):
            self._end_run()
            self._run = SendRun(waiting.connection), settle
            self._loop.call_soon(self._end_run)
        self._run[0].add(waiting, send)

    def _end_run(self) -> None:
        if self._run is None:
            return
        (run, settle_run), self._run = self._run, None
        settle = partial(settle_run, self, run)
        if self.connection.is_closed:
            settle(None)
            return
        command = run.command()
        command.remark = self._claims.make(command, run.connection.address)
        self.connection.call(command, ANSWER_TIMEOUT_S, settle)

    async def ask(self, command: Command) -> Command:
        """Ask the leader something on this member's own behalf; return the answer, whatever its code.

        Raises:
            RequestTimeoutError, ConnectionLostError: there is no answer.
        """
        return await self.connection.request(self._passed(command, _ITSELF), ANSWER_TIMEOUT_S)

    def call(self, command: Command, settle: Settle) -> None:
        """Ask without waiting, as `ask` does; `settle` gets the answer, or the error if none comes."""
        self.connection.call(self._passed(command, _ITSELF), ANSWER_TIMEOUT_S, settle)

    def pass_on_oneway(self, command: Command, client: str) -> None:
        """Pass a client's one-way request on.

        Raises:
            Refusal: MESSAGE_ILLEGAL, it is too long with its claim; nothing was sent.
        """
        self.connection.oneway(self._passed(command, client))

    def _passed(self, command: Command, client: str) -> Command:
        """Return the request with the same fields and body, so that the client's signature stays valid."""
        self._end_run()  # which came before
        self._check_length(command)  # before the claim is made: the leader expects a request for every one
        claim = self._claims.make(command, client)
        language, version, header_type = command.language, command.version, command.header_type
        return Command(command.code, 0, 0, command.ext, command.body, claim, language, version, header_type)

    def _check_length(self, command: Command) -> None:
        """Refuse a request that the leader would refuse by closing the connection, on which all clients depend."""
        limits, ext = self._limits, command.ext
        texts = len("".join(ext)) + len("".join(ext.values())) + len(command.language)
        longest = 6 * texts + _OTHERS_MAX_BYTES  # JSON takes six bytes for a control character
        if longest <= limits.header_bytes and longest + len(command.body) <= limits.frame_bytes:
            return
        frame_bytes = len(encode(command)) + _CLAIM_MAX_BYTES
        header_bytes = frame_bytes - PREFIX_LENGTH - len(command.body)
        if header_bytes > limits.header_bytes or frame_bytes > limits.frame_bytes:
            remark = f"a frame of {frame_bytes} bytes with a header of {header_bytes} is too long to be passed on"
            raise Refusal(Cause.MESSAGE_ILLEGAL, remark)


async def open_link(
    client: RemotingClient, address: str, secrets: Secrets, limits: Limits, generation: int = 0
) -> LeaderLink:
    """Connect and greet.

    Args:
        client: makes the connection.
        address: of the leader, `host:port`.
        secrets: of the cluster; the first one seals.
        limits: of the leader, for what it receives.
        generation: in which it leads; 0 for what is asked of any node.

    Raises:
        RemotingError: no answer from there, or the node takes no requests of members.
        Refusal: MALFORMED_FIELD, the answer has no nonce.
    """
    connection = await client.connection(address)
    own = make_nonce()
    greeting = {"nonce": own.hex(), "version": VERSION, "generation": str(generation)}
    answer = await connection.request(Command(GREETING, ext=greeting), _GREETING_TIMEOUT_S)
    if (answer.remark or "").startswith(f" request type {GREETING} "):
        raise UnknownGreetingError(address, "it is no broker of LedgerMQ")
    if answer.code != ResponseCode.SUCCESS:
        raise ConnectError(address, f"the leader takes no requests of other members' clients: {answer.remark}")
    if (version := answer.ext.get("version", "1")) != VERSION:
        raise ConnectError(
            address, f"the leader takes requests of version {version[:20]!r}, this member passes on version {VERSION!r}"
        )
    return LeaderLink(
        address,
        connection,
        Claims(secrets, own, read_nonce(answer.ext.get("nonce", ""))),
        limits,
        generation=generation,
        is_bound=answer.ext.get("generation") == str(generation),  # a member of an earlier release heeds none
        takes_runs="runs" in answer.ext,
    )
