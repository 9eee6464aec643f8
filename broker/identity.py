"""The names and addresses under which others know this broker, and its permission."""

from broker.config import BrokerConfig
from ledgermq.remoting.route import PERM_READ, PERM_WRITE, MessageQueue


class BrokerIdentity:
    """The names of a broker, and its permission as it is at present.

    Attributes:
        cluster: to which the broker belongs.
        name: that this broker and its replicas share in routes.
        fields: both, as requests and answers have them.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.cluster = config.cluster_name
        self.name = config.broker_name
        self.fields = {"clusterName": self.cluster, "brokerName": self.name}

    def queue(self, topic: str, queue_id: int) -> MessageQueue:
        """Return a queue of this broker, as requests and answers name it."""
        return MessageQueue(topic, self.name, queue_id)

    @property
    def permission(self) -> int:
        """What the whole broker allows: PERM_READ, PERM_WRITE or their sum."""
        return self._config.broker_permission

    @property
    def may_be_read(self) -> bool:
        """Whether the whole broker allows reading."""
        return self._config.broker_permission & PERM_READ != 0

    @property
    def may_be_written(self) -> bool:
        """Whether the whole broker allows sending."""
        return self._config.broker_permission & PERM_WRITE != 0

    def complaint(self, about: str) -> str:
        """Return the remark of a refusal by this broker, as RocketMQ writes it; `about` is the predicate."""
        return f"the broker[{self._config.advertised_host}] {about}"

    def forbids(self, doing: str) -> str:
        """Return the remark of a refusal for lack of permission; `doing` names what is forbidden."""
        return f"{self.complaint(doing)} is forbidden (brokerPermission {self.permission})"
