"""What a nameserver says of whole clusters (request 106).

Source: apache/rocketmq `remoting/.../protocol/body/ClusterInfo.java`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ledgermq.client.core.route import BrokerRoute, parse_broker
from ledgermq.client.errors import UndecodableError
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.errors import JsonError


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """All brokers that are registered.

    Attributes:
        brokers: by broker name.
        clusters: broker names by cluster name.
    """

    brokers: Mapping[str, BrokerRoute]
    clusters: Mapping[str, tuple[str, ...]]

    def leaders(self) -> dict[str, str]:
        """Address of the leader by broker name, where there is one."""
        return {name: broker.leader for name, broker in self.brokers.items() if broker.leader is not None}


def parse_cluster_info(address: str, body: bytes | memoryview) -> ClusterInfo:
    """Read the body of an answer to request 106.

    Raises:
        UndecodableError: not that shape.
    """
    try:
        document = loads(body)
        brokers = {name: parse_broker(data) for name, data in document["brokerAddrTable"].items()}
        clusters = {str(name): tuple(map(str, names)) for name, names in document["clusterAddrTable"].items()}
    except (JsonError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UndecodableError(f"{address}: cluster information: {type(error).__name__}: {error}") from error
    return ClusterInfo(brokers, clusters)
