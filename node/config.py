"""Makes configurations of configuration files: strictly, with all problems at once, and a notice of each choice.

    file < --set -> known? parses? twice? -> addresses, defaults that depend -> settings -> relations -> config
                    '------ ConfigError: one line per problem, beginning with its place ------'

Source of the names: RocketMQ 5.3, whose `BrokerStartup`, `NamesrvStartup` and `ControllerStartup` fill several objects
from one file.
"""

import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ha.controller.config import ControllerConfig
from ledgermq.remoting.addresses import split_address
from ledgermq.remoting.config_key import build
from nameserver.config import NameServerConfig
from node.addresses import HostChoice
from node.file_settings import FileSettings
from node.keys import BROKER_KEYS, CONTROLLER_KEYS, KEYS_OF_FILES, NAMESRV_KEYS
from node.node_config import NodeConfig
from node.notices import (
    controller_notices,
    list_notices,
    raft_notices,
    registration_notices,
    settings_notices,
    tls_notices,
)
from store.log.flusher import FlushMode

_BROKER_PORT = 10911
_NAMESERVER_PORT = 9876


def load_broker_config(path: Path | None, overrides: Sequence[str] = ()) -> NodeConfig:
    """Read `broker.conf`; `overrides` are `KEY=VALUE` and win. Without a file everything has its default.

    The result's `notices` are to be printed once; its `broker.properties` are every known key with the value in force.

    Raises:
        ConfigError: with all problems found.
    """
    given = FileSettings(path, overrides, BROKER_KEYS, KEYS_OF_FILES)
    values = given.values
    values.setdefault("brokerName", socket.gethostname())
    if values.get("enableDLegerCommitLog"):
        values.setdefault("flushDiskType", FlushMode.SYNC)
    given.choose_listeners(_BROKER_PORT)
    towards = values.get("namesrvAddr", ())
    advertised = given.choose_host("brokerIP1", towards)
    inside = given.choose_host("brokerIP2", towards, _own_peer(given))
    given.raise_problems()
    config = build(NodeConfig, values)
    _check_relations(config.problems(), given)
    choices = [advertised.sentence("advertised", "brokerIP1"), inside.sentence("inside", "brokerIP2")]
    config.notices = (*choices, *list_notices(given), *tls_notices(config.broker.tls, is_raft=config.raft_enable))
    if config.raft_enable:
        config.notices += tuple(raft_notices(config.raft))
    broker = config.broker
    config.notices += tuple(settings_notices(broker))
    broker.properties = _properties(config, given) | {
        "advertisedPort": str(broker.public_port),
        "storePathCommitLog": str(config.commit_log_path),
        "tls.server.mode": broker.tls.mode.value,
    }
    return config


def load_nameserver_config(path: Path | None, overrides: Sequence[str] = ()) -> NameServerConfig:
    """Read `namesrv.conf`; otherwise as `load_broker_config`."""
    given = FileSettings(path, overrides, NAMESRV_KEYS, KEYS_OF_FILES)
    given.choose_listeners(_NAMESERVER_PORT)
    advertised = given.choose_host("advertisedHost")
    given.raise_problems()
    config = build(NameServerConfig, given.values)
    _check_relations(config.problems(), given)
    choice = advertised.sentence("advertised", "advertisedHost")
    notices = (
        choice,
        *list_notices(given),
        *tls_notices(config.tls, is_raft=False),
        *registration_notices(config),
    )
    properties = _properties(config, given) | {"tls.server.mode": config.tls.mode.value}
    return replace(config, notices=notices, properties=properties)


def load_controller_config(path: Path | None, overrides: Sequence[str] = ()) -> ControllerConfig:
    """Read `controller.conf`; otherwise as `load_broker_config`."""
    given = FileSettings(path, overrides, CONTROLLER_KEYS, KEYS_OF_FILES)
    address = dict(given.values.get("controllerDLegerPeers", ())).get(given.values.get("controllerDLegerSelfId"))
    given.choose_listeners(0 if address is None else split_address(address)[1])
    given.raise_problems()
    config = build(ControllerConfig, given.values)
    _check_relations(list(config.problems()), given)
    notices = (*list_notices(given), *tls_notices(config.tls, is_raft=False), *controller_notices(config))
    properties = _properties(config, given) | {"tls.server.mode": config.tls.mode.value}
    return replace(config, notices=notices, properties=properties)


def _own_peer(given: FileSettings) -> HostChoice | None:
    """Return the address at which the other members of the Raft group dial this one."""
    if given.values.get("enableDLegerCommitLog"):
        for peer in given.values.get("dLegerPeers", ()):
            if peer.node_id == given.values.get("dLegerSelfId"):
                return HostChoice(peer.host, "this node's entry in dLegerPeers")
    return None


def _check_relations(problems: Sequence[tuple[str, str]], given: FileSettings) -> None:
    """Refuse values that contradict each other."""
    for key, detail in problems:
        given.refuse(key, detail)
    given.raise_problems()


def _properties(config: NodeConfig | NameServerConfig | ControllerConfig, given: FileSettings) -> dict[str, str]:
    """Return every known key as text: the value in force, as given, or the default (empty when that is computed).

    The keys of features that LedgerMQ does not have are shown as off, whatever RocketMQ's default.
    """
    shown = {}
    for name, key in given.keys.items():
        if key.path:
            shown[name] = key.shown_in(config)
        elif name in given.properties:
            shown[name] = given.properties[name].value
        elif key.reason == "f" and key.kind.name == "bool":
            shown[name] = "false"
        else:
            shown[name] = "" if key.default_here.startswith("<") else key.default_here
    return shown
