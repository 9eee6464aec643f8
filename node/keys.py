"""Every configuration key there is, RocketMQ's and ours, for each kind of file: broker, nameserver, controller.

A key that has an effect is declared beside the field that it sets, see `ledgermq.remoting.config_key`; the others are
rows of `keys_without_effect.tsv`. Some keys belong to both files.
"""

import csv
from collections.abc import Mapping
from pathlib import Path

from ha.controller.config import ControllerConfig
from ledgermq.remoting.config_key import BY_NAME, NETTY, STORE, Key, keys_of, one_of
from nameserver.config import NameServerConfig
from node.node_config import NodeConfig

REASONS: Mapping[str, str] = {
    "j": "it tunes Java's threads, queues and buffers",
    "d": "done differently here",
    "f": "belongs to a feature that this version does not have",
}
"""Why a key has no effect, by the letter in the table."""


def _without_effect() -> list[Key]:
    table = Path(__file__).with_name("keys_without_effect.tsv").read_text("utf-8")
    return [
        Key(
            name=row["key"],
            origin=row["origin"],
            kind=BY_NAME.get(row["kind"]) or one_of(*row["kind"].split("/")),
            default=row["default"],
            default_here=row["default_here"] or row["default"],
            help=row["help"],
            note=row["note"] or "",
            reason=row["reason"],
        )
        for row in csv.DictReader(table.splitlines(), delimiter="\t", restval="", quoting=csv.QUOTE_NONE)
    ]


def _keys(settings: type, *origins: str) -> Mapping[str, Key]:
    rows = {key.name: key for key in _WITHOUT_EFFECT if key.origin in origins}
    return {**rows, **keys_of(settings)}


_WITHOUT_EFFECT = _without_effect()
BROKER_KEYS = _keys(NodeConfig, "BrokerConfig", STORE, NETTY, "AuthConfig")
NAMESRV_KEYS = _keys(NameServerConfig, "NamesrvConfig", NETTY, "ControllerConfig")
CONTROLLER_KEYS = _keys(ControllerConfig, NETTY, "ControllerConfig")
KEYS_OF_FILES: Mapping[str, Mapping[str, Key]] = {
    "broker.conf": BROKER_KEYS,
    "namesrv.conf": NAMESRV_KEYS,
    "controller.conf": CONTROLLER_KEYS,
}
