"""The plan of a local cluster: its nodes, their ports, folders and configuration files. Pure.

    base + 0    nameserver            base + 20 + 20 i + 0    broker i, for clients
    base + 1    its health port                        + 10   its listener for Raft peers or slaves
                                                       + 11   its health port
    base + 4 + 3 i + 0    controller i, for brokers
                   + 1    its listener for controllers
                   + 2    its health port
    base + 13, 15         the second and the third nameserver, with their health ports behind them
With links, Toxiproxy listens for all that brokers dial to each other:
    base + 2    its API                base + 20 + 20 i + 12 + j    from broker i to broker j, or to j + 1 where j >= i

With several Raft groups each machine has one member of each: broker i is on machine i % members, in group i // members.
The gaps follow RocketMQ's conventions: clients may try the port two below a broker's, and slaves the one above.
"""

import enum
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chaos.fabric.contract import Link
from ha.core.stream import OPENER
from ledgermq.remoting.config_key import keys_of
from ledgermq.remoting.tls_settings import TlsSettings
from node.errors import UsageError

HOST = "127.0.0.1"


class ClusterMode(enum.StrEnum):
    """How the brokers of a cluster replicate."""

    RAFT = "raft"
    STANDALONE = "standalone"
    ASYNC = "async"
    SYNC = "sync"
    CONTROLLER = "controller"

    @property
    def has_master(self) -> bool:
        """Whether the first broker is the master, and the others are its slaves."""
        return self in (ClusterMode.ASYNC, ClusterMode.SYNC)

    @property
    def has_links(self) -> bool:
        """Whether brokers dial each other at configured addresses, where a proxy can be placed."""
        return self.has_master or self is ClusterMode.RAFT

    @property
    def has_slaves(self) -> bool:
        """Whether one broker, appointed or elected, is the master of others."""
        return self.has_master or self is ClusterMode.CONTROLLER


