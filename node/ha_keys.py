"""Configuration of masters and slaves."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ha.config import WINDOW_BYTES, HaGroupConfig, MasterConfig, SlaveConfig
from ha.core.copies import ALONE, CopyRules
from ledgermq.remoting.addresses import is_loopback
from ledgermq.remoting.config_key import (
    BOOL,
    NETWORKS,
    OURS,
    PATH,
    PORT,
    POSITIVE,
    POSITIVE_LONG,
    STORE,
    TEXT,
    Network,
    key,
    one_of,
)

_WANTED_BY_SYNC_MASTER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HaKeys:
    """Replication of a master's log to its slaves."""

    ORIGIN: ClassVar[str] = STORE

    listen_port: int | None = key(
        "haListenPort",
        PORT,
        None,
        "Port at which a master listens to its slaves.",
        shown="<listenPort + 1 for SYNC_MASTER, else none>",
        upstream="<listenPort + 1>",
        note="An ASYNC_MASTER for which it is not set has no slaves, and stands alone.",
    )
    master_address: str = key(
        "haMasterAddress",
        TEXT,
        "",
        "Replication address of the master, host:port, for a slave.",
        note="When it is not set, the nameservers tell it.",
    )
    heartbeat_ms: int = key(
        "haSendHeartbeatInterval", POSITIVE, 5000, "Time in ms between two heartbeats of replication."
    )
    idle_limit_ms: int = key(
        "haHousekeepingInterval",
        POSITIVE,
        20_000,
        "Silence in ms after which a replication connection is closed.",
        note="So is that of a slave that takes nothing of what is sent to it for so long.",
    )
    batch_bytes: int = key(
        "haTransferBatchSize", POSITIVE, 256 << 10, "Most bytes of the log sent to a slave at once.", upstream="32768"
    )
    gap_max_bytes: int = key(
        "haMaxGapNotInSync",
        POSITIVE,
        256 << 20,
        "Bytes of lag from which a slave does not count.",
        alias="haSlaveFallbehindMax",
    )
    catch_up_ms: int = key(
        "haMaxTimeSlaveNotCatchup",
        POSITIVE_LONG,
        15_000,
        "Time in ms after which a lagging slave leaves the in-sync set.",
    )
    in_sync_replicas: int = key(
        "inSyncReplicas",
        POSITIVE,
        _WANTED_BY_SYNC_MASTER,
        "Copies, its own included, that a SYNC_MASTER waits for.",
        upstream="1",
        note="1, RocketMQ's default, waits for no slave.",
    )
    min_in_sync_replicas: int = key(
        "minInSyncReplicas",
        POSITIVE,
        ALONE,
        "Copies in sync, its own included, below which a SYNC_MASTER takes no messages.",
    )
    auto_in_sync_replicas: bool = key(
        "enableAutoInSyncReplicas",
        BOOL,
        False,
        "Wait for the copies that are in sync, down to minInSyncReplicas, when they are fewer than inSyncReplicas.",
    )
    peer_secret_file: Path | None = key(
        "haPeerSecretFile",
        PATH,
        None,
        "File with the secret, 32 bytes or more, by which a master and its slaves know each other.",
        note="The same on all of them. Without it only slaves on the master's machine are believed, see insecurePeers.",
        origin=OURS,
    )
    plain_slaves: tuple[Network, ...] = key(
        "haPlainSlaves",
        NETWORKS,
        (),
        "Addresses of RocketMQ's slaves, as 10.0.0.7;10.0.1.0/24: they cannot prove anything.",
        origin=OURS,
    )
    master_protocol: str = key(
        "haMasterProtocol",
        one_of("ledgermq", "rocketmq"),
        "ledgermq",
        "Which program the master of this slave is.",
        note="With enableControllerMode=true, rocketmq lets it follow masters of both programs.",
        origin=OURS,
    )

    def problems(
        self, *, is_slave: bool, listens_locally: bool, is_insecure: bool, has_acl: bool
    ) -> Iterator[tuple[str, str]]:
        """Yield `(key, sentence)` of each relation between values that does not hold for a master or a slave.

        Args:
            is_slave: brokerRole is SLAVE.
            listens_locally: bindAddress is a loopback address.
            is_insecure: insecurePeers.
            has_acl: users are checked.
        """
        if self.min_in_sync_replicas > self.in_sync_replicas:
            yield (
                "minInSyncReplicas",
                f"{self.min_in_sync_replicas} is more than inSyncReplicas {self.in_sync_replicas}",
            )
        if self.master_address:
            host, _, port = self.master_address.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                yield "haMasterAddress", f"{self.master_address!r} is not host:port"
        if has_acl and any(network.num_addresses > 1 for network in self.plain_slaves):
            yield "haPlainSlaves", "has whole networks, and users are checked: name single addresses"
        if self.peer_secret_file is not None:
            return
        if is_slave:
            is_near = self.master_protocol == "rocketmq" or is_loopback(self.master_address.rpartition(":")[0])
            if not is_near and not is_insecure:
                reason = "is needed: the master is on another machine (insecurePeers=true does without)"
                yield "haPeerSecretFile", reason
        elif has_acl and is_insecure and not listens_locally:
            yield "haPeerSecretFile", "is needed: users are checked, and insecurePeers=true opens the log to everybody"

    def master_config(
        self,
        group: HaGroupConfig,
        listen_host: str,
        listen_port: int,
        *,
        limit_s: float | None,
        rules: CopyRules,
        is_insecure: bool,
        record_max_bytes: int,
    ) -> MasterConfig:
        """Return the settings of a master that listens at `listen_host:listen_port`; a batch waits `limit_s` at most.

        Slaves acknowledge whole records, so the window of unacknowledged bytes must exceed `record_max_bytes`.
        """
        return MasterConfig(
            group=group,
            listen_host=listen_host,
            listen_port=listen_port,
            rules=rules,
            limit_s=limit_s,
            plain_slaves=self.plain_slaves,
            is_insecure=is_insecure,
            batch_bytes=self.batch_bytes,
            window_bytes=max(WINDOW_BYTES, 2 * record_max_bytes + (1 << 20)),
        )

    def rules(self, *, waits: bool, counts_durable: bool) -> CopyRules:
        """Return the copies for which a master waits; an ASYNC_MASTER waits for none."""
        return CopyRules(
            wanted=self.in_sync_replicas if waits else ALONE,
            least=self.min_in_sync_replicas if waits else ALONE,
            is_adaptive=self.auto_in_sync_replicas,
            counts_durable=counts_durable,
            gap_max_bytes=self.gap_max_bytes,
            catch_up_s=self.catch_up_ms / 1000,
        )

    def slave_config(self, group: HaGroupConfig) -> SlaveConfig:
        """Return the settings of a slave."""
        return SlaveConfig(
            group=group, master_address=self.master_address, speaks_plainly=self.master_protocol == "rocketmq"
        )
