"""The key tables against upstream's own classes: names, types and defaults, by reflection on RocketMQ 5.3.3."""

import contextlib
import csv
import re
from pathlib import Path

import pytest

from ledgermq.remoting.refusal import Refusal
from nameserver.config import NameServerConfig
from nameserver.settings import Settings
from node.bindings import AUTH_BINDINGS, BROKER_BINDINGS, NAMESRV_BINDINGS, TLS_BINDINGS
from node.key_tables import ours
from node.keys import BROKER_KEYS, NAMESRV_KEYS, OURS, Key, nearest_key

_TABLE = Path(__file__).with_name("test_config_keys_5_3_3.tsv")
UPSTREAM = list(csv.DictReader(_TABLE.read_text().splitlines(), delimiter="\t"))
"""Taken on a machine of two cores, as root: defaults computed from these are in words in our tables."""

BROKER_CLASSES = ("BrokerConfig", "MessageStoreConfig", "NettyServerConfig", "NettyClientConfig", "AuthConfig")
NAMESRV_CLASSES = ("NamesrvConfig", "NettyServerConfig", "NettyClientConfig")
KINDS = {"boolean": "bool", "int": "int", "long": "long", "double": "double", "String": "text"}

SPECIAL = {  # enumerations upstream: the words are checked where they are used
    "brokerRole",
    "flushDiskType",
    "metricsExporterType",
    "defaultMessageRequestMode",
}


def of(*classes: str) -> list[dict[str, str]]:
    return [row for row in UPSTREAM if row["class"] in classes]


@pytest.mark.parametrize("row", of(*BROKER_CLASSES), ids=lambda row: row["key"])
def test_every_key_of_a_broker_is_known_with_upstreams_type_and_default(row: dict[str, str]) -> None:
    check(row, BROKER_KEYS[row["key"]])


@pytest.mark.parametrize("row", of(*NAMESRV_CLASSES), ids=lambda row: row["key"])
def test_every_key_of_a_nameserver_is_known_with_upstreams_type_and_default(row: dict[str, str]) -> None:
    check(row, NAMESRV_KEYS[row["key"]])


def check(row: dict[str, str], key: Key) -> None:
    if row["key"] not in SPECIAL:
        assert key.kind == KINDS[row["type"]]
    if not key.default.startswith("<"):
        assert key.default == row["default"]


def test_a_controllers_keys_are_known_beside_a_nameservers() -> None:
    assert {row["key"] for row in of("ControllerConfig")} <= set(NAMESRV_KEYS)


@pytest.mark.parametrize("keys", [BROKER_KEYS, NAMESRV_KEYS])
def test_every_key_has_one_sentence_of_meaning(keys: dict[str, Key]) -> None:
    for key in keys.values():
        assert re.fullmatch(r"[A-Z/].*\.( Default.*)?", key.meaning), key
        assert key.tag in "*jdf", key


@pytest.mark.parametrize(
    ("keys", "bound"),
    [
        (BROKER_KEYS, {*BROKER_BINDINGS, *TLS_BINDINGS, *AUTH_BINDINGS}
         | {"brokerIP1", "brokerIP2", "advertisedHost", "insideHost"}
         | {"healthPort", "enableDLegerCommitLog", "brokerRole", "traceTopicEnable", "msgTraceTopicName"}),
        (NAMESRV_KEYS, {*NAMESRV_BINDINGS, *TLS_BINDINGS, "advertisedHost", "healthPort"}),
    ],
)  # fmt: skip
def test_a_key_says_it_has_an_effect_exactly_when_something_reads_it(keys: dict[str, Key], bound: set[str]) -> None:
    assert {key.name for key in keys.values() if key.has_effect} == bound


@pytest.mark.parametrize("key", [*NAMESRV_BINDINGS, *TLS_BINDINGS, "advertisedHost", "healthPort"])
def test_a_running_nameserver_takes_a_change_only_of_what_then_has_its_effect(key: str) -> None:
    seen: list[NameServerConfig] = []
    settings = Settings(NameServerConfig(properties={key: ""}), seen.append)
    before = settings.config
    for text in ("true", "false", "17", "x"):
        with contextlib.suppress(Refusal):
            settings.update(f"{key}={text}")
    if seen:
        field = NAMESRV_BINDINGS[key].field
        assert any(getattr(config, field) != getattr(before, field) for config in seen), "it was taken and did nothing"


def test_words_about_keys_are_about_keys_that_exist() -> None:
    assert {*ours.EFFECTS, *ours.DEFAULTS_HERE} <= set(BROKER_KEYS)


def test_our_own_keys_are_marked_as_ours_and_none_takes_upstreams_name() -> None:
    upstream = {row["key"] for row in UPSTREAM}
    own = {key.name for key in [*BROKER_KEYS.values(), *NAMESRV_KEYS.values()] if key.origin == OURS}
    assert own
    assert not own & upstream


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("brokerIp1", "brokerIP1"),
        ("mapedFileSizeCommitLog", "mappedFileSizeCommitLog"),
        ("fileReserverdTime", "fileReservedTime"),
        ("enableDLedgerCommitLog", "enableDLegerCommitLog"),
        ("dLedgerPeers", "dLegerPeers"),
        ("flushdisktype", "flushDiskType"),
    ],
)
def test_mistakes_that_users_make_lead_to_the_right_key(wrong: str, nearest: str) -> None:
    assert nearest_key(wrong, BROKER_KEYS) == nearest
