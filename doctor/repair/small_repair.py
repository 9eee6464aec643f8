"""Updates the small files after a repair to what is known now.

Raft state is not invented: an unknown commit index stays unknown, this node votes for nobody in a term without its
vote, and a LedgerMQ node, or an elected replica, is marked as one that may have forgotten something.
"""

from dataclasses import replace
from pathlib import Path

from dledger.core.messages import HardState
from dledger.log.commit_checkpoint import CommitCheckpoint, save_checkpoint
from dledger.log.hard_state import read_hard_state, write_hard_state
from dledger.log.small_file import write_durably
from doctor.check.small_check import LogFacts, json_fault, raft_checkpoint
from doctor.read.directory import StoreLayout
from doctor.repair.copying import copy_file
from ha.elected.files import doubt_log
from ledgermq.durable_files import sync
from ledgermq.store_progress import CHECKPOINT_NAME, CHECKPOINT_SIZE
from store.directory.abort_file import ABORT_NAME
from store.directory.checkpoint import StoreCheckpoint, decode_checkpoint
from store.errors import StoreFormatError

_NOBODY = "forgotten"


def repair_small_files(layout: StoreLayout, facts: LogFacts, *, has_index: bool) -> list[str]:
    """Write the small files; return sentences about what was lost."""
    notes: list[str] = []
    if not layout.is_bare:
        _write_checkpoint(layout.root, facts, has_index=has_index)
        notes += _restore_json(layout)
    if layout.raft_dir is not None:
        notes += _repair_raft(layout.raft_dir, facts)
    if doubt_log(layout.root):
        notes.append("an elected replica: it is no candidate for master until it has copied what a master confirms")
    (layout.root / ABORT_NAME).unlink(missing_ok=True)
    sync(layout.root)
    return notes


def _write_checkpoint(root: Path, facts: LogFacts, *, has_index: bool) -> None:
    path = root / CHECKPOINT_NAME
    before = decode_checkpoint(path.read_bytes()[:CHECKPOINT_SIZE]) if path.exists() else StoreCheckpoint()
    now = StoreCheckpoint(
        log_timestamp=facts.last_timestamp,
        queues_timestamp=facts.last_timestamp,
        index_timestamp=facts.last_timestamp if has_index else 0,
        master_flushed_offset=min(before.master_flushed_offset, facts.max_offset),
        confirm_offset=min(before.confirm_offset, facts.max_offset),
    )
    write_durably(path, now.encode())


def _restore_json(layout: StoreLayout) -> list[str]:
    notes = []
    for path in sorted((layout.root / "config").glob("*.json")):
        backup = path.with_name(path.name + ".bak")
        if json_fault(path) is None:
            if backup.exists() and json_fault(backup) is not None:
                copy_file(path, backup)
            continue
        if backup.exists() and json_fault(backup) is None:
            path.rename(path.with_name(path.name + ".damaged"))
            copy_file(backup, path)
            notes.append(f"{layout.name(path)} was unreadable: it was replaced by its .bak and kept as .damaged")
        else:
            notes.append(f"{layout.name(path)} is unreadable and has no good .bak")
    return notes


def _repair_raft(folder: Path, facts: LogFacts) -> list[str]:
    notes = []
    found = raft_checkpoint(folder)
    is_short = found is not None and found.committed_index > facts.last_index
    if facts.last_index >= 0 or found is not None:
        committed = min(found.committed_index, facts.last_index) if found is not None else -1
        position = min(found.durable_position, facts.max_offset) if found is not None else -1
        save_checkpoint(folder, CommitCheckpoint(committed, facts.last_index, position))
    if found is None and facts.last_index >= 0:
        notes.append(
            "which entries are committed is not known: they are delivered again once the group commits a new one"
        )
    if is_short:
        notes.append("committed entries are missing: this node must not vote before a leader has brought it up to date")
    return notes + _repair_term(folder, facts, is_short=is_short)


def _repair_term(folder: Path, facts: LogFacts, *, is_short: bool) -> list[str]:
    try:
        state = read_hard_state(folder)
    except StoreFormatError:
        state = None
    if facts.last_index < 0 and state is None:
        return []
    if state is not None and state.term >= facts.last_term:
        if is_short:
            write_hard_state(folder, replace(state, recovering=True))
        return []
    write_hard_state(folder, HardState(max(facts.last_term, 0), _NOBODY, recovering=True, forgot_votes=True))
    return [f"term and vote were lost: in term {facts.last_term}, the last entry's, this node votes for nobody"]
