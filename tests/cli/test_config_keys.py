"""The key tables against upstream's own classes: names, types and defaults, by reflection on RocketMQ 5.3.3."""

import contextlib
import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ledgermq.remoting.config_key import (
    INT,
    LONG,
    NOT_NEGATIVE,
    OURS,
    PERCENT,
    PORT,
    POSITIVE,
    Key,
    ValueKind,
    unknown_key,
)
from ledgermq.remoting.refusal import Refusal
from ledgermq.remoting.serving.live_settings import LiveSettings
from nameserver.config import NameServerConfig
from node.keys import BROKER_KEYS, NAMESRV_KEYS

PROJECT = Path(__file__).parents[2]
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


@pytest.mark.parametrize(
    ("classes", "known"), [(BROKER_CLASSES, BROKER_KEYS), (NAMESRV_CLASSES, NAMESRV_KEYS)], ids=["broker", "nameserver"]
)
def test_every_key_is_known_with_upstreams_type_and_default(classes: tuple[str, ...], known: dict[str, Key]) -> None:
    rows = of(*classes)
    assert len(rows) > 50
    for row in rows:
        key = known[row["key"]]
        if row["key"] not in SPECIAL:
            assert key.kind.name == KINDS[row["type"]], row
        if not key.default.startswith("<"):
            assert key.default == row["default"], row


def test_a_controllers_keys_are_known_beside_a_nameservers() -> None:
    assert {row["key"] for row in of("ControllerConfig")} <= set(NAMESRV_KEYS)


@pytest.mark.parametrize("keys", [BROKER_KEYS, NAMESRV_KEYS])
def test_every_key_has_one_sentence_of_meaning(keys: dict[str, Key]) -> None:
    for key in keys.values():
        assert re.fullmatch(r"[A-Z/].*\.( Default.*)?", key.help), key
        assert key.reason in ("*", "j", "d", "f"), key


def test_the_table_of_keys_without_effect_has_no_key_that_has_one() -> None:
    assert not {key.name for key in BROKER_KEYS.values() if key.has_effect} & rows("BrokerConfig", "MessageStoreConfig")
    assert not {key.name for key in NAMESRV_KEYS.values() if key.has_effect} & rows("NamesrvConfig")
    aliases = ("advertisedHost", "insideHost", "haSlaveFallbehindMax")
    assert all(key.path or key.name in aliases for key in BROKER_KEYS.values() if key.has_effect)


def rows(*origins: str) -> set[str]:
    table = (PROJECT / "node" / "keys_without_effect.tsv").read_text().splitlines()
    return {row["key"] for row in csv.DictReader(table, delimiter="\t") if row["origin"] in origins}


@pytest.mark.parametrize("key", [name for name, key in NAMESRV_KEYS.items() if key.path])
def test_a_running_nameserver_takes_a_change_only_of_what_then_has_its_effect(key: str) -> None:
    seen: list[NameServerConfig] = []
    settings = LiveSettings(NameServerConfig(properties={key: ""}), seen.append)
    before = settings.config
    for text in ("true", "false", "17", "x"):
        with contextlib.suppress(Refusal):
            settings.update(f"{key}={text}")
    if seen:
        declared = NAMESRV_KEYS[key]
        assert any(declared.value_in(config) != declared.value_in(before) for config in seen), (
            "it was taken and did nothing"
        )


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
    assert unknown_key(wrong, BROKER_KEYS) == f"is unknown; nearest known key is {nearest!r}"


def test_a_name_like_no_key_gets_no_hint() -> None:
    assert unknown_key("nosuch", BROKER_KEYS) == "is unknown; no known key is like it"


SAMPLE = {  # key: its field, where that is no common word
    "commitIntervalCommitLog": "commit_interval_ms",
    "flushCommitLogThoroughInterval": "flush_thorough_interval_ms",
    "destroyMapedFileIntervalForcibly": "forced_delete_after_ms",
    "transientStorePoolSize": "transientStorePoolSize",
    "mapperFileSizeBatchConsumeQueue": "batch_file_size_bytes",
    "deleteConsumeQueueFilesInterval": "queue_pause_ms",
    "maxOffsetMapSize": "offset_map_bytes",
    "messageIndexSafe": "messageIndexSafe",
    "transactionOpBatchInterval": "transaction_op_interval_ms",
    "popFromRetryProbability": "pop_from_retry_percent",
    "maxUnsentSize": "output_hard_bytes",
    "tls.client.checkHost": "tls_outgoing_check_host",
    "waitSecondsForService": "wait_for_service_seconds",
    "notifyMinBrokerIdChanged": "notify_min_broker_id",
}
ROOMS = [path.parent.name for path in PROJECT.glob("*/__init__.py") if path.parent.name != "chaos"]


@pytest.mark.parametrize(("key", "field"), SAMPLE.items())
def test_a_key_stands_in_two_files_of_code_only(key: str, field: str) -> None:
    """Where it is declared and where it is used; pages and tests come beside that."""
    word = re.compile(rf"(?<![\w.])({re.escape(key)}|{field})(?!\w)|\.{field}(?!\w)")
    sources = [path for room in ROOMS for path in (PROJECT / room).rglob("*") if path.suffix in (".py", ".tsv")]
    found = [str(path.relative_to(PROJECT)) for path in sources if word.search(path.read_text())]
    assert 1 <= len(found) <= 2, found


def test_configurations_are_read_without_numpy() -> None:
    """Nameservers and `ledgermq config explain` need none of the store's code."""
    program = "import sys, node.config, node.explain; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=PROJECT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("kind", "first", "last"),
    [
        (INT, -(1 << 31), (1 << 31) - 1),
        (LONG, -(1 << 63), (1 << 63) - 1),
        (PERCENT, 0, 100),
        (PORT, 0, 65_535),
        (POSITIVE, 1, (1 << 31) - 1),
        (NOT_NEGATIVE, 0, (1 << 31) - 1),
    ],
)
def test_the_ends_of_a_range_are_taken_and_what_lies_beyond_is_not(kind: ValueKind[int], first: int, last: int) -> None:
    assert [kind.read(str(number)) for number in (first, last)] == [first, last]
    for number in (first - 1, last + 1):
        with pytest.raises(ValueError, match=str(number)):
            kind.read(str(number))
