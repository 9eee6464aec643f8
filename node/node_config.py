"""The configuration of one broker process: its broker, its log, and the mode in which the log is replicated."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from broker.config import BrokerConfig
from dledger.config import PeerAddress, follower_broker_id, parse_peers
from dledger.errors import RaftConfigError
from ledgermq.remoting.addresses import is_loopback
from ledgermq.remoting.config_key import (
    BOOL,
    OURS,
    PATH,
    POSITIVE,
    STORE,
    TEXT,
    ValueKind,
    key,
    one_of,
    section,
)
from node.elected_keys import ElectedKeys
from node.ha_keys import HaKeys
from store.log.commit_log_config import CommitLogConfig


class LogMode(enum.StrEnum):
    """How the log is replicated."""

    STANDALONE = "standalone"
    RAFT = "raft"
    MASTER = "master"
    SLAVE = "slave"
    ELECTED = "elected"


def _read_peers(text: str) -> tuple[PeerAddress, ...]:
    try:
        return parse_peers(text)
    except RaftConfigError as error:
        raise ValueError(f"cannot be parsed: {error}") from error


_ROLE = one_of("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")
_PEERS = ValueKind("text", _read_peers, lambda peers: ";".join(map(str, peers)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftKeys:
    """The Raft group of this node."""

    ORIGIN: ClassVar[str] = STORE

    group: str = key("dLegerGroup", TEXT, "", "Name of the Raft group; members of other groups are refused.")
    self_id: str = key("dLegerSelfId", TEXT, "", "Which of dLegerPeers this node is.")
    peers: tuple[PeerAddress, ...] = key(
        "dLegerPeers",
        _PEERS,
        (),
        "Members of the Raft group: n0-host:port;n1-host:port;n2-host:port.",
        note="Members are known by cluster, group, id and incarnation; names are resolved at each connection.",
    )
    peer_secret_file: Path | None = key(
        "dLegerPeerSecretFile",
        PATH,
        None,
        "File with the secret, 32 bytes or more, by which the members of dLegerPeers know each other.",
        note="The same on all members. Needed unless all of dLegerPeers are loopback addresses, see insecurePeers.",
        origin=OURS,
    )
    insecure_peers: bool = key(
        "insecurePeers",
        BOOL,
        False,
        "Do without dLegerPeerSecretFile or haPeerSecretFile: whoever reaches that port can then harm the group's log.",
        origin=OURS,
    )
    preferred_leader: str | None = key(
        "preferredLeaderId", TEXT, None, "Member of dLegerPeers that is handed leadership when it is up to date."
    )
    heartbeat_ms: int = key(
        "raftHeartbeatInterval", POSITIVE, 100, "Time in ms between two heartbeats of a Raft leader.", origin=OURS
    )
    election_timeout_ms: int = key(
        "raftElectionTimeout",
        POSITIVE,
        700,
        "Silence in ms after which a follower stands for election, half as much again at most.",
        origin=OURS,
    )
    append_timeout_ms: int = key(
        "slaveTimeout",
        POSITIVE,
        3000,
        "Time in ms a batch may wait for replicas (here: for a quorum) before its senders get code 12.",
        note="The time a batch may wait for a quorum.",
    )

    @property
    def follower_broker_id(self) -> int:
        """See `dledger.config.follower_broker_id`."""
        return follower_broker_id(self.self_id, [peer.node_id for peer in self.peers])

    @property
    def is_local(self) -> bool:
        """Whether all members are dialed by loopback addresses, so that none is on another machine."""
        return all(is_loopback(peer.host) for peer in self.peers)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield `(key, sentence)` of each relation between values that does not hold in Raft mode."""
        ids = [peer.node_id for peer in self.peers]
        addresses = [f"{peer.host}:{peer.port}" for peer in self.peers]
        if not self.group:
            yield "dLegerGroup", "is needed in Raft mode"
        if self.self_id not in ids:
            yield "dLegerSelfId", f"{self.self_id!r} is not among the peers {ids}"
        for node_id in sorted({found for found in ids if ids.count(found) > 1}):
            yield "dLegerPeers", f"node id {node_id!r} appears twice"
        for address in sorted({found for found in addresses if addresses.count(found) > 1}):
            yield "dLegerPeers", f"address {address} appears twice"
        if self.preferred_leader is not None and self.preferred_leader not in ids:
            yield "preferredLeaderId", f"{self.preferred_leader!r} is not among the peers {ids}"
        if self.peer_secret_file is None and not (self.is_local or self.insecure_peers):
            reason = "is needed: not all of dLegerPeers are loopback addresses (insecurePeers=true does without)"
            yield "dLegerPeerSecretFile", reason


