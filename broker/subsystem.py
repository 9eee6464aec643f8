"""What a subsystem of the broker offers: the requests that it serves, and what it does when something happens."""

from collections.abc import Callable, Iterable, Mapping

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection

Serve = Callable[[Connection, Command], None]
"""Serves a request: answers now or later, or raises a `Refusal`."""


class Subsystem:
    """One subject of the broker. Every method does nothing unless the subject has something to do then."""

    def requests(self) -> Mapping[int, Serve]:
        """What serves which request code."""
        return {}

    def periodic(self) -> Iterable[tuple[float, Callable[[], None]]]:
        """What is to be called every so many seconds while the broker serves."""
        return ()

    def lead(self) -> None:
        """This node may write the log from now on."""

    def resume(self) -> None:
        """What earlier leaders have delivered is known: deliver what is due. Comes some time after `lead`."""

    def follow(self) -> None:
        """This node may not write the log any more, or another node leads than before; called again and again."""

    def stop(self) -> None:
        """The broker stops soon: deliver nothing more; what is under way is recorded if this node still may."""

    def forget_topic(self, topic: str) -> None:
        """The topic is removed."""

    def forget_group(self, group: str) -> None:
        """The consumer group is removed."""

    async def drain(self) -> None:
        """Wait until the log has, or has refused, all that only this node knows; before another node leads."""

    def release(self) -> None:
        """Answer the requests that wait: the listener closes soon."""
