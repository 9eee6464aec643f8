"""The commented files in `conf/`: they load, and every default they show is the default."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from node.config import load_broker_config, load_controller_config, load_nameserver_config
from node.keys import KEYS_OF_FILES

CONF = Path(__file__).parents[2] / "conf"
FILES = ["broker.conf", "broker-raft.conf", "namesrv.conf", "controller.conf"]
_COMMENTED = re.compile(r"#(\w+)=(.*)")


def load(path: Path) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Notices and properties."""
    if path.name == "namesrv.conf":
        nameserver = load_nameserver_config(path)
        return nameserver.notices, nameserver.properties
    if path.name == "controller.conf":
        controller = load_controller_config(path)
        return controller.notices, controller.properties
    config = load_broker_config(path)
    return config.notices, config.broker.properties


@pytest.mark.parametrize("name", FILES)
def test_the_file_loads_and_no_key_in_it_is_without_effect(name: str) -> None:
    notices, _ = load(CONF / name)
    assert not [notice for notice in notices if "no effect" in notice]


@pytest.mark.parametrize("name", FILES)
def test_the_defaults_it_shows_are_the_defaults(name: str) -> None:
    keys = KEYS_OF_FILES[name.replace("-raft", "")]
    shown = _COMMENTED.findall((CONF / name).read_text())
    assert len(shown) > 10
    for key, value in shown:
        assert keys[key].has_effect
        if key == "listenPort":
            assert value in keys[key].default_here
        else:
            assert value == keys[key].default_here, key


@pytest.mark.parametrize("name", FILES)
def test_saying_the_defaults_changes_nothing(name: str, tmp_path: Path) -> None:
    text = (CONF / name).read_text()
    said = re.sub(r"^#(\w+=[^<\n]*)$", r"\1", text, flags=re.MULTILINE)
    assert said != text
    spoken = tmp_path / name
    spoken.write_text(said)
    plain, explicit = load(CONF / name), load(spoken)
    assert plain[1] == explicit[1]


@pytest.mark.parametrize("name", FILES)
def test_each_key_is_described_by_the_sentence_of_its_declaration(name: str) -> None:
    keys = KEYS_OF_FILES[name.replace("-raft", "")]
    described = re.findall(r"^# (.*)\n#?([\w.]+)=", (CONF / name).read_text(), re.MULTILINE)
    assert len(described) > 10
    assert [(key, sentence) for sentence, key in described if sentence != keys[key].help] == []
