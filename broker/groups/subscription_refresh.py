"""Asks a consumer for its subscriptions when its heartbeat with them has not arrived.

Java clients give a subscription a new version at every rebalance and send it with a heartbeat; while another of their
heartbeats is under way they drop this one, and the next one comes 30 s later. Upstream refuses every pull until then. A
client can be asked (307): its answer has its subscriptions with their versions, and the pull continues at once.

Source: apache/rocketmq `client/.../impl/factory/MQClientInstance.java` (lockHeartbeat),
`client/.../impl/ClientRemotingProcessor.java`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from broker.groups.clients import ClientTable
from broker.groups.subscription import Subscription
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import JsonError, RemotingError
from ledgermq.remoting.refusal import Refusal

ANSWER_SECONDS = 1.0
AGAIN_SECONDS = 1.0
"""Time for which a client is not asked again after an answer without the subscription, in seconds."""

Waiter = Callable[[], None]


class SubscriptionRefresh:
    """Sends the requests, one at a time to each client; `clock` in seconds, monotonic."""

    def __init__(self, clients: ClientTable, clock: Callable[[], float]) -> None:
        self._clients = clients
        self._clock = clock
        self._waiting: dict[tuple[Connection, str], list[Waiter]] = {}
        self._asked: dict[tuple[Connection, str], float] = {}

    def ask(self, connection: Connection, group_name: str, then: Waiter) -> bool:
        """Ask the group's member on this connection; `then` is called when it has answered, or its time is over.

        Returns False, and asks nothing, if the connection belongs to no member or was asked just before.
        """
        group = self._clients.consumer_group(group_name)
        member = group.members.get(connection) if group is not None else None
        if member is None:
            return False
        key = (connection, group_name)
        if (waiting := self._waiting.get(key)) is not None:
            waiting.append(then)
            return True
        now = self._clock()
        self._asked = {key: time for key, time in self._asked.items() if now - time < AGAIN_SECONDS}
        if key in self._asked:
            return False
        self._asked[key] = now
        self._waiting[key] = [then]
        fields = {"consumerGroup": group_name, "clientId": member.client_id, "jstackEnable": "false"}
        question = Command(RequestCode.GET_CONSUMER_RUNNING_INFO, ext=fields)
        connection.call(question, ANSWER_SECONDS, lambda outcome: self._settle(key, outcome))
        return True

    def _settle(self, key: tuple[Connection, str], outcome: Command | RemotingError) -> None:
        connection, group_name = key
        group = self._clients.consumer_group(group_name)
        if group is not None and connection in group.members and isinstance(outcome, Command):
            group.renew(_subscriptions(outcome))
        for then in self._waiting.pop(key):
            then()


def _subscriptions(answer: Command) -> list[Subscription]:
    """Return the subscriptions in a running info; none if it cannot be read: the next heartbeat brings them."""
    if answer.code != ResponseCode.SUCCESS:
        return []
    try:
        body: Any = loads(answer.body)
        entries = body.get("subscriptionSet") if isinstance(body, Mapping) else None
        return [Subscription.from_json(entry) for entry in entries] if isinstance(entries, list) else []
    except (JsonError, Refusal):
        return []
