import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nameserver.kv_config import KvConfig, KvConfigError


async def test_changes_are_in_the_file_in_rocketmqs_form(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kvConfig.json"
    kv = KvConfig.load(path)
    await kv.put("n", "k", "значение")
    await kv.put("n", "gone", "x")
    await kv.delete("n", "gone")
    await kv.delete("n", "never")
    assert json.loads(path.read_text()) == {"configTable": {"n": {"k": "значение"}}}
    assert KvConfig.load(path).get("n", "k") == "значение"
    assert [file.name for file in path.parent.iterdir()] == ["kvConfig.json"]


async def test_an_emptied_namespace_is_known_and_an_unused_one_is_not(tmp_path: Path) -> None:
    kv = KvConfig.load(tmp_path / "kv.json")
    await kv.put("n", "k", "v")
    await kv.delete("n", "k")
    assert (kv.table("n"), kv.table("other")) == ({}, None)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"configTable":[]}', '{"configTable":{"n":{"k":1}}}', "\x00"])
def test_a_file_that_is_something_else_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kv.json"
    path.write_text(text)
    with pytest.raises(KvConfigError, match=r"kv\.json: "):
        KvConfig.load(path)
    assert path.read_text() == text


async def test_a_change_that_cannot_be_written_is_not_made(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    kv = KvConfig.load(folder / "kv.json")
    await kv.put("n", "k", "v")
    (folder / "kv.json").rename(tmp_path / "kept.json")
    folder.rmdir()
    folder.write_text("a file stands where the folder should be")
    changes: list[Callable[[], Awaitable[None]]] = [
        lambda: kv.put("n", "k", "new"),
        lambda: kv.put("n", "j", "new"),
        lambda: kv.delete("n", "k"),
    ]
    for change in changes:
        with pytest.raises(KvConfigError, match="cannot be written"):
            await change()
        assert kv.table("n") == {"k": "v"}


async def test_a_file_has_a_bound_and_changes_at_once_are_all_kept(tmp_path: Path) -> None:
    kv = KvConfig.load(tmp_path / "kv.json")
    await asyncio.gather(*(kv.put("n", f"k{number}", "v") for number in range(50)))
    assert len(kv.table("n") or ()) == 50
    with pytest.raises(KvConfigError, match=r"would have 4[0-9]+ characters, the limit is 4194304"):
        await kv.put("n", "long", "x" * (4 << 20))
    assert KvConfig.load(tmp_path / "kv.json").table("n") == kv.table("n")
