"""The subsystem of requests that are passed on: who greets this node, and what this node passes on itself."""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from broker.context import BrokerContext
from broker.groups.clients import ClientTable
from broker.groups.shared_locks import LOCKS, SharedLocks
from broker.passing.codes import CODES, TOLD_CODES
from broker.passing.kept_messages import FETCH_SECONDS, KeptFetch, answer_kept
from broker.passing.member_requests import GROUP, KEPT_MESSAGES, STAND_BACK, MemberRequests
from broker.passing.pass_on import PassOn
from broker.server import BrokerRequestHandler
from broker.subsystem import Serve, Subsystem
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import integer
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.proof import Secrets
from ledgermq.remoting.tls import ContextSource

_NOTHING: Final[Mapping[int, tuple[int, bytes]]] = {
    RequestCode.QUERY_MESSAGE: (ResponseCode.QUERY_NOT_FOUND, b""),
    RequestCode.QUERY_CONSUME_TIME_SPAN: (ResponseCode.SUCCESS, b'{"consumeTimeSpanSet":[]}'),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: (ResponseCode.SUCCESS, b'{"offsetTable":{}}'),
}
"""Requests that RocketMQ's tools send to every broker name of a route, whose answers they add up; each with the empty
answer of a follower, which tools reach by a name for producers. The leader gives the full one."""

_FINISH_S: Final = 0.5
_LOOK_S: Final = 0.01

_NAMED_S: Final = 30.0
"""Seconds for which a nameserver may still name a node that leads no more: members register again within that time."""


class PassingSubsystem(Subsystem):
    """Diverts requests that only the leader serves while another node leads.

    Args:
        locks: sent to members, and learnt from the leader.
        handler: the handler of all requests; the leader's serves them as always, without knowing of this.
        answer_group: answers members how a group consumes, as 203 does.
        stand_back: answers a master that is back what was delivered in its place.

    Attributes:
        pass_on: holds requests and passes them on.
        postponed: one-way requests of other members' clients that wait for a quota.
    """

    def __init__(
        self,
        context: BrokerContext,
        clients: ClientTable,
        locks: SharedLocks,
        handler: BrokerRequestHandler,
        answer_group: Serve,
        stand_back: Serve,
    ) -> None:
        self._role = context.role
        self._loop = context.loop
        self._led_until = -math.inf
        self._handler = handler
        self._appender = context.appender
        self._limits = context.config.limits
        own: dict[int, Serve] = {
            KEPT_MESSAGES: partial(answer_kept, context.store),
            GROUP: answer_group,
            STAND_BACK: stand_back,
            LOCKS: locks.answer,
        }
        self._requests = MemberRequests(context.role, lambda: handler, own)
        self._kept = KeptFetch(context)
        self.postponed = self._requests.postponed
        self.pass_on = PassOn(
            context.role,
            clients,
            locks,
            handler.serve_again,
            context.spawn,
            context.loop,
            context.store,
            context.answers,
        )

    def requests(self) -> Mapping[int, Serve]:
        """Return the handlers by request code."""
        return self._requests.requests()

    def periodic(self) -> Iterable[tuple[float, Callable[[], None]]]:
        """Fetch what this node lacks of compacted topics."""
        return ((FETCH_SECONDS, self._kept.run),)

    def open(self, tls: ContextSource | None, secrets: Secrets, *, trusts_all: bool) -> None:
        """Begin to pass requests on, and to take those of other members' clients.

        Args:
            tls: the context of connections to the leader; None for plain ones.
            secrets: the cluster's; the first one seals what is passed on, each is accepted.
            trusts_all: without a secret, believe connections from other machines, too.
        """
        self._requests.secrets, self._requests.trusts_all = secrets, trusts_all
        self.pass_on.open(tls, secrets, self._limits)
        self._kept.open(tls, secrets)
        self._appender.take_back, self._appender.look_for = self.pass_on.take_back, self.pass_on.look_for
        self._handler.client_closed = self.pass_on.client_closed
        self._divert()

    async def close(self) -> None:
        """Close the connections to leaders."""
        await self._kept.close()
        await self.pass_on.close()

    def lead(self) -> None:
        """Serve what waited for a leader."""
        self._led_until = math.inf
        self._divert()
        self.pass_on.lead()

    def follow(self) -> None:
        """Pass requests on to the present leader."""
        self._led_until = min(self._led_until, self._loop.time())
        self._divert()
        self.pass_on.follow()

    async def finish(self) -> None:
        """Pass requests on until nothing is lost when the connections close, `_FINISH_S` at most; then refuse them.

        The leader has answered what this node passed on, the members that passed requests on to this node have left
        it for the leader, and nothing is looked for in the log.
        """
        deadline, pass_on = self._loop.time() + _FINISH_S, self.pass_on
        while self._loop.time() < deadline:
            is_led = self._role.leader_elsewhere is not None
            if not (pass_on.lost or (is_led and (pass_on.held or pass_on.in_flight or self._requests.members))):
                break
            await asyncio.sleep(_LOOK_S)
        pass_on.release()

    def _divert(self) -> None:
        is_diverted = self.pass_on.is_open and self._role.is_in_election and not self._role.writable
        passed, told = dict.fromkeys(CODES, self.pass_on.take), dict.fromkeys(TOLD_CODES, self.pass_on.tell)
        once = dict.fromkeys(_NOTHING, self._leave_to_leader)
        self._handler.divert({**passed, **told, **once} if is_diverted else {})

    def _leave_to_leader(self, connection: Connection, command: Command) -> None:
        """Answer that there is nothing here: the tool asks the leader the same, so that nothing is found or done twice.

        Not if this node may be asked in the leader's place: nobody leads, or it did until lately.
        """
        is_reset = command.code == RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        is_for_leader = self._role.leader_elsewhere is None or self._loop.time() < self._led_until + _NAMED_S
        if is_reset and (is_for_leader or integer(command.ext, "queueId", -1) >= 0):
            self.pass_on.take(connection, command)  # for one queue, one broker is asked
        elif is_for_leader:
            self._handler.serve_again(connection, command)
        else:
            code, body = _NOTHING[command.code]
            connection.respond(command, code, body=body)
