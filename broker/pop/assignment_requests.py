"""QUERY_ASSIGNMENT (400), SET_MESSAGE_REQUEST_MODE (401), GET_ALL_MESSAGE_REQUEST_MODE (402).

Push consumers that leave the assignment of queues to the broker send 400; the answer says which queues they read and
whether by PULL or by POP:

    PULL   the queues that the strategy assigns to the member
    POP    all queues of every broker (queue id -1), or the member's own queues and those of the next members

Source: apache/rocketmq `broker/.../processor/QueryAssignmentProcessor.java`,
`broker/.../loadbalance/MessageRequestModeManager.java`, `client/.../consumer/rebalance/*.java`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from broker.context import BrokerContext
from broker.groups.clients import BROADCASTING, ClientTable
from broker.pop.handles import ANY_QUEUE
from broker.pop.routes import PopRoutes
from broker.state.pop_tables import POP, PULL, PopChange, RequestMode, modes_to_json
from broker.state.tables import StateChange, offset_key
from broker.subsystem import answer_after
from ledgermq.message.pop_handle import is_retry_topic
from ledgermq.remoting.allocation import allocate_averagely, java_order, sorted_queues
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import I32_MAX, I32_MIN
from ledgermq.remoting.codec.java_json import dumps
from ledgermq.remoting.codec.lenient_json import request_object
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.route import MessageQueue

log = logging.getLogger(__name__)

_SHOWN_MAX = 100

Allocate = Callable[[str, Sequence[str], Sequence[MessageQueue]], tuple[MessageQueue, ...]]
"""From a member, all members and all queues to the member's queues."""


class AssignmentRequests:
    """Serves assignments and their modes.

    Attributes:
        routes: finds the queues of a topic on all brokers.
    """

    def __init__(self, context: BrokerContext, clients: ClientTable) -> None:
        self._config = context.config
        self._state = context.state
        self._metadata = context.metadata
        self._clients = clients
        self._role = context.role
        self._propose = context.appender.propose
        self._spawn = context.spawn
        self.routes = PopRoutes(context)

    def query(self, connection: Connection, command: Command) -> None:
        """400: answer the queues of one member, and how it reads them; without a list, it asks again later."""
        body = request_object(command)
        topic, group, member = _text(body, "topic"), _text(body, "consumerGroup"), _text(body, "clientId")
        mode, model = self._mode(topic, group), _text(body, "messageModel")
        strategy = str(body.get("strategyName") or "")

        async def answer() -> None:
            queues: Iterable[MessageQueue] | None = await self.routes.queues(topic)
            if queues is not None and model != BROADCASTING and self._config.server_allocates_queues:
                queues = self._share(group, member, strategy, mode, list(queues))
            connection.respond(command, ResponseCode.SUCCESS, body=_assignments(queues, mode.mode))

        self._spawn(answer())

    def set_mode(self, connection: Connection, command: Command) -> None:
        """401: set whether a group's push consumers read a topic by PULL or by POP; answered when it is committed."""
        body = request_object(command)
        topic, group = _text(body, "topic"), _text(body, "consumerGroup")
        mode = RequestMode(str(body.get("mode") or PULL), _share_count(body))
        if mode.mode not in (PULL, POP):
            raise Refusal(Cause.MALFORMED_FIELD, f"mode is {mode.mode[:_SHOWN_MAX]!r}, neither PULL nor POP")
        if is_retry_topic(topic):
            raise Refusal(Cause.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self._metadata.topic(topic) is None:
            raise Refusal(Cause.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        if self._metadata.group_or_new(group) is None:
            raise Refusal(Cause.GROUP_NOT_EXIST, "subscription group does not exist")
        self._role.check_writable()
        change = StateChange(pop=PopChange(modes={offset_key(topic, group): mode}))
        self._propose(change, answer_after(connection, command))

    def all_modes(self, connection: Connection, command: Command) -> None:
        """402: answer all modes that were set."""
        connection.respond(command, ResponseCode.SUCCESS, body=dumps(modes_to_json(self._state.pop.modes)))

    def _mode(self, topic: str, group: str) -> RequestMode:
        mode = self._state.pop.modes.get(offset_key(topic, group))
        if mode is not None:
            return mode
        if is_retry_topic(topic) or self._config.default_request_mode == PULL:
            return RequestMode(PULL)
        return RequestMode(POP, self._config.default_pop_share_queues)

    def _share(
        self, group: str, member: str, strategy: str, mode: RequestMode, queues: list[MessageQueue]
    ) -> Iterable[MessageQueue] | None:
        members, allocate = self._clients.consumer_group(group), STRATEGIES.get(strategy)
        if members is None or allocate is None:
            log.warning(
                "no queues for %s of group %s: %s", member, group, "no members" if allocate else f"strategy {strategy}"
            )
            return None
        return assign(allocate, mode, member, members.client_ids(), queues)


def allocate_by_circle(member: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> tuple[MessageQueue, ...]:
    """Return every n-th queue, where n is the number of members; arguments as for `allocate_averagely`."""
    ordered = sorted(members, key=java_order)
    if member not in ordered:
        return ()
    return tuple(sorted_queues(queues)[ordered.index(member) :: len(ordered)])


STRATEGIES: Final[Mapping[str, Allocate]] = {"AVG": allocate_averagely, "AVG_BY_CIRCLE": allocate_by_circle}


def assign(
    allocate: Allocate, mode: RequestMode, member: str, members: Sequence[str], queues: Sequence[MessageQueue]
) -> set[MessageQueue]:
    """Return the queues that `member` reads. `members` and `queues` have no duplicates and may be in any order."""
    if mode.mode != POP:
        return set(allocate(member, members, queues))
    if mode.share_count <= 0 or mode.share_count >= len(members) - 1:
        return {queue._replace(queue_id=ANY_QUEUE) for queue in queues}
    ordered = sorted(members, key=java_order)
    if member not in ordered:
        return set()
    index = ordered.index(member)
    if len(ordered) > len(queues):
        return {sorted_queues(queues)[index % len(queues)]} if queues else set()
    sharers = [ordered[(index + step) % len(ordered)] for step in range(mode.share_count + 1)]
    return {queue for sharer in sharers for queue in allocate(sharer, members, queues)}


def _assignments(queues: Iterable[MessageQueue] | None, mode: str) -> bytes:
    if queues is None:
        return b"{}"
    rows = [
        {"messageQueue": {"brokerName": queue.broker, "queueId": queue.queue_id, "topic": queue.topic}, "mode": mode}
        for queue in sorted(queues)
    ]
    return dumps({"messageQueueAssignments": rows})


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise Refusal(Cause.MALFORMED_FIELD, f"member {name} of the body is missing or not a text")
    return value


def _share_count(body: dict[str, Any]) -> int:
    value = body.get("popShareQueueNum", 0)
    if type(value) is not int or not I32_MIN <= value <= I32_MAX:
        raise Refusal(Cause.MALFORMED_FIELD, f"popShareQueueNum is {str(value)[:_SHOWN_MAX]}, not a number")
    return value
