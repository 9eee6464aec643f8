"""Fixtures of the Raft room: golden directories put back on disk, logs opened on a directory."""

import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pytest

from dledger.committed import load_checkpoint
from dledger.entry_log import EntryLog
from dledger.log_opening import OpenedLog, open_log
from ledgermq.message.draft import RecordDraft
from ledgermq.message.record import record_size

GOLDEN = Path(__file__).parents[1] / "golden"


def _load_golden_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden", GOLDEN / "golden.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class GoldenLog:
    """One directory that Java wrote, put back on disk, with what its manifests say."""

    directory: Path
    data_file_size: int
    index_file_size: int
    records: bool
    entries: list[dict[str, Any]]
    ledger: dict[str, Any]


@pytest.fixture
def golden_log(tmp_path: Path) -> Callable[..., GoldenLog]:
    """`golden_log("dead/n1", ops)`: restore the tree, damage it, say where its Raft directory is."""
    golden = _load_golden_module()

    def restore(base: str, ops: Sequence[dict[str, Any]] = ()) -> GoldenLog:
        tree = GOLDEN / "store-dledger" / base
        golden.restore_tree(tree, tmp_path)
        golden.apply_ops(tmp_path, ops)
        plain = base.startswith("plain")
        entries = [json.loads(line) for line in (tree / "entries.jsonl").read_text().splitlines()]
        return GoldenLog(
            directory=tmp_path if plain else tmp_path / f"dledger-{base.split('/')[1]}",
            data_file_size=8192 if plain else 32768,
            index_file_size=640 if plain else 167772160,
            records=not plain,
            entries=entries,
            ledger=json.loads((tree / "ledger.json").read_text()),
        )

    return restore


def open_golden(log: GoldenLog, *, intact: bool = True) -> OpenedLog:
    return open_log(
        log.directory,
        data_file_size=log.data_file_size,
        index_file_size=log.index_file_size,
        allocator=None,
        checkpoint=load_checkpoint(log.directory),
        intact=intact,
        records=log.records,
    )


@pytest.fixture
def open_java_log() -> Callable[..., OpenedLog]:
    return open_golden


def make_draft(body: bytes, *, topic: bytes = b"Topic", queue_offset: int = 0, sys_flag: int = 0) -> RecordDraft:
    """A draft of a plain message with IPv4 hosts."""
    draft = RecordDraft()
    draft.topic = topic
    draft.queue_id = 0
    draft.flag = 0
    draft.sys_flag = sys_flag
    draft.born_timestamp = 1_700_000_000_000
    draft.born_host = bytes([127, 0, 0, 1, 0, 0, 0, 9])
    draft.reconsume_times = 0
    draft.prepared_transaction_offset = 0
    draft.body = body
    draft.properties = b""
    draft.tags_code = 0
    draft.queue_offset = queue_offset
    draft.size = record_size(len(body), len(topic), 0, sys_flag, len(topic) > 127)
    return draft


@pytest.fixture
def draft() -> Callable[..., RecordDraft]:
    return make_draft


class ManualFlusher:
    """Keeps flush requests until the test says that the disk has done them."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, Callable[[int], None]]] = []

    def request(self, offset: int, done: Callable[[int], None]) -> None:
        self.waiting.append((offset, done))

    def finish(self) -> None:
        waiting, self.waiting = self.waiting, []
        flushed = max((offset for offset, _ in waiting), default=0)
        for _, done in waiting:
            done(flushed)


STORE_HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])


class LogOpener(Protocol):
    def __call__(self, name: str = ..., *, file_size: int = ..., intact: bool = ...) -> EntryLog: ...


@pytest.fixture
def entry_log(tmp_path: Path) -> LogOpener:
    """`entry_log("a")`: open the log in a directory of that name, as often as wanted."""

    def opener(name: str = "log", *, file_size: int = 4096, intact: bool = True) -> EntryLog:
        directory = tmp_path / name
        opened = open_log(
            directory,
            data_file_size=file_size,
            index_file_size=320,
            allocator=None,
            checkpoint=load_checkpoint(directory),
            intact=intact,
        )
        log = EntryLog(
            directory,
            opened,
            store_host=STORE_HOST,
            term_start=lambda term: make_draft(b"term %d" % term, sys_flag=0xC),
        )
        log.attach(ManualFlusher())
        return log

    return opener
