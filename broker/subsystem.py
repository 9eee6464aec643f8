"""The base class of subsystems: the requests that they serve, and their reactions to events of the broker."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal

Steps = Iterator[None]
"""The steps of a request that takes long; the last one answers, or any raises a `Refusal`."""

Serve = Callable[[Connection, Command], Steps | None]
"""Serves a request: answers now or later, raises a `Refusal`, or returns steps for turns of the loop."""


_ANSWER_MAX_BYTES: Final = (16 << 20) - (64 << 10)
"""RocketMQ's clients close the connection at a frame of more than 16 MiB, its header included."""


class AnswerParts:
    """The parts of a long answer, gathered in steps; together at most as long as clients read.

    Each part is joined at once: orjson gives a part 3 KB of memory, and an answer may have 60,000.
    """

    def __init__(self) -> None:
        self._joined = bytearray()

    def add(self, part: bytes) -> None:
        """Append one part.

        Raises:
            Refusal: SYSTEM_ERROR, the answer is longer than clients read.
        """
        if self._joined:
            self._joined += b","
        self._joined += part
        if len(self._joined) > _ANSWER_MAX_BYTES:
            text = f"the answer has more than {_ANSWER_MAX_BYTES} bytes, which clients do not read: ask for less"
            raise Refusal(Cause.SYSTEM_ERROR, text)

    def joined(self) -> bytes:
        """Return all parts, joined by commas."""
        return bytes(self._joined)


def answer_after(
    connection: Connection, command: Command, body: Callable[[], bytes] = bytes
) -> Callable[[Refusal | None], None]:
    """Return the function for the outcome of a change: it answers with success and the body, or refuses."""

    def done(refusal: Refusal | None) -> None:
        if refusal is not None:
            connection.refuse(command, refusal)
        else:
            connection.respond(command, ResponseCode.SUCCESS, body=body())

    return done


class Subsystem:
    """One subject of the broker. Every method does nothing unless a subclass overrides it."""

    def requests(self) -> Mapping[int, Serve]:
        """Return the functions that serve requests, by request code."""
        return {}

    def periodic(self) -> Iterable[tuple[float, Callable[[], None]]]:
        """Return functions to call periodically while the broker serves, each with its interval in seconds."""
        return ()

    def lead(self) -> None:
        """Begin to lead: this node may write the log from now on."""

    def resume(self) -> None:
        """Begin to deliver: the deliveries of earlier leaders are known. Called some time after `lead`."""

    def stand_in(self) -> None:
        """Deliver to masters of other names until `follow`, as a slave whose own master is away; write nothing."""

    def follow(self) -> None:
        """Stop to lead: this node may not write any more, or another node leads than before. Called again and again."""

    def stop(self) -> None:
        """Deliver nothing more, since the broker stops soon; what is under way is recorded if this node still may."""

    def forget_topic(self, topic: str) -> None:
        """Drop what belongs to a topic that is removed."""

    def forget_group(self, group: str) -> None:
        """Drop what belongs to a consumer group that is removed."""

    async def drain(self) -> None:
        """Wait until the log has, or has refused, all that only this node knows; called before another node leads."""

    def release(self) -> None:
        """Answer the requests that wait: the listener closes soon."""
