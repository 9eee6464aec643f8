"""Configuration files to configurations: strict, all problems at once, every choice said.

    file < --set  ->  known? parses? twice?  ->  fields  ->  addresses, defaults that depend  ->  relations  ->  config
                         '----- ConfigError: one line per problem, beginning with its place -----'

Source of the names: RocketMQ 5.3, whose `BrokerStartup` and `NamesrvStartup` fill several objects from one file.
"""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from broker.auth_settings import AuthSettings
from broker.config import BrokerConfig, LogMode
from broker.config_problems import config_problems
from ledgermq.remoting.tls_settings import TlsSettings
from nameserver.config import NameServerConfig
from node import values
from node.addresses import HostChoice
from node.bindings import AUTH_BINDINGS, BROKER_BINDINGS, NAMESRV_BINDINGS, TLS_BINDINGS, Binding
from node.file_settings import Said
from node.keys import BROKER_KEYS, NAMESRV_KEYS
from node.notices import list_notices, tls_notices
from store.log.flusher import FlushMode

_EVERYWHERE = "0.0.0.0"

Config = TypeVar("Config", BrokerConfig, NameServerConfig)


def load_broker_config(path: Path | None, overrides: Sequence[str] = ()) -> BrokerConfig:
    """Read `broker.conf`; `overrides` are `KEY=VALUE` and win. Without a file everything has its default.

    The result's `notices` are to be printed once; its `properties` are every known key with the value in force.

    Raises:
        ConfigError: with all problems found.
    """
    said = Said(path, overrides, BROKER_KEYS, NAMESRV_KEYS, "namesrv.conf")
    said.converted("brokerRole", values.broker_role)
    settings = {"broker_name": socket.gethostname(), **said.fields(BROKER_BINDINGS)}
    settings["mode"] = LogMode.RAFT if said.value("enableDLegerCommitLog") else LogMode.STANDALONE
    if settings["mode"] is LogMode.RAFT:
        settings.setdefault("flush_mode", FlushMode.SYNC)
    if said.value("traceTopicEnable"):
        settings["trace_topic"] = said.value("msgTraceTopicName") or "RMQ_SYS_TRACE_TOPIC"
    settings["tls"] = TlsSettings(**said.fields(TLS_BINDINGS))
    settings["auth"] = AuthSettings(**said.fields(AUTH_BINDINGS))
    listen_host = settings.get("listen_host", _EVERYWHERE)
    namesrv = settings.get("namesrv_addrs", ())
    advertised = said.host(("brokerIP1", "advertisedHost"), listen_host, namesrv)
    inside = said.host(("brokerIP2", "insideHost"), listen_host, namesrv, _own_peer(settings))
    settings |= {"advertised_host": advertised.host, "inside_host": inside.host}
    settings |= said.health(listen_host, settings.get("listen_port", BrokerConfig().listen_port))
    said.raise_problems()
    choices = [advertised.sentence("advertised", "brokerIP1"), inside.sentence("inside", "brokerIP2")]
    config = BrokerConfig(**settings)
    _check_relations(config_problems(config), said, BROKER_BINDINGS)
    return _finish(config, said, choices, BROKER_BINDINGS)


def load_nameserver_config(path: Path | None, overrides: Sequence[str] = ()) -> NameServerConfig:
    """Read `namesrv.conf`; otherwise as `load_broker_config`."""
    said = Said(path, overrides, NAMESRV_KEYS, BROKER_KEYS, "broker.conf")
    settings = {**said.fields(NAMESRV_BINDINGS), "tls": TlsSettings(**said.fields(TLS_BINDINGS))}
    listen_host = settings.get("listen_host", _EVERYWHERE)
    advertised = said.host(("advertisedHost",), listen_host, ())
    settings["advertised_host"] = advertised.host
    settings |= said.health(listen_host, settings.get("listen_port", NameServerConfig().listen_port))
    said.raise_problems()
    choices = [advertised.sentence("advertised", "advertisedHost")]
    config = NameServerConfig(**settings)
    _check_relations(config.problems(), said, NAMESRV_BINDINGS)
    return _finish(config, said, choices, NAMESRV_BINDINGS)


def _own_peer(settings: Mapping[str, Any]) -> HostChoice | None:
    """Where the other members of the Raft group dial this one."""
    if settings["mode"] is LogMode.RAFT:
        for peer in settings.get("raft_peers", ()):
            if peer.node_id == settings.get("raft_self_id"):
                return HostChoice(peer.host, "this node's entry in dLegerPeers")
    return None


def _check_relations(problems: Sequence[tuple[str, str]], said: Said, bindings: Mapping[str, Binding]) -> None:
    """Refuse what two values together get wrong; the sentences name fields, users know keys."""
    all_bindings = {**bindings, **TLS_BINDINGS, **AUTH_BINDINGS}
    keys = {binding.field: key for key, binding in all_bindings.items()} | {"health_port": "healthPort"}
    for field, detail in problems:
        for other in sorted(keys, key=len, reverse=True):  # some names begin like others
            detail = detail.replace(other, keys[other])
        said.refuse(keys[field], detail)
    said.raise_problems()


def _finish(config: Config, said: Said, choices: list[str], bindings: Mapping[str, Binding]) -> Config:
    """Add what is to be said and shown."""
    notices = (*choices, *list_notices(said), *tls_notices(config))
    return replace(config, notices=notices, properties=_properties(config, said, bindings))


def _properties(config: BrokerConfig | NameServerConfig, said: Said, bindings: Mapping[str, Binding]) -> dict[str, str]:
    """Every known key with the value in force, as text."""
    shown = {name: key.shown_default for name, key in said.keys.items()}
    shown |= {name: item.value for name, item in said.properties.items()}
    shown |= {key: binding.show(getattr(config, binding.field)) for key, binding in bindings.items()}
    shown |= {key: binding.show(getattr(config.tls, binding.field)) for key, binding in TLS_BINDINGS.items()}
    shown["tls.server.mode"] = config.tls.mode.value
    shown["healthPort"] = "off" if config.health_port is None else str(config.health_port)
    if isinstance(config, BrokerConfig):
        shown |= {key: binding.show(getattr(config.auth, binding.field)) for key, binding in AUTH_BINDINGS.items()}
        hosts = {"brokerIP1": config.advertised_host, "brokerIP2": config.inside_host}
        shown |= hosts | {"storePathCommitLog": str(config.commit_log_path)}
        shown |= {"advertisedPort": str(config.advertised_port or config.listen_port)}
    return shown
