"""Settings of masters and slaves."""

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ha.core.copies import CopyRules
from ha.core.epochs import Epochs, to_text
from ha.core.handshake import MasterWelcome, SlaveHello, Tail
from ledgermq.remoting.config_key import Network
from ledgermq.remoting.proof import Secrets

WINDOW_BYTES: Final = 16 << 20
LEVEL_BYTES: Final = 16 << 20
"""A slave that lacks at most so much of what is confirmed has it within a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HaGroupConfig:
    """Settings that a master and its slaves share.

    Attributes:
        cluster, name: brokerClusterName, brokerName.
        broker_id: 0 for the master, 1 and up for slaves.
        client_address: `host:port` at which this node serves clients.
        inside_address: `host:port` at which it serves the brokers of the group; empty: the same.
        file_size: bytes of a file of the log.
        secrets: secrets of the group: a node proves the first and accepts each; none: no proofs.
        heartbeat_s: longest time without a frame or report.
        idle_limit_s: a connection is closed when the other end has been silent, or has not read, for so long.
    """

    cluster: str
    name: str
    broker_id: int
    client_address: str
    file_size: int
    inside_address: str = ""
    secrets: Secrets = field(default=(), repr=False)
    heartbeat_s: float = 5.0
    idle_limit_s: float = 20.0

    @property
    def secret(self) -> bytes:
        """The secret that this node proves; empty if there is none."""
        return self.secrets[0] if self.secrets else b""

    def hello(self, nonce: bytes, min_offset: int, tail: Tail, epoch: int = 0, epochs: Epochs = ()) -> SlaveHello:
        """Return a slave's hello; with epochs where masters are elected."""
        return SlaveHello(
            cluster=self.cluster,
            name=self.name,
            file_size=self.file_size,
            nonce=nonce.hex(),
            client_address=self.client_address,
            inside_address=self.inside_address,
            broker_id=self.broker_id,
            min_offset=min_offset,
            tail_start=tail.start,
            end=tail.end,
            tail_crc=tail.crc,
            epoch=epoch,
            epochs=to_text(epochs),
        )

    def welcome(
        self,
        nonce: bytes,
        start: int,
        snapshot_size: int,
        *,
        wants_durable: bool,
        epoch: int = 0,
        epochs: Epochs = (),
    ) -> MasterWelcome:
        """Return a master's welcome; with epochs where it was elected."""
        return MasterWelcome(
            cluster=self.cluster,
            name=self.name,
            file_size=self.file_size,
            nonce=nonce.hex(),
            client_address=self.client_address,
            epoch=epoch,
            epochs=to_text(epochs),
            inside_address=self.inside_address,
            start=start,
            snapshot_size=snapshot_size,
            wants_durable=wants_durable,
            heartbeat_ms=int(self.heartbeat_s * 1000),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterConfig:
    """A master.

    Attributes:
        listen_host, listen_port: where slaves connect; port 0: any free one.
        rules: which copies it waits for.
        limit_s: longest time in seconds for which a batch waits for these copies and for its flush; None: no limit.
        plain_slaves: hosts that may use RocketMQ's dialect, which has no proof.
        is_insecure: without a secret, slaves on other machines are accepted, too.
        batch_bytes: most bytes of the log in one frame.
        window_bytes: most bytes sent to a slave and not reported by it, in the file of its last report or after that
            file; more than the largest record.
    """

    group: HaGroupConfig
    listen_host: str
    listen_port: int
    rules: CopyRules
    limit_s: float | None
    plain_slaves: tuple[Network, ...] = ()
    is_insecure: bool = False
    batch_bytes: int = 256 << 10
    window_bytes: int = WINDOW_BYTES

    def needs_proof(self, host: str) -> bool:
        """Return whether a LedgerMQ slave at this address must prove that it has the secret."""
        return bool(self.group.secrets) or not (self.is_insecure or ipaddress.ip_address(host).is_loopback)

    def may_speak_plainly(self, host: str) -> bool:
        """Return whether a slave at this address is accepted without a handshake."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self.plain_slaves)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveConfig:
    """A slave.

    Attributes:
        master_address: `host:port` of the master's listener; empty: it is learned from a nameserver.
        speaks_plainly: whether the master is RocketMQ's.
    """

    group: HaGroupConfig
    master_address: str = ""
    speaks_plainly: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """A replica whose master is elected by controllers.

    Attributes:
        master: configuration as master; its group has the id that the controllers gave.
        ha_host: host at which slaves reach this node.
        root: folder of the store.
        controllers: `host:port` of each controller.
        silence_ms: silence after which the controllers count this broker as dead.
        priority: smaller is preferred among equals when a master is elected.
        poll_s: longest time between two questions for the controllers' decisions.
        follows_rocketmq: whether brokers of RocketMQ may be elected, too, and are followed.
    """

    master: MasterConfig
    ha_host: str
    root: Path
    controllers: tuple[str, ...]
    silence_ms: int
    priority: int
    poll_s: float = 5.0
    follows_rocketmq: bool = False
