"""Cluster information, as a nameserver answers it (request 106), and the check of queues that a program gives."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ledgermq.client.core.bodies import read_body
from ledgermq.client.errors import InvalidArgumentError
from ledgermq.remoting.route import QUEUE_ID_MAX, BrokerRoute, MessageQueue, parse_broker


def check_queue(queue: MessageQueue, what: str = "queue") -> None:
    """Accept a MessageQueue of two texts and a queue id.

    Raises:
        InvalidArgumentError: another value; `what` names it.
    """
    if not isinstance(queue, MessageQueue):
        raise InvalidArgumentError(f"{what} is {type(queue).__name__}, not a MessageQueue: {queue!r}")
    topic, broker, number = queue
    is_number = isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= QUEUE_ID_MAX
    if not (isinstance(topic, str) and isinstance(broker, str) and is_number):
        raise InvalidArgumentError(f"{what} is {queue!r}: topic and broker are texts, the queue id is 0 or more")


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """All registered brokers.

    Attributes:
        brokers: by broker name.
        clusters: broker names by cluster name.
    """

    brokers: Mapping[str, BrokerRoute]
    clusters: Mapping[str, tuple[str, ...]]

    def leaders(self) -> dict[str, str]:
        """Addresses of leaders by broker name; names without a leader are left out."""
        return {name: broker.leader for name, broker in self.brokers.items() if broker.leader is not None}


def parse_cluster_info(address: str, body: bytes | memoryview) -> ClusterInfo:
    """Parse the body of an answer to request 106.

    Raises:
        UndecodableError: not JSON, or not of that shape.
    """

    def parse(document: Any) -> ClusterInfo:
        brokers = {name: parse_broker(data) for name, data in document["brokerAddrTable"].items()}
        clusters = {str(name): tuple(map(str, names)) for name, names in document["clusterAddrTable"].items()}
        return ClusterInfo(brokers, clusters)

    return read_body(address, "cluster information", body, parse)
