"""The role of this broker at present: whether it may write the log, and why not."""

from broker.config import BrokerConfig
from store.replicated_log import LogRole, LogState


class Role:
    """The last `LogState` of the log, in the broker's terms: leader or follower, and the broker id that goes with it.

    Attributes:
        writable: whether sends and changes are accepted.
        refusal: the log's refusal of appends; None while this node is writable.
        generation: Raft term, epoch of an elected master, or 0.
        is_slave: whether this node copies a master.
        stands_in: whether this slave stands in for its absent master: it then locks queues for consumers in order.
    """

    def __init__(self, config: BrokerConfig, state: LogState) -> None:
        self._config = config
        self.stands_in = False
        self._avoided = ""
        self.update(state)

    def update(self, state: LogState) -> None:
        """Take over a new state of the log."""
        self._state = state
        self.writable = state.writable
        self.refusal = state.refusal
        self.generation = state.generation
        self.is_slave = state.role is LogRole.SLAVE

    @property
    def delivers(self) -> bool:
        """Whether this node delivers what waits here: it writes, or stands in and may send to other masters."""
        return self.writable or (self.stands_in and self._config.remote_escape)

    @property
    def name(self) -> str:
        """`leader`, `follower`, or `candidate` while no leader is known."""
        if self.writable:
            return "leader"
        return "candidate" if self._state.leader is None else "follower"

    @property
    def is_known(self) -> bool:
        """Whether the node leads or knows who does."""
        return self.writable or self._state.leader is not None

    @property
    def is_alone(self) -> bool:
        """Whether nothing is replicated."""
        return self._state.role is LogRole.ALONE

    @property
    def upstream_name(self) -> str:
        """RocketMQ's name of the role, as `brokerRole` has it."""
        if self.is_alone:
            return "ASYNC_MASTER"
        if self._state.role is LogRole.MASTER and not self.generation:
            return self._config.properties.get("brokerRole", "ASYNC_MASTER")
        return "SYNC_MASTER" if self.writable else "SLAVE"

    @property
    def broker_id(self) -> int:
        """Broker id under which routes show this node now: 0 takes sends."""
        if self.is_alone:
            return self._config.broker_id
        is_appointed = self._state.role is LogRole.MASTER and not self.generation
        return 0 if self.writable or is_appointed else self._config.follower_id

    def as_properties(self) -> dict[str, str]:
        """Return the present role and id under the names of the keys that set them at the start."""
        return {"brokerId": str(self.broker_id), "brokerRole": self.upstream_name}

    @property
    def is_member(self) -> bool:
        """Whether this node is a member of a Raft group."""
        return self._state.role.is_member

    @property
    def is_in_election(self) -> bool:
        """Whether members elect who writes, or controllers do, and this node is one of those that may."""
        return self.is_member or self.generation > 0

    @property
    def is_elected(self) -> bool:
        """Whether this node was elected; it may not write before it knows that all earlier records are committed."""
        return self._state.role is LogRole.LEADER or (self._state.role is LogRole.MASTER and self.generation > 0)

    @property
    def leader_elsewhere(self) -> str | None:
        """Address of the leader for other members, `host:port`; None on the leader, or while it is not known.

        It is the leader's `brokerIP2`, or its other address if that was of no use, see `avoid`.
        """
        leader = self._state.leader
        if self.writable or self.is_elected or leader is None:
            return None
        inside = leader.inside_address or leader.address
        return leader.address if inside == self._avoided else inside

    @property
    def avoids_inside(self) -> bool:
        """Whether the leader's `brokerIP2` cannot be reached."""
        leader = self._state.leader
        return leader is not None and self._avoided == leader.inside_address != leader.address

    def avoid(self, address: str) -> None:
        """Use the other one of the leader's two addresses: it cannot be reached at this one."""
        self._avoided = address

    def check_writable(self) -> None:
        """Check that this node may append.

        Raises:
            Refusal: the log's own, see `LogState`. Nothing was placed.
        """
        if self.refusal is not None:
            raise self.refusal

    def check_locks(self) -> None:
        """Check that this node locks queues for consumers in order; errors as `check_writable`."""
        if not self.stands_in:
            self.check_writable()
