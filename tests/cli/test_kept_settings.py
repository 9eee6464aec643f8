"""Settings changed while a broker ran hold at its next start, until its author says otherwise."""

from pathlib import Path

import orjson
import pytest

from node.config import load_broker_config
from node.explain import explain
from node.kept_settings import FILE, KeptSettings
from node.node_config import NodeConfig
from store.errors import StoreFormatError


def start(folder: Path, *lines: str) -> tuple[KeptSettings, NodeConfig]:
    conf = folder / "broker.conf"
    conf.write_text("\n".join([f"storePathRootDir={folder}", "brokerIP1=127.0.0.1", *lines]))
    config = load_broker_config(conf)
    kept = KeptSettings(config)
    kept.apply(config)
    return kept, config


def test_a_kept_setting_holds_at_the_next_start_and_is_said(tmp_path: Path) -> None:
    kept, config = start(tmp_path)
    assert config.broker.transaction_check_max == 15
    kept.keep({"transactionCheckMax": "14", "sendThreadPoolQueueCapacity": "5"})
    kept.keep({"enablePropertyFilter": "true"})
    _, config = start(tmp_path)
    assert (config.broker.transaction_check_max, config.broker.property_filter) == (14, True)
    assert config.broker.properties["transactionCheckMax"] == "14"
    assert config.broker.properties["sendThreadPoolQueueCapacity"] == "5"
    assert sum(FILE in notice for notice in config.notices) == 3


def test_a_later_change_replaces_an_earlier_one(tmp_path: Path) -> None:
    for value in ("14", "13"):
        kept, _ = start(tmp_path)
        kept.keep({"transactionCheckMax": value})
    assert start(tmp_path)[1].broker.transaction_check_max == 13


def test_a_setting_that_could_not_be_written_does_not_come_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, _ = start(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("node.kept_settings.write_config", refuse)
        with pytest.raises(OSError, match="no room"):
            kept.keep({"transactionCheckMax": "14"})
    kept.keep({"enablePropertyFilter": "true"})
    _, config = start(tmp_path)
    assert (config.broker.transaction_check_max, config.broker.property_filter) == (15, True)


def refuse(path: Path, content: bytes) -> None:
    raise OSError(f"{path}: no room for {len(content)} bytes")


def test_whoever_edits_the_key_in_the_file_afterwards_has_the_last_word(tmp_path: Path) -> None:
    kept, _ = start(tmp_path, "transactionCheckMax=20")
    kept.keep({"transactionCheckMax": "14"})
    assert start(tmp_path, "transactionCheckMax=20")[1].broker.transaction_check_max == 14
    _, config = start(tmp_path, "transactionCheckMax=21")
    assert config.broker.transaction_check_max == 21
    assert any("holds no more" in notice for notice in config.notices)


@pytest.mark.parametrize("key", ["listenPort", "noSuchKey"])
def test_what_cannot_be_changed_that_way_is_left_alone(tmp_path: Path, key: str) -> None:
    kept, before = start(tmp_path)
    kept.keep({key: "1"})
    _, config = start(tmp_path)
    assert config.broker.listener.port == before.broker.listener.port
    assert any(key in notice for notice in config.notices)


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b'{"settings":{"a":1}}'])
def test_a_file_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    start(tmp_path)[0].keep({"transactionCheckMax": "14"})
    for name in (FILE, f"{FILE}.bak"):
        (tmp_path / "config" / name).write_bytes(content)
    with pytest.raises(StoreFormatError, match=FILE):
        start(tmp_path)


def test_the_file_is_plain_and_says_what_was_said_before(tmp_path: Path) -> None:
    start(tmp_path)[0].keep({"transactionCheckMax": "14"})
    written = orjson.loads((tmp_path / "config" / FILE).read_bytes())
    assert written["settings"] == {"transactionCheckMax": {"before": "15", "value": "14"}}


def test_explain_says_which_keys_can_change_while_the_broker_runs() -> None:
    assert FILE in explain("transactionCheckMax")
    assert FILE not in explain("listenPort")