NAMESERVER = "namesrv"
_DISK = "disk"
_PEER_SECRET = "peer-secret"
_NAMESRV_SECRET = "namesrv-secret"
_CONTROLLER_SECRET = "controller-secret"
_OF_NAMESERVER = frozenset({"insecureRegistration", "spreadSends", "spreadSendsAfter"})
CLUSTER_NAME = "DefaultCluster"
_FIRST_BROKER, _STRIDE, _RAFT, _HEALTH, _LINKS = 20, 20, 10, 11, 12
_LINKS_API = 2
_WRONG_BYTES = b"\xff" * 8  # not a valid length of a frame or message, so that the listener closes the connection
_CONTROLLERS, _FIRST_CONTROLLER, _CONTROLLER_STRIDE = 3, 4, 3
_NODES_MAX = 9
_NAMESERVER_OFFSETS = (0, 13, 15)
# Each of three nodes allocates two files at once: too much disk for a laptop at RocketMQ's default of 1 GiB.
_COMMIT_LOG_FILE_SIZE_BYTES = 256 << 20
# Keys whose values differ from node to node.
_OURS = frozenset(
    {"brokerClusterName", "brokerName", "brokerId", "bindAddress", "brokerIP1", "brokerIP2", "listenPort", "healthPort"}
    | {"namesrvAddr", "storePathRootDir", "enableDLegerCommitLog", "dLegerGroup", "dLegerPeers", "dLegerSelfId"}
    | {"brokerRole", "haListenPort", "haMasterAddress", "enableControllerMode", "controllerAddr"}
)


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One process of the cluster.

    Attributes:
        name: for the user: `namesrv`, `namesrv1`, ..., `c0`, ..., `n0`, `n1`, ...
        command: `nameserver`, `controller` or `broker`.
        conf: its configuration by key; written to `conf_path`.
    """

    name: str
    command: str
    directory: Path
    port: int
    health_port: int
    conf: Mapping[str, str]
    host: str = HOST

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"{self.host}:{self.port}"

    @property
    def conf_path(self) -> Path:
        return self.directory / f"{self.command}.conf"

    @property
    def log_path(self) -> Path:
        """File with the output of the process."""
        return self.directory / "console.log"

    @property
    def log_directory(self) -> Path:
        """Folder of a broker's log files; of other processes all that they have."""
        if self.command != "broker":
            return self.directory
        store = Path(self.conf.get("storePathRootDir", self.directory))
        return store / (f"dledger-{self.conf['dLegerSelfId']}/data" if "dLegerSelfId" in self.conf else "commitlog")

    @property
    def disk(self) -> Path:
        """Where its own disk is mounted, if it has one."""
        return self.directory / _DISK

    @property
    def arguments(self) -> list[str]:
        """Arguments of `ledgermq` that start the node."""
        return [self.command, "-c", str(self.conf_path)]

    def conf_text(self) -> str:
        """Return the text of the configuration file."""
        head = "# Written by `ledgermq cluster up`; rewritten at the next start.\n"
        return head + "".join(f"{key}={value}\n" for key, value in self.conf.items())


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Nameservers, their brokers, and in mode controller the brokers' controllers.

    Standalone brokers have a broker name each, all others share one. Where there are `links`, brokers dial each other
    through Toxiproxy.
    """

    mode: ClusterMode
    base_port: int
    directory: Path
    nameservers: tuple[NodePlan, ...]
    controllers: tuple[NodePlan, ...]
    brokers: tuple[NodePlan, ...]
    links: tuple[Link, ...] = ()
    groups: int = 1
    has_disks: bool = False
    has_namespaces: bool = False

    @property
    def namesrv(self) -> str:
        """`host:port` of each nameserver, separated by `;`."""
        return ";".join(node.address for node in self.nameservers)

    @property
    def links_api(self) -> str:
        """`host:port` of Toxiproxy."""
        return f"{HOST}:{self.base_port + _LINKS_API}"

    @property
    def peer_secret_path(self) -> Path:
        """The file by which nodes that share a log know each other."""
        return self.directory / _PEER_SECRET

    @property
    def namesrv_secret_path(self) -> Path:
        """The file by which the nameserver knows the brokers."""
        return self.directory / _NAMESRV_SECRET

    @property
    def controller_secret_path(self) -> Path:
        """The file by which the controllers know each other."""
        return self.directory / _CONTROLLER_SECRET

    @property
    def nodes(self) -> tuple[NodePlan, ...]:
        """Every process, in the order of starting."""
        return (*self.nameservers, *self.controllers, *self.brokers)

    @property
    def machines(self) -> dict[str, tuple[NodePlan, ...]]:
        """The brokers that would share a machine, by its name `m0`, `m1`, ...; empty with one group."""
        count = len(self.brokers) // self.groups
        return {f"m{number}": self.brokers[number::count] for number in range(count)} if self.groups > 1 else {}

    @property
    def broker_names(self) -> list[str]:
        """The broker names in routes; each needs a master before the cluster is writable."""
        return list(dict.fromkeys(broker.conf["brokerName"] for broker in self.brokers))


_ANY_DISK = dict.fromkeys(("diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio"), "100")
"""No limit, since a test cluster shares its disk with everything else on the machine."""


def used_offsets(
    mode: ClusterMode, node_count: int, *, has_links: bool = False, groups: int = 1, nameservers: int = 1
) -> list[int]:
    """Return offsets from the base port that a cluster of `node_count` brokers listens at."""
    names = [port for first in _NAMESERVER_OFFSETS[:nameservers] for port in (first, first + 1)]
    per_broker = (0, _RAFT, _HEALTH) if mode in (ClusterMode.RAFT, ClusterMode.CONTROLLER) else (0, _HEALTH)
    brokers = [_FIRST_BROKER + _STRIDE * number + offset for number in range(node_count) for offset in per_broker]
    controllers = [port + offset for port in _controller_ports(mode, 0) for offset in range(_CONTROLLER_STRIDE)]
    links = (
        [int(link.listen.rpartition(":")[2]) for link in _plan_links(mode, node_count, 0, groups)] if has_links else []
    )
    api = [_LINKS_API] if has_links else []
    return [*names, *api, *controllers, *brokers, *links, *([_FIRST_BROKER + _RAFT] if mode.has_master else [])]


def _plan_links(mode: ClusterMode, node_count: int, base_port: int, groups: int) -> tuple[Link, ...]:
    """Return the links: in a Raft group between all brokers, in classic modes from slaves to the master."""
    members = node_count // groups
    pairs = [(i, j) for i in range(node_count) for j in range(node_count) if i != j and i // members == j // members]
    if mode.has_master:
        pairs = [(i, j) for i, j in pairs if j == 0]
    ports = [base_port + _FIRST_BROKER + _STRIDE * number for number in range(node_count)]
    probe = OPENER + _WRONG_BYTES if mode.has_master else _WRONG_BYTES
    return tuple(
        Link(f"n{i}", f"n{j}", f"{HOST}:{ports[i] + _LINKS + j - (j > i)}", f"{HOST}:{ports[j] + _RAFT}", probe)
        for i, j in pairs
    )


def _controller_ports(mode: ClusterMode, base_port: int) -> list[int]:
    count = _CONTROLLERS if mode is ClusterMode.CONTROLLER else 0
    return [base_port + _FIRST_CONTROLLER + _CONTROLLER_STRIDE * number for number in range(count)]


def block_size(node_count: int) -> int:
    """Return the number of ports, from the base port, that belong to a cluster, gaps included."""
    return _FIRST_BROKER + _STRIDE * node_count


def parse_settings(items: Sequence[str]) -> dict[str, str]:
    """Parse `KEY=VALUE` words; the last one of a key counts.

    Raises:
        UsageError: a word without `=` or without a key, or a key that the cluster sets itself.
    """
    settings = {}
    for item in items:
        key, separator, value = item.partition("=")
        if not separator or not key.strip():
            raise UsageError(f"--conf {item!r} is not KEY=VALUE")
        if key.strip() in _OURS:
            raise UsageError(f"--conf {item!r}: {key.strip()} is set by the cluster itself, for each node")
        settings[key.strip()] = value.strip()
    return settings


def plan_cluster(
    mode: ClusterMode,
    node_count: int,
    base_port: int,
    directory: Path,
    settings: Mapping[str, str],
    *,
    has_links: bool = False,
    groups: int = 1,
    nameservers: int = 1,
    has_disks: bool = False,
) -> ClusterPlan:
    """Plan a cluster of `node_count` brokers, in mode raft in so many `groups` of one size.

    `settings` apply to every broker and replace planned values. Settings of TLS also apply to nameservers, since a
    client uses TLS with all nodes or with none; those of `_OF_NAMESERVER` apply to nameservers alone.
    With `has_links`, brokers dial each other through Toxiproxy; with `has_disks`, each stores on a disk of its own.

    Raises:
        UsageError: the number of nodes or nameservers or the base port is out of range, or the mode has no links.
    """
    if not 1 <= nameservers <= len(_NAMESERVER_OFFSETS):
        raise UsageError(f"--nameservers {nameservers} is not between 1 and {len(_NAMESERVER_OFFSETS)}")
    if has_links and not mode.has_links:
        raise UsageError(f"--links is not for mode {mode}: its brokers have no connections that can be cut")
    if groups != 1 and mode is not ClusterMode.RAFT:
        raise UsageError(f"--groups is not for mode {mode}: only Raft groups are made more than once")
    if groups < 1:
        raise UsageError(f"--groups {groups} is not 1 or more")
    if not groups <= node_count <= _NODES_MAX:
        each = f" for each of {groups} groups" if groups > 1 else ""
        raise UsageError(f"--nodes {node_count // groups}{each} is not between 1 and {_NODES_MAX // groups}")
    last_port = base_port + block_size(node_count) - 1
    if not 1 <= base_port <= last_port <= 65535:
        raise UsageError(f"--base-port {base_port} is out of range: ports {base_port} to {last_port} are needed")
    routes = tuple(
        _plan_nameserver(f"{NAMESERVER}{number or ''}", base_port + offset, directory, settings)
        for number, offset in enumerate(_NAMESERVER_OFFSETS[:nameservers])
    )
    namesrv = ";".join(one.address for one in routes)
    ports = [base_port + _FIRST_BROKER + _STRIDE * number for number in range(node_count)]
    controllers = _plan_controllers(_controller_ports(mode, base_port), directory)
    addresses = ";".join(one.address for one in controllers)
    links = _plan_links(mode, node_count, base_port, groups) if has_links else ()
    brokers = tuple(
        _plan_broker(mode, number, ports, directory / f"n{number}", namesrv, addresses, settings, links, groups)
        for number in range(node_count)
    )
    if has_disks:
        brokers = tuple(replace(one, conf={**one.conf, "storePathRootDir": str(one.disk / "store")}) for one in brokers)
    return ClusterPlan(mode, base_port, directory, routes, controllers, brokers, links, groups, has_disks)


def in_namespaces(plan: ClusterPlan) -> ClusterPlan:
    """Return the same cluster with an address of its own, in 10.83.0.0/24, for each node in place of `HOST`.

    Raises:
        UsageError: it has links, which are not needed there.
    """
    if plan.links:
        raise UsageError("--links is not for --fabric namespaces: iptables cuts its connections")
    rooms = ((10, plan.nameservers), (50, plan.controllers), (100, plan.brokers))
    hosts = {node.port: f"10.83.0.{first + number}" for first, nodes in rooms for number, node in enumerate(nodes)}
    # a node's other listeners have the ports after its own
    owners = sorted(hosts)

    def at(found: re.Match[str]) -> str:
        return f"{hosts[owners[bisect_right(owners, int(found[1])) - 1]]}:{found[1]}"

    def moved(node: NodePlan) -> NodePlan:
        host = hosts[node.port]
        conf = {key: re.sub(rf"{HOST}:(\d+)", at, value) for key, value in node.conf.items()}
        return replace(node, host=host, conf={key: host if value == HOST else value for key, value in conf.items()})

    nameservers, controllers, brokers = (tuple(map(moved, nodes)) for _, nodes in rooms)
    return replace(plan, nameservers=nameservers, controllers=controllers, brokers=brokers, has_namespaces=True)


def _plan_controllers(ports: Sequence[int], directory: Path) -> tuple[NodePlan, ...]:
    peers = ";".join(f"c{number}-{HOST}:{port}" for number, port in enumerate(ports))
    return tuple(
        NodePlan(
            name,
            "controller",
            directory / name,
            port,
            port + 2,
            {
                "bindAddress": HOST,
                "healthPort": str(port + 2),
                "controllerDLegerPeers": peers,
                "controllerDLegerSelfId": name,
                "controllerQuorumPortOffset": "1",
                "controllerStorePath": str(directory / name),
                "controllerSecretFile": str(directory / _CONTROLLER_SECRET),
                "namesrvSecretFile": str(directory / _NAMESRV_SECRET),
            },
        )
        for name, port in ((f"c{number}", port) for number, port in enumerate(ports))
    )


def _plan_nameserver(name: str, port: int, directory: Path, settings: Mapping[str, str]) -> NodePlan:
    conf = {
        "bindAddress": HOST,
        "listenPort": str(port),
        "healthPort": str(port + 1),
        "kvConfigPath": str(directory / name / "kvConfig.json"),
        "namesrvSecretFile": str(directory / _NAMESRV_SECRET),
    }
    its_keys = keys_of(TlsSettings).keys() | _OF_NAMESERVER
    given = {key: value for key, value in settings.items() if key in its_keys}
    return NodePlan(name, "nameserver", directory / name, port, port + 1, conf | given)


def _plan_broker(
    mode: ClusterMode,
    number: int,
    ports: Sequence[int],
    directory: Path,
    namesrv: str,
    controllers: str,
    settings: Mapping[str, str],
    links: Sequence[Link],
    groups: int,
) -> NodePlan:
    port, name = ports[number], f"n{number}"
    members = len(ports) // groups
    group = number // members if mode is ClusterMode.RAFT else 0
    broker_name = f"broker-{'abcdefghi'[number if mode is ClusterMode.STANDALONE else group]}"
    listeners = {f"n{i}": f"{HOST}:{p + _RAFT}" for i, p in enumerate(ports) if i // members == number // members}
    listeners |= {link.target: link.listen for link in links if link.source == name}
    conf = {
        "brokerClusterName": CLUSTER_NAME,
        "brokerName": broker_name,
        "brokerId": str(number) if mode.has_master else "0",
        "bindAddress": HOST,
        "brokerIP1": HOST,
        "brokerIP2": HOST,
        "listenPort": str(port),
        "healthPort": str(port + _HEALTH),
        "namesrvAddr": namesrv,
        "namesrvSecretFile": str(directory.parent / _NAMESRV_SECRET),
        "storePathRootDir": str(directory / "store"),
        "mappedFileSizeCommitLog": str(_COMMIT_LOG_FILE_SIZE_BYTES),
        **_ANY_DISK,
    }
    if mode is ClusterMode.RAFT:
        conf |= {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": broker_name,
            "dLegerPeers": ";".join(f"{peer}-{address}" for peer, address in listeners.items()),
            "dLegerPeerSecretFile": str(directory.parent / _PEER_SECRET),
            "dLegerSelfId": name,
        }
    if groups > 1:  # each machine leads one of the first groups
        conf["preferredLeaderId"] = f"n{group * members + group % members}"
        conf["defaultTopicQueueNums"] = "3"  # Go's client tries four queues in order: the fourth is another broker's
    if mode is ClusterMode.CONTROLLER:
        conf |= {
            "enableControllerMode": "true",
            "controllerAddr": controllers,
            "haListenPort": str(port + _RAFT),
            "haPeerSecretFile": str(directory.parent / _PEER_SECRET),
            "slaveReadEnable": "true",
        }
    if mode.has_master:
        conf |= {
            "haPeerSecretFile": str(directory.parent / _PEER_SECRET),
            "slaveReadEnable": "true",
            **_part(mode, number, listeners["n0"]),
        }
    given = {key: value for key, value in settings.items() if key not in _OF_NAMESERVER}
    return NodePlan(name, "broker", directory, port, port + _HEALTH, conf | given)


def _part(mode: ClusterMode, number: int, master: str) -> dict[str, str]:
    """Return the keys of a broker's part in a group whose master listens for slaves at the address `master`."""
    if number > 0:
        return {"brokerRole": "SLAVE", "haMasterAddress": master}
    role = "SYNC_MASTER" if mode is ClusterMode.SYNC else "ASYNC_MASTER"
    return {"brokerRole": role, "haListenPort": master.rpartition(":")[2]}