@dataclass(slots=True, kw_only=True)
class NodeConfig:
    """One broker process.

    Attributes:
        notices: what the process says once at its start: addresses chosen, keys without effect.
    """

    ORIGIN: ClassVar[str] = STORE

    raft_enable: bool = key("enableDLegerCommitLog", BOOL, False, "Replicate the commit log by Raft.")
    broker_role: str = key(
        "brokerRole",
        _ROLE,
        "ASYNC_MASTER",
        "Place in classic replication of masters and slaves.",
        note="Has no effect in Raft mode. An ASYNC_MASTER listens to slaves when haListenPort is set.",
    )
    commit_log_dir: Path | None = key(
        "storePathCommitLog", PATH, None, "Folder of the log.", shown="<storePathRootDir/commitlog>"
    )
    broker: BrokerConfig = section(BrokerConfig)
    log: CommitLogConfig = section(CommitLogConfig)
    raft: RaftKeys = section(RaftKeys)
    ha: HaKeys = section(HaKeys)
    elected: ElectedKeys = section(ElectedKeys)
    notices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Tell the broker which of its replicas it is."""
        self.broker.node_id = self.raft.self_id if self.raft_enable else ""
        if self.broker_role == "SLAVE" and not self.raft_enable:
            self.broker.follower_id = self.broker.broker_id
        elif self.raft.self_id in [peer.node_id for peer in self.raft.peers]:
            self.broker.follower_id = self.raft.follower_broker_id
        if self.raft_enable or self.elected.enable:
            self.broker.slave_acting = False  # the elected successor of a master does its whole work

    @property
    def mode(self) -> LogMode:
        """How the log is replicated."""
        if self.raft_enable:
            return LogMode.RAFT
        if self.elected.enable:
            return LogMode.ELECTED
        if self.broker_role == "SLAVE":
            return LogMode.SLAVE
        return LogMode.STANDALONE if self.ha_port is None else LogMode.MASTER

    @property
    def replica_label(self) -> str:
        """Label of this replica in metrics, unique among those of its broker name; an elected one gets its id later."""
        broker = self.broker
        if self.elected.enable:
            return broker.address
        return broker.node_id or str(broker.broker_id)

    @property
    def polls_master(self) -> bool:
        """Whether this may be a slave of a master whose log lacks topics, groups and offsets: RocketMQ's."""
        return self.mode in (LogMode.SLAVE, LogMode.ELECTED) and self.ha.master_protocol == "rocketmq"

    @property
    def ha_port(self) -> int | None:
        """Port at which this node accepts slaves, 0 for any port; None where it accepts none."""
        if self.raft_enable or (self.broker_role == "SLAVE" and not self.elected.enable):
            return None
        if self.ha.listen_port is not None or (self.broker_role == "ASYNC_MASTER" and not self.elected.enable):
            return self.ha.listen_port
        return self.broker.listener.port_above(1)

    @property
    def commit_log_path(self) -> Path:
        """Directory of the classic commit log's files."""
        return self.commit_log_dir or self.broker.store.folders.commit_log

    def problems(self) -> list[tuple[str, str]]:
        """Return `(key, sentence)` of each relation between values that does not hold; if empty, the node may start."""
        found = [*self._log_problems(), *self.broker.problems(), *self._port_problems()]
        if self.raft_enable:
            found += self.raft.problems()
        elif self.mode is not LogMode.STANDALONE:
            found += self._ha_problems()
        if self.raft_enable and self.elected.enable:
            found.append(("enableControllerMode", "is true, and so is enableDLegerCommitLog: choose one"))
        elif self.elected.enable:
            found += self.elected.problems()
        return found or list(self._password_problems())

    def _password_problems(self) -> Iterator[tuple[str, str]]:
        auth = self.broker.auth
        peers = self.raft.peer_secret_file if self.raft_enable else self.ha.peer_secret_file
        has_secret = auth.password_key_file is not None or peers is not None
        if auth.authentication_enable and not (has_secret or auth.plain_passwords or self.mode is LogMode.STANDALONE):
            yield (
                "passwordKeyFile",
                "is needed: replicas store the passwords of users encrypted by one secret, that of this file, or of"
                " dLegerPeerSecretFile or haPeerSecretFile (plainPasswords=true does without)",
            )

    def _ha_problems(self) -> Iterator[tuple[str, str]]:
        is_slave = self.mode is LogMode.SLAVE
        if is_slave and self.broker.broker_id == 0:
            yield "brokerId", "is 0, the master's: a SLAVE needs 1 or more"
        if self.mode is LogMode.MASTER and self.broker.broker_id != 0:
            yield "brokerId", f"is {self.broker.broker_id}: a master has 0"
        yield from self.ha.problems(
            is_slave=is_slave,
            listens_locally=self.broker.listener.is_local,
            is_insecure=self.raft.insecure_peers,
            has_acl=self.broker.auth.authentication_enable,
        )

    def _log_problems(self) -> Iterator[tuple[str, str]]:
        if (why := self.log.why_too_large(self.broker.max_message_size_bytes)) is not None:
            yield "maxMessageSize", why
        beat, silence = self.raft.heartbeat_ms, self.raft.election_timeout_ms
        if silence < 3 * beat:
            yield "raftElectionTimeout", f"{silence} is too short: three heartbeats of {beat} ms must fit"

    def _port_problems(self) -> Iterator[tuple[str, str]]:
        ports: list[tuple[str, int]] = []
        if self.raft_enable:
            ports += [("dLegerPeers", peer.port) for peer in self.raft.peers if peer.node_id == self.raft.self_id]
        yield from self.broker.listener.problems(*ports, ("haListenPort", self.ha_port or 0))
