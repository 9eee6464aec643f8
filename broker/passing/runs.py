"""Runs: sends that one client makes in one turn of the loop are passed on in one frame, as they came.

client --send, send, send--> member --SENDS, claim; body: their frames--> leader
client <---three answers---- member <----- body: the answers' frames ---- leader

So a send costs the member little more than its header's parsing, and the leader what one of its own clients costs. A
run is answered when the last of its sends is, which is nearly always one commit for all.
"""

from collections.abc import Sequence
from typing import Final, TypeGuard

from broker.passing.held_requests import Waiting
from broker.passing.relayed import RelayedClient
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.frame import frame_of
from ledgermq.remoting.codec.repeated_headers import RepeatedSend
from ledgermq.remoting.connection import Buffer, Connection, RequestHandler
from ledgermq.remoting.errors import FrameError
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.signature import SIGNATURE

SENDS: Final = 53009
"""A member passes a run on; the body: the frames of the sends, of one client. The answer's body: the frames of their
answers, with the client's own numbers; its remark is `MIXED` if refusals are among them: sends that were not
placed are held. An answer with another code than 0 is that of every send: nothing was served."""

MIXED: Final = "mixed"

RUN_MAX_BYTES: Final = 64 << 10
"""Largest frame of a run."""
_FULL_BYTES: Final = 40 << 10
_BODY_MAX: Final = 16 << 10


class SendRun:
    """The sends that a member gathers for one frame.

    Attributes:
        connection: the client's.
        sends: by the client's numbers, in order.
    """

    __slots__ = ("_pieces", "_size", "connection", "sends")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.sends: dict[int, Waiting] = {}
        self._pieces: list[Buffer] = []
        self._size = 0

    def takes(self, waiting: Waiting) -> bool:
        """Return whether a send is of this client and there is room for it; a run has no two sends with one number."""
        is_own = waiting.connection is self.connection
        return is_own and self._size < _FULL_BYTES and waiting.command.opaque not in self.sends

    def add(self, waiting: Waiting, send: RepeatedSend) -> None:
        """Put a send behind the others."""
        self.sends[send.opaque] = waiting
        head = send.header
        self._pieces += frame_of(head, send.body)
        self._size += len(head) + len(send.body)

    def command(self) -> Command:
        """Return the request for the leader, without its claim."""
        return Command(SENDS, body=b"".join(self._pieces))


def goes_in_a_run(command: Command) -> TypeGuard[RepeatedSend]:
    """Return whether a send is passed on in a run: short, unsigned, with an answer, and a header like earlier ones."""
    return (
        isinstance(command, RepeatedSend)
        and not command.flag
        and len(command.body) <= _BODY_MAX
        and SIGNATURE not in command.pattern.ext
    )


class RunAnswers(RelayedClient):
    """The client as seen by the sends of one run: it shares the client's state and gathers their answers."""

    __slots__ = ("_answers", "_is_mixed", "_left", "_run")

    def __init__(self, client: RelayedClient, run: Command, count: int) -> None:
        self.__dict__ = client.__dict__
        self._run = run
        self._left = count
        self._answers: list[Buffer] = []
        self._is_mixed = False

    def answer(self, data: Buffer | Sequence[Buffer], count: int = 1, size: int | None = None) -> None:
        """Gather answers; the last one answers the run."""
        self._answers += [data] if isinstance(data, (bytes, memoryview)) else data
        self._left -= count
        if not self._left:
            remark = MIXED if self._is_mixed else None
            self._carrier.respond(self._run, ResponseCode.SUCCESS, body=self._answers, remark=remark)

    def refuse(self, command: Command, refusal: Refusal) -> None:
        """Gather a refusal."""
        self._is_mixed = True
        super().refuse(command, refusal)


def serve_run(client: RelayedClient, handler: RequestHandler, run: Command) -> None:
    """Serve the sends of a run as the client's.

    Raises:
        Refusal: MALFORMED_FIELD, the body is no run; nothing was served.
    """
    try:
        sends = client.frames_in(run.body)
    except FrameError as error:
        raise Refusal(Cause.MALFORMED_FIELD, f"a run of sends: {error}") from error
    for send in sends:
        ext = send.pattern.ext if isinstance(send, RepeatedSend) else send.ext
        if send.code != RequestCode.SEND_MESSAGE_V2 or send.flag or SIGNATURE in ext:
            raise Refusal(Cause.MALFORMED_FIELD, f"a run with a signed or one-way send, or request {send.code}")
    if not sends:
        raise Refusal(Cause.MALFORMED_FIELD, "a run without sends")
    answers = RunAnswers(client, run, len(sends))
    for send in sends:
        try:
            handler.on_request(answers, send)
        except Exception as error:
            answers.fail(send, error)
