"""Checks the small files: checkpoints, currterm, JSON, against the log."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from dledger.log.commit_checkpoint import NONE, CommitCheckpoint, load_checkpoint
from dledger.log.hard_state import read_hard_state
from doctor.check.findings import Findings
from doctor.read.directory import StoreLayout
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.errors import JsonError
from ledgermq.store_progress import CHECKPOINT_NAME, CHECKPOINT_SIZE
from store.directory.abort_file import ABORT_NAME
from store.directory.checkpoint import decode_checkpoint
from store.errors import StoreFormatError

_JSON_FILES = ("*.json", "*.json.bak", "timermetrics", "transactionMetrics")


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Facts about the log: offsets, store times (ms) and, in DLedger, entries. -1 where there is none."""

    records: int
    min_offset: int
    max_offset: int
    first_timestamp: int
    last_timestamp: int
    first_index: int = -1
    last_index: int = -1
    last_term: int = -1


def check_small_files(layout: StoreLayout, facts: LogFacts, findings: Findings) -> None:
    """Check all of them."""
    if not layout.is_bare:
        _check_checkpoint(layout, facts, findings)
        _check_json(layout, findings)
    if layout.raft_dir is not None:
        _check_raft(layout, layout.raft_dir, facts, findings)
    if layout.holder is not None:
        findings.notes.append(f"process {layout.holder} has the store open: the end of the log is not checked")
    elif (layout.root / ABORT_NAME).exists():
        findings.notes.append("abort file: the last run did not end cleanly")


def _check_checkpoint(layout: StoreLayout, facts: LogFacts, findings: Findings) -> None:
    path = layout.root / CHECKPOINT_NAME
    name = layout.name(path)
    if not path.exists():
        if facts.records and layout.holder is None:  # a new store has no such file yet
            findings.add(name, 0, "checkpoint-missing", "recovery has to read the whole log")
        return
    content = path.read_bytes()
    if len(content) > CHECKPOINT_SIZE:
        findings.add(name, CHECKPOINT_SIZE, "checkpoint-wrong", f"is {len(content)} bytes long, not {CHECKPOINT_SIZE}")
        return
    found = decode_checkpoint(content)
    if facts.records and not any(content) and layout.holder is None:
        findings.add(name, 0, "checkpoint-wrong", "is empty, so nothing counts as durable")
    for at, what, timestamp in (
        (0, "log is", found.log_timestamp),
        (8, "queues are", found.queues_timestamp),
        (16, "index is", found.index_timestamp),
    ):
        if timestamp > facts.last_timestamp and layout.holder is None:
            detail = f"the {what} marked as durable up to {timestamp}, the last record is of {facts.last_timestamp}"
            findings.add(name, at, "checkpoint-wrong", detail)
    progress = found.progress
    if progress is not None and layout.holder is None:
        for what, offset in (("durable", progress.flushed_offset), ("dispatched", progress.dispatched_offset)):
            if offset > facts.max_offset:
                detail = f"by the checkpoint the log is {what} up to {offset}, but it ends at {facts.max_offset}"
                findings.add(name, 64, "checkpoint-wrong", detail)


def _check_json(layout: StoreLayout, findings: Findings) -> None:
    folder = layout.root / "config"
    for path in sorted({path for pattern in _JSON_FILES for path in folder.glob(pattern)}):
        fault = json_fault(path)
        if fault is not None:
            findings.add(layout.name(path), fault[0], "config-wrong", fault[1])


def json_fault(path: Path) -> tuple[int, str] | None:
    """Return where and why a file is not the JSON that RocketMQ writes; None when it is."""
    try:
        content = path.read_bytes()
    except OSError as error:
        return 0, error.strerror or str(error)
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        try:
            loads(content)
        except JsonError as error:
            return getattr(error, "position", 0), str(error)
    return None


def _check_raft(layout: StoreLayout, folder: Path, facts: LogFacts, findings: Findings) -> None:
    _check_committed(layout, folder, facts, findings)
    name = layout.name(folder / "currterm")
    try:
        state = read_hard_state(folder)
    except (StoreFormatError, OSError) as error:
        findings.add(name, 0, "term-wrong", str(error))
        return
    if facts.last_index < 0:
        return
    if state is None:
        findings.add(
            name, 0, "term-missing", f"the last entry is of term {facts.last_term}; the votes of this node are lost"
        )
    elif state.term < facts.last_term:
        findings.add(name, 0, "term-wrong", f"term {state.term}, the last entry is of term {facts.last_term}")


def _check_committed(layout: StoreLayout, folder: Path, facts: LogFacts, findings: Findings) -> None:
    path = folder / "checkpoint"
    name = layout.name(path)
    if not path.exists():
        if facts.last_index >= 0:
            detail = "which entries are committed is not known; Java delivers none until a new one is committed"
            findings.add(name, 0, "checkpoint-missing", detail)
        return
    found = raft_checkpoint(folder)
    if found is None:
        findings.add(name, 0, "checkpoint-wrong", "is not a DLedger checkpoint")
        return
    if layout.holder is not None:
        return
    for what, index in (("committedIndex", found.committed_index), ("endIndex", found.end_index)):
        if index > facts.last_index:
            findings.add(name, 0, "checkpoint-wrong", f"{what} is {index}, the last entry {facts.last_index}")
    if found.committed_index == NONE and facts.last_index >= 0:
        findings.notes.append(f"{name}: which entries are committed is not known")
    elif 0 <= found.committed_index < facts.last_index:
        count = facts.last_index - found.committed_index
        findings.notes.append(f"{count} entries behind the committed one, {found.committed_index}")


def raft_checkpoint(folder: Path) -> CommitCheckpoint | None:
    """Return DLedger's checkpoint; None if it is missing or unreadable."""
    try:
        return load_checkpoint(folder) if (folder / "checkpoint").exists() else None
    except (StoreFormatError, OSError, struct.error):
        return None
