"""Forwards requests that change tables from a follower to its leader, since tools send them to every member.

    follower --(the request as it came)--> leader --> answer --> back

Source: apache/rocketmq `tools/.../command/CommandUtil.java`: with `-c` some commands go through masters and slaves,
each of which has tables of its own there.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from broker.role import Role
from broker.subsystem import Serve
from broker.timers import Spawn
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.refusal import Cause, Refusal

Forward = Callable[[str, Command], Awaitable[Command]]

_PASSED_ON: Final = "passed on to the leader"


class LeaderForwarding:
    """Has the leader serve requests that a follower gets.

    Args:
        spawn: runs a coroutine until the broker stops.

    Attributes:
        forward: asks another broker; None: a follower refuses.
    """

    def __init__(self, role: Role, spawn: Spawn) -> None:
        self._role = role
        self._spawn = spawn
        self.forward: Forward | None = None

    def by_leader(self, serve: Serve) -> Serve:
        """Return a function that serves on the leader, and forwards on a follower what was not forwarded yet."""

        def served(connection: Connection, command: Command) -> None:
            forward, leader = self.forward, self._role.leader_elsewhere
            if forward is None or leader is None or command.remark == _PASSED_ON:
                serve(connection, command)
            else:
                self._spawn(self._pass_on(forward, leader, connection, command))

        return served

    async def _pass_on(self, forward: Forward, leader: str, connection: Connection, command: Command) -> None:
        """Forward with the same header fields and body, so that the signature stays valid."""
        question = Command(command.code, ext=dict(command.ext), body=bytes(command.body), remark=_PASSED_ON)
        question.version, question.language = command.version, command.language
        try:
            answer = await forward(leader, question)
        except RemotingError as error:
            self._role.avoid(leader)
            remark = f"the leader at {leader} does not answer: {error}"
            connection.refuse(command, Refusal(Cause.NOT_LEADER, remark, retry_after_ms=1000))
        else:
            connection.respond(command, answer.code, answer.ext, bytes(answer.body), answer.remark)
