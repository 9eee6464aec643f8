"""Small files that are replaced whole: what is left after a crash at any point, and what is read then."""

import contextlib
import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.remoting.codec.java_json import file_json, load_json
from ledgermq.remoting.errors import JsonError
from store.directory.config_file import read_config, write_config
from store.errors import DiskFullError, StoreFormatError
from tests.store.support import GOLDEN

GOLDEN_TREES = [path.parent for path in sorted(GOLDEN.glob("store-*/**/FILES.json")) if "plain" not in path.parts]


def same(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return value


def number(value: Mapping[str, Any]) -> int:
    return int(value["n"])


def int_keys(value: Any) -> Any:
    """Java's maps with numbers for keys, as Java has them in memory."""
    if isinstance(value, dict):
        return {int(key) if key.isdigit() else key: int_keys(member) for key, member in value.items()}
    return value


@pytest.mark.parametrize("tree", GOLDEN_TREES, ids=lambda tree: "-".join(tree.parts[-3:]))
def test_every_config_file_of_a_java_broker_is_read_and_written_as_it_was(tree: Path) -> None:
    found = [*(tree / "files/config").glob("*.json*"), *(tree / "files/compaction").iterdir()]
    assert len(found) > 7
    for path in found:
        content = path.read_bytes()
        value = int_keys(load_json(content))
        # what a follower took over from its leader, Java writes without blanks
        assert not content.startswith(b"{\n") or file_json(value) == content, path


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8), inner, max_size=4)
        | st.dictionaries(st.integers(-5, 10**12), inner, max_size=4)
    ),
    max_leaves=20,
)


def text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): text_keys(member) for key, member in value.items()}
    return [text_keys(member) for member in value] if isinstance(value, list) else value


@given(VALUES)
def test_what_is_written_is_read_back(value: Any) -> None:
    assert load_json(file_json(value)) == text_keys(value)


@given(VALUES, st.integers(0, 200), st.integers(1, 255))
def test_damage_is_an_error_or_another_value_and_nothing_else(value: Any, at: int, flip: int) -> None:
    content = bytearray(file_json(value))
    content[at % len(content)] ^= flip
    with contextlib.suppress(JsonError):
        load_json(bytes(content))


def test_bare_keys_inside_of_texts_are_left_alone() -> None:
    assert load_json(b'{"a":"{1:2,3:4}","b\\"{5:":{ 6 :7,-8:9}}') == {"a": "{1:2,3:4}", 'b"{5:': {"6": 7, "-8": 9}}


def test_a_table_of_many_megabytes_is_read() -> None:
    table = {f"topic-{index}@group": dict.fromkeys(range(8), index) for index in range(50_000)}
    assert load_json(file_json({"offsetTable": table}))["offsetTable"]["topic-49999@group"]["7"] == 49_999


def test_damage_is_told_with_its_place() -> None:
    with pytest.raises(JsonError, match=r"line 2 column 1[01]"):
        load_json(b'{"a":{1:2},\n"b":{3:4,}}')


def test_one_writing_keeps_the_one_before_as_backup(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for content in (b'{"n":1}', b'{"n":2}', b'{"n":3}'):
        write_config(path, content)
    assert (path.read_bytes(), (tmp_path / "x.json.bak").read_bytes()) == (b'{"n":3}', b'{"n":2}')
    assert sorted(found.name for found in tmp_path.iterdir()) == ["x.json", "x.json.bak"]


CRASHES = ["open", "fsync", "hardlink_to", "replace:1", "replace:2", "sync_directory"]


@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_at_any_step_leaves_the_old_or_the_new_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: str
) -> None:
    path = tmp_path / "x.json"
    write_config(path, b'{"n":1}')
    write_config(path, b'{"n":2}')
    with monkeypatch.context() as patch:
        _crash_at(patch, crash)
        with pytest.raises(KeyboardInterrupt):
            write_config(path, b'{"n":3}')
    loaded = read_config(path, number)
    assert loaded is not None
    assert loaded.value == (3 if crash in ("replace:2", "sync_directory") else 2)
    assert not path.samefile(tmp_path / "x.json.bak"), "one bad sector would damage both"
    assert not loaded.is_older
    write_config(path, b'{"n":4}')
    assert read_config(path, number).value == 4  # type: ignore[union-attr]


def _crash_at(patch: pytest.MonkeyPatch, crash: str) -> None:
    name, _, count = crash.partition(":")
    calls = 0

    def or_crash(real: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == int(count or 1):
                raise KeyboardInterrupt
            return real(*args, **more)

        return run

    if name == "sync_directory":
        patch.setattr("store.directory.config_file.sync_directory", or_crash(lambda _: None))
    elif name == "fsync":
        patch.setattr(os, "fsync", or_crash(os.fsync))
    else:
        patch.setattr(Path, name, or_crash(getattr(Path, name)))


def test_without_second_names_the_backup_is_made_by_renaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    path = tmp_path / "x.json"
    write_config(path, b'{"n":1}')
    write_config(path, b'{"n":2}')
    assert (path.read_bytes(), (tmp_path / "x.json.bak").read_bytes()) == (b'{"n":2}', b'{"n":1}')


@pytest.mark.parametrize("damage", [b"", b'{"n":', b"[]", b'{"n":"x"}', b'{"m":1}', b"\xff", None])
def test_behind_a_damaged_main_file_the_backup_is_read_with_a_notice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes | None
) -> None:
    path = tmp_path / "x.json"
    write_config(path, b'{"n":1}')
    write_config(path, b'{"n":2}')
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    loaded = read_config(path, number)
    assert loaded is not None
    assert (loaded.value, loaded.is_older) == (1, True)
    assert "x.json.bak is read instead" in caplog.text


@pytest.mark.parametrize("main", [b'{"n":1,}', None])
def test_when_nothing_can_be_read_the_file_and_the_place_are_named(tmp_path: Path, main: bytes | None) -> None:
    path, backup = tmp_path / "x.json", tmp_path / "x.json.bak"
    if main is not None:
        path.write_bytes(main)
    backup.write_bytes(b'{"n"')
    with pytest.raises(StoreFormatError, match=r"line 1 column \d") as caught:
        read_config(path, same)
    assert caught.value.file == (backup if main is None else path)


def test_nothing_there_is_nothing_and_no_error(tmp_path: Path) -> None:
    assert read_config(tmp_path / "x.json", same) is None


def test_the_folder_of_a_new_file_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("store.files.folders.sync_directory", synced.append)
    write_config(tmp_path / "a" / "b" / "file.json", b"{}")
    assert synced == [tmp_path, tmp_path / "a"]


def test_a_disk_without_room_for_the_folder_has_not_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: object) -> None:
        raise OSError(errno.ENOSPC, "no room", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(DiskFullError):
        write_config(tmp_path / "a" / "file.json", b"{}")
