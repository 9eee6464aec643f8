"""Asks a consumer for its subscriptions when its heartbeat with them has not arrived, or the leader about its group.

Java clients give a subscription a new version at every rebalance and send it with a heartbeat; while another of their
heartbeats is under way they drop this one, and the next one comes 30 s later. Upstream refuses every pull until then. A
client can be asked (307): its answer has its subscriptions with their versions, and the pull continues at once.

A member of a replicated group that comes back knows no client before its next heartbeat, but the leader does: its
answer about the client's group is used until then.

Source: apache/rocketmq `client/.../impl/factory/MQClientInstance.java` (lockHeartbeat),
`client/.../impl/ClientRemotingProcessor.java`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from broker.groups.clients import ClientTable, ConsumerGroup
from broker.groups.subscription import Subscription
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import JsonError, RemotingError
from ledgermq.remoting.outgoing_requests import Settle
from ledgermq.remoting.refusal import Refusal

ANSWER_SECONDS = 1.0
AGAIN_SECONDS = 1.0
"""Time for which a client is not asked again after an answer without the subscription, in seconds."""

LENT_SECONDS = 60.0
"""Twice the time between two heartbeats of a client."""
_LENT_MAX = 4096

Waiter = Callable[[], None]
AskLeader = Callable[[str, Settle], bool]
"""Asks the leader how a group consumes, by 203; returns False, and asks nothing, where no leader can be asked."""


class SubscriptionRefresh:
    """Sends the requests, one at a time to each client, and for each group to the leader.

    Args:
        clock: seconds, monotonic.

    Attributes:
        ask_leader: None while this node has no other members.
    """

    def __init__(self, clients: ClientTable, clock: Callable[[], float]) -> None:
        self.ask_leader: AskLeader | None = None
        self._clients = clients
        self._clock = clock
        self._waiting: dict[_Key, list[Waiter]] = {}
        self._asked: dict[_Key, float] = {}
        self._lent: dict[str, tuple[float, ConsumerGroup]] = {}  # until when, and without members

    def lent(self, group_name: str) -> ConsumerGroup | None:
        """Return how a group consumes, as the leader told lately; None if the leader was not asked."""
        until, group = self._lent.get(group_name, (0.0, None))
        return group if self._clock() < until else None

    def ask(self, connection: Connection, group_name: str, then: Waiter) -> bool:
        """Ask the group's member on this connection, or the leader if it is none; `then` is called afterwards.

        Returns False, and asks nothing, if no node can be asked or one was asked just before.
        """
        group = self._clients.consumer_group(group_name)
        member = group.members.get(connection) if group is not None else None
        key: _Key = (None if member is None else connection, group_name)
        if (waiting := self._waiting.get(key)) is not None:
            waiting.append(then)
            return True
        now = self._clock()
        self._asked = {key: time for key, time in self._asked.items() if now - time < AGAIN_SECONDS}
        if key in self._asked:
            return False
        self._waiting[key] = [then]
        if member is not None:
            fields = {"consumerGroup": group_name, "clientId": member.client_id, "jstackEnable": "false"}
            question = Command(RequestCode.GET_CONSUMER_RUNNING_INFO, ext=fields)
            connection.call(question, ANSWER_SECONDS, lambda outcome: self._settle(key, outcome))
        elif self.ask_leader is None or not self.ask_leader(group_name, lambda outcome: self._settle(key, outcome)):
            del self._waiting[key]
            return False
        self._asked[key] = now
        return True

    def _settle(self, key: "_Key", outcome: Command | RemotingError) -> None:
        connection, group_name = key
        group = self._clients.consumer_group(group_name)
        if isinstance(outcome, Command):
            body = _body(outcome)
            if connection is None:
                self._lend(group_name, group, body)
            elif group is not None and connection in group.members:
                group.renew(_subscriptions(body.get("subscriptionSet")))
        for then in self._waiting.pop(key):
            then()

    def _lend(self, name: str, group: ConsumerGroup | None, body: Mapping[str, Any]) -> None:
        """Keep what the leader says of a group, for clients that have sent no heartbeat here."""
        table = body.get("subscriptionTable")
        subscriptions = _subscriptions(list(table.values()) if isinstance(table, Mapping) else None)
        if group is None:
            now = self._clock()
            self._lent = {name: lent for name, lent in self._lent.items() if now < lent[0]}
            if not subscriptions or len(self._lent) >= _LENT_MAX:
                return
            group = ConsumerGroup(name, message_model=str(body.get("messageModel")))
            self._lent[name] = (now + LENT_SECONDS, group)
        group.renew(subscriptions)


_Key = tuple[Connection | None, str]
"""The node that was asked about a group; None is the leader."""


def _body(answer: Command) -> Mapping[str, Any]:
    """Return the body of an answer; an empty one if it cannot be read: the next heartbeat brings what it would say."""
    if answer.code != ResponseCode.SUCCESS:
        return {}
    try:
        body: Any = loads(answer.body)
    except JsonError:
        return {}
    return body if isinstance(body, Mapping) else {}


def _subscriptions(entries: Any) -> list[Subscription]:
    """Return the subscriptions of a body; none if they cannot be read."""
    try:
        return [Subscription.from_json(entry) for entry in entries] if isinstance(entries, list) else []
    except Refusal:
        return []
