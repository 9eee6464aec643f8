"""Settings of one controller. Its file is RocketMQ's `controller.conf`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

from ledgermq.remoting.addresses import is_loopback, split_address
from ledgermq.remoting.config_key import (
    BOOL,
    OURS,
    PATH,
    POSITIVE,
    POSITIVE_LONG,
    TEXT,
    WORDS,
    ValueKind,
    key,
    section,
)
from ledgermq.remoting.errors import ConnectError
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.serving.authority import AuthorityKeys
from ledgermq.remoting.serving.listener import ListenerKeys
from ledgermq.remoting.tls_settings import TlsSettings

_PORT_MAX = 65535
LEASE_MAX_MS: Final = 4000
"""No lease is granted during an election, 10 s at most, and the election waits for the end of the last lease."""
_TIMEOUT_MIN_MS = 400  # PySyncObj needs several heartbeats within it


def _read_peers(text: str) -> tuple[tuple[str, str], ...]:
    peers: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        member, _, address = part.partition("-")
        try:
            split_address(address)
        except ConnectError:
            raise ValueError(f"has {part!r}, which is no id-host:port with an id such as n0") from None
        if not member or member in peers:
            raise ValueError(f"has the id {member!r} twice, or an empty one")
        peers[member] = address
    if len(set(peers.values())) != len(peers):
        raise ValueError("gives two controllers one address")
    return tuple(peers.items())


PEERS = ValueKind("text", _read_peers, lambda peers: ";".join(map("-".join, peers)))
"""Controllers by id, `n0-host:port;n1-host:port`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """One controller. Times are milliseconds."""

    ORIGIN: ClassVar[str] = "ControllerConfig"

    members: tuple[tuple[str, str], ...] = key(
        "controllerDLegerPeers",
        PEERS,
        (),
        "Members of the controllers' group.",
        shown="",
        note="At these addresses brokers and tools are served: n0-host:port;n1-host:port;n2-host:port. Needed.",
    )
    self_id: str = key("controllerDLegerSelfId", TEXT, "", "Which of the members this controller is.", note="Needed.")
    group: str = key("controllerDLegerGroup", TEXT, "controllers", "Name of the controllers' group.", upstream="")
    store_path: Path = key(
        "controllerStorePath",
        PATH,
        Path.home() / "DLedgerController",
        "Folder of the controller's log.",
        shown="<home folder/DLedgerController>",
        note="Each controller has a folder quorum-<id> in it. RocketMQ's own log there is not read.",
    )
    secret_file: Path | None = key(
        "controllerSecretFile",
        PATH,
        None,
        "File with the secret, 32 bytes or more, by which controllers know each other and encrypt what they say.",
        note="The same on all controllers. Needed always: a controller executes what another one sends.",
        origin=OURS,
    )
    quorum_port_offset: int = key(
        "controllerQuorumPortOffset",
        POSITIVE,
        100,
        "How far above their ports in controllerDLegerPeers the controllers listen for each other.",
        origin=OURS,
    )
    election_timeout_ms: int = key(
        "controllerElectionTimeout",
        POSITIVE,
        700,
        "Silence in ms after which a controller wants to lead the others, twice as long at most.",
        origin=OURS,
    )
    lease_ms: int = key(
        "masterLease",
        POSITIVE,
        150,
        "Time in ms for which a master may go on after its last word with the leading controller.",
        note="Of LedgerMQ's own brokers; a successor waits as long. The same on all controllers.",
        origin=OURS,
    )
    still_ms: int = key(
        "masterSilence",
        POSITIVE,
        700,
        "Silence in ms after which the controllers replace a master whose lease is over.",
        note="Of LedgerMQ's own brokers, if a member of the in-sync set is heard meanwhile.",
        live=True,
        origin=OURS,
    )
    unclean: bool = key(
        "enableElectUncleanMaster",
        BOOL,
        False,
        "Elect a master from outside the in-sync set when nobody else is left.",
        note="What such a master lacks is lost.",
        live=True,
    )
    notify: bool = key("notifyBrokerRoleChanged", BOOL, True, "Tell brokers of their new role.", live=True)
    reads_by_log: bool = key("processReadEvent", BOOL, False, "Let reads go through the controllers' log.", live=True)
    scan_interval_ms: int = key(
        "scanNotActiveBrokerInterval",
        POSITIVE_LONG,
        500,
        "Time in ms between two looks for silent brokers.",
        upstream="5000",
        live=True,
    )
    scan_master_interval_ms: int = key(
        "scanInactiveMasterInterval",
        POSITIVE_LONG,
        200,
        "Time in ms between two looks for lost masters.",
        upstream="5000",
        live=True,
    )
    authority: AuthorityKeys = section(AuthorityKeys)
    insecure: bool = key(
        "insecureController",
        BOOL,
        False,
        "Let everybody register brokers, appoint masters and change settings, as RocketMQ's controller does.",
        origin=OURS,
    )
    listener: ListenerKeys = section(ListenerKeys)
    limits: Limits = section(Limits)
    tls: TlsSettings = section(TlsSettings)
    config_black_list: tuple[str, ...] = key(
        "configBlackList",
        WORDS,
        ("configBlackList", "configStorePath"),
        "Keys that may not be changed at run time.",
    )

    notices: tuple[str, ...] = ()
    """Warnings about the configuration, logged once at the start."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Every known key under RocketMQ's name with the value in force, as text: what request 1010 shows."""

    @property
    def peers(self) -> dict[str, str]:
        """`host:port` at which brokers reach each controller, by id."""
        return dict(self.members)

    @property
    def address(self) -> str:
        """`host:port` at which brokers reach this controller."""
        return self.peers[self.self_id]

    @property
    def quorum_members(self) -> dict[str, str]:
        """`host:port` at which the controllers reach each other, by id."""
        found = {}
        for member, address in self.peers.items():
            host, port = split_address(address)
            found[member] = f"{host}:{port + self.quorum_port_offset}"
        return found

    @property
    def is_local(self) -> bool:
        """Whether all controllers have loopback addresses, so that nobody on another machine can reach one."""
        return all(is_loopback(split_address(address)[0]) for address in self.peers.values())

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield `(key, sentence)` for each wrong relation between values; none if the controller may start."""
        if self.self_id not in self.peers:
            yield "controllerDLegerSelfId", f"{self.self_id!r} is not among the controllers {list(self.peers)}"
        if self.secret_file is None:
            reason = "is needed: whoever reaches the controllers' port could otherwise run any program"
            yield "controllerSecretFile", reason
        if max((split_address(one)[1] for one in self.peers.values()), default=0) + self.quorum_port_offset > _PORT_MAX:
            yield "controllerQuorumPortOffset", f"{self.quorum_port_offset} leads beyond port {_PORT_MAX}"
        for address in sorted(set(self.quorum_members.values()) & set(self.peers.values())):
            yield (
                "controllerQuorumPortOffset",
                f"{self.quorum_port_offset} leads to {address}, which is a controller's own",
            )
        if self.lease_ms > LEASE_MAX_MS:
            yield "masterLease", f"{self.lease_ms} is too long: a successor waits for its end, {LEASE_MAX_MS} at most"
        if self.election_timeout_ms < _TIMEOUT_MIN_MS:
            yield "controllerElectionTimeout", f"{self.election_timeout_ms} is too short: {_TIMEOUT_MIN_MS} at least"
        offset = self.quorum_port_offset
        own = [split_address(self.address)[1] + offset] if self.self_id in self.peers else []
        yield from self.listener.problems(*(("controllerQuorumPortOffset", port) for port in own))
        yield from self.tls.problems()
