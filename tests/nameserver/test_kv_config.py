import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ledgermq.durable_files import replace_durably
from nameserver import kv_config
from nameserver.kv_config import KvConfig, KvConfigError
from tests.limits import WAIT_S


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


async def test_the_loop_serves_others_while_a_change_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_written, may_write = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slowly(path: Path, data: bytes) -> None:
        assert threading.current_thread() is not threading.main_thread()
        loop.call_soon_threadsafe(is_written.set)
        assert may_write.wait(WAIT_S)
        replace_durably(path, data)

    monkeypatch.setattr(kv_config, "replace_durably", slowly)
    kv = KvConfig.load(tmp_path / "kv.json")
    change = asyncio.create_task(kv.put("n", "k", "v"))
    await asyncio.wait_for(is_written.wait(), WAIT_S)
    assert not change.done() and kv.get("n", "k") is None, "visible only when it is durable"
    may_write.set()
    await change
    assert kv.get("n", "k") == "v"


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
