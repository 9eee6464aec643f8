"""A crash at each step of replacing: either the old messages are there or the compacted ones, and it can go on."""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from store.compaction import segment_replacement
from store.compaction.compactor import CompactionStoppedError
from store.compaction.segment_replacement import COMPACTING, REPLACING
from store.errors import StoreFormatError
from tests.store.compaction.support import Source, compact_all, contents, open_log, place_in
from tests.store.support import fast_directory

Contents = list[tuple[int, str, bytes]]


class CrashError(BaseException):
    """The process is gone."""


class Steps:
    """Counts what changes the disk in `segment_replacement`, and crashes before or behind one of them.

    Only on the thread that makes it: a broker of other tests may run on another thread of this process.
    """

    def __init__(self, patch: pytest.MonkeyPatch, crash_at: int, *, behind: bool) -> None:
        self.count = 0
        self._crash_at = crash_at
        self._behind = behind
        self._thread = threading.get_ident()
        for name in ("rename", "replace", "unlink", "rmdir", "mkdir"):
            patch.setattr(Path, name, self._step(getattr(Path, name)))
        patch.setattr(segment_replacement, "sync_directory", self._step(lambda _: None))
        patch.setattr(shutil, "rmtree", self._step(shutil.rmtree))
        patch.setattr(os, "fsync", self._step(os.fsync))

    def _step(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **more: Any) -> Any:
            if threading.get_ident() != self._thread:
                return real(*args, **more)
            self.count += 1
            if self.count == self._crash_at and not self._behind:
                raise CrashError
            result = real(*args, **more)
            if self.count == self._crash_at:
                raise CrashError
            return result

        return run


def filled(root: Path) -> Source:
    """Two rounds of messages, the first one compacted, so that the old files have a gap between them."""
    source, opened = Source(), open_log(root)
    for number in range(40):
        source.send(f"k{number % 9}", b"%d" % number)
    source.copy_to(opened)
    compact_all(opened)
    for number in range(40):
        source.send(f"k{number % 11}", b"%d" % number)
    source.copy_to(opened)
    opened.close()
    return source


def outcome(root: Path, *, clean: bool = True) -> Contents:
    opened = open_log(root, clean=clean)
    found = contents(opened)
    opened.close()
    return found


def compacted(root: Path) -> Contents:
    opened = open_log(root)
    compact_all(opened, position=30)
    found = contents(opened)
    opened.close()
    return found


@pytest.fixture
def place() -> Iterator[Path]:
    with fast_directory() as directory:
        yield directory


@pytest.mark.parametrize("behind", [False, True], ids=["before the step", "behind the step"])
def test_a_crash_at_any_step_loses_nothing(place: Path, behind: bool) -> None:
    first = place / "first"
    filled(first)
    before = outcome(first)
    after = compacted(shutil.copytree(first, place / "whole"))
    assert len(after) < len(before)
    seen: set[str] = set()
    crash_at = 0
    while True:
        crash_at += 1
        root = shutil.copytree(first, place / f"crash-{crash_at}")
        opened = open_log(root)
        segments = opened.due(30)
        with pytest.MonkeyPatch.context() as patch:
            steps = Steps(patch, crash_at, behind=behind)
            try:
                opened.compact_into(segments, 30, lambda: False)
                break
            except CrashError:
                pass
        opened.close()
        assert steps.count == crash_at
        _crash_while_recovering(root, place / "again", before, after)
        found = outcome(root, clean=False)
        assert found in (before, after), crash_at
        seen.add("old" if found == before else "new")
        assert not list(root.glob(f"**/{COMPACTING}")) + list(root.glob(f"**/{REPLACING}"))
        assert compacted(root) == after
    assert crash_at > 20
    assert seen == {"old", "new"}


def _crash_while_recovering(root: Path, scratch: Path, before: Contents, after: Contents) -> None:
    """The recovery of it may crash, too, at any step."""
    crash_at = 0
    while True:
        crash_at += 3
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(root, scratch)
        with pytest.MonkeyPatch.context() as patch:
            Steps(patch, crash_at, behind=crash_at % 2 == 0)
            try:
                open_log(scratch, clean=False).close()
                return
            except CrashError:
                pass
        assert outcome(scratch, clean=False) in (before, after)


def test_a_compaction_that_is_stopped_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path)
    before = outcome(tmp_path)
    opened = open_log(tmp_path)
    with pytest.raises(CompactionStoppedError):
        opened.compact_into(opened.due(30), 30, lambda: True)
    opened.close()
    assert outcome(tmp_path) == before


def test_when_java_stopped_with_new_files_waiting_the_old_ones_are_taken_back(tmp_path: Path) -> None:
    """Its old files are renamed, the new ones half moved: `CompactionLog.replaceFiles`."""
    filled(tmp_path)
    before = outcome(tmp_path)
    for directory in (place_in(tmp_path).log, place_in(tmp_path).units):
        for path in sorted(directory.iterdir())[:-1]:
            path.rename(path.with_name(path.name + ".delete"))
        (directory / COMPACTING).mkdir()
        (directory / COMPACTING / f"{1840:020d}").write_bytes(b"new")
    shutil.copy(place_in(tmp_path).log / f"{0:020d}.delete", place_in(tmp_path).log / f"{0:020d}")
    assert outcome(tmp_path) == before


def test_when_java_stopped_behind_moving_its_renamed_files_go(tmp_path: Path) -> None:
    filled(tmp_path)
    before = outcome(tmp_path)
    for directory in (place_in(tmp_path).log, place_in(tmp_path).units):
        (directory / f"{0:020d}.delete").write_bytes(b"old")
        (directory / COMPACTING).mkdir()
    assert outcome(tmp_path) == before
    assert not list(tmp_path.glob("**/*.delete"))


def test_a_manifest_that_cannot_be_read_is_told_by_name(tmp_path: Path) -> None:
    filled(tmp_path)
    directory = place_in(tmp_path).log / REPLACING
    directory.mkdir()
    (directory / "manifest.json").write_text('{"names":[')
    with pytest.raises(StoreFormatError, match=r"manifest\.json: is not a list of compacted files"):
        open_log(tmp_path)
