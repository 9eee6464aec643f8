"""`repair`: makes the log readable from end to end and rebuilds everything that is derived from it.

copy (or in place, locked) -> log: tails cut, damages replaced -> queues, index, units from the log -> small files
                                   removed bytes -> side file                                       -> check
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doctor.check.findings import Findings
from doctor.check.log_check import LogShape, check_log
from doctor.check.run import CheckResult, check_store, scan_file
from doctor.check.settled import find_settled
from doctor.check.small_check import LogFacts
from doctor.read.directory import CLASSIC, DLEDGER, StoreLayout, open_layout
from doctor.read.queues import BATCH_DIR, EXT_DIR, QUEUE_DIR, open_queues
from doctor.repair.copying import copy_tree
from doctor.repair.log_repair import LogRepair, LogRepairer
from doctor.repair.rebuild_index import IndexRebuilder, UnitBuilder, index_layout
from doctor.repair.rebuild_queues import QueueBuilder
from doctor.repair.side_file import SideFile
from doctor.repair.small_repair import repair_small_files
from ledgermq.message.index_unit import IndexLayout
from node.errors import CommandError, UsageError
from store.directory.lock_file import LockFile
from store.errors import StoreError

OnProgress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of files, if none is left to measure: of the index, and of a queue's file in bytes (0: the default)."""

    index: IndexLayout | None
    queue_file: int


@dataclass(frozen=True, slots=True)
class RepairResult:
    """The result of a repair, and of a check afterwards. `side_file` is None when nothing was removed."""

    directory: Path
    side_file: Path | None
    cut_bytes: int
    log: LogRepair
    notes: list[str]
    check: CheckResult

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            "directory": str(self.directory),
            "side_file": None if self.side_file is None else str(self.side_file),
            "cut_bytes": self.cut_bytes,
            "cut_records": self.log.cut_records,
            "replaced": self.log.replaced,
            "not_repaired": self.log.not_repaired,
            "notes": self.notes,
            "check": self.check.as_json(),
        }


def repair_store(
    layout: StoreLayout,
    *,
    output: Path | None,
    side_path: Path | None = None,
    index: IndexLayout | None = None,
    queue_file_size: int = 0,
    on_progress: OnProgress = lambda _: None,
) -> RepairResult:
    """Repair a copy at `output`, or, without one, the store itself.

    Args:
        layout: the store.
        output: an empty or new folder.
        side_path: of the side file; by default it is beside the store that is repaired.
        index: sizes of the index files, where there is none to measure.
        queue_file_size: bytes of a queue's file, where there is none to measure; 0: RocketMQ's default.
        on_progress: called with the bytes done since the last call.

    Raises:
        CommandError: another process has the store open, or the disk failed; a copy is incomplete then.
        UsageError: `output` is not empty.
    """
    if layout.holder is not None:
        raise CommandError(f"{layout.root}: process {layout.holder} has the store open; stop it first")
    sizes = Sizes(index, queue_file_size)
    try:
        if output is None:
            return _repair_in_place(layout, side_path, sizes, on_progress)
        new = _copy(layout, output, on_progress)
        return _repair(new, layout, side_path, sizes, on_progress)
    except (OSError, StoreError) as error:
        raise CommandError(f"not repaired: {error}") from error


def _repair_in_place(
    layout: StoreLayout, side_path: Path | None, sizes: Sizes, on_progress: OnProgress
) -> RepairResult:
    if not layout.log_files and (layout.root / QUEUE_DIR).is_dir():
        raise CommandError(f"{layout.log_dir} has no log file: restore the log first, it cannot be rebuilt from queues")
    locks = [LockFile(folder) for folder in {layout.root, layout.raft_dir or layout.root}]
    try:
        return _repair(layout, layout, side_path, sizes, on_progress)
    finally:
        for lock in locks:
            lock.release()


def _copy(layout: StoreLayout, output: Path, on_progress: OnProgress) -> StoreLayout:
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"{output} exists and is not an empty folder")
    if output.resolve().is_relative_to(layout.root):
        raise UsageError(f"{output} lies inside the store")
    derived = {layout.root / name for name in (QUEUE_DIR, BATCH_DIR, EXT_DIR)}
    if layout.unit_dir is not None:
        derived.add(layout.unit_dir)
    if not layout.is_bare:
        derived.add(layout.root / "index")
    copy_tree(layout.root, output, derived, on_progress)
    if not layout.log_dir.is_relative_to(layout.root):
        copy_tree(layout.log_dir, output / "commitlog", (), on_progress)
    return open_layout(output)


def _repair(
    layout: StoreLayout,
    old: StoreLayout,
    side_path: Path | None,
    sizes: Sizes,
    on_progress: OnProgress,
) -> RepairResult:
    side = SideFile(side_path or _side_path(layout.root))
    settled = find_settled(old)
    key_layout = index_layout(old, sizes.index)
    repairer = LogRepairer(layout, old, side)
    try:
        layout = repairer.run()
    finally:
        side.close()
    queues = QueueBuilder(layout.root, open_queues(old.root, sizes.queue_file))
    keys = IndexRebuilder(layout.root, key_layout) if key_layout is not None else None
    units = UnitBuilder.of(layout, old) if layout.kind == DLEDGER else None
    queues.start()
    shapes = []
    for file in layout.log_files:
        scan = scan_file(layout, file, on_progress=on_progress)
        shapes.append(LogShape.of(scan))
        optional = settled.optional(scan.columns)
        if not layout.is_bare:
            queues.put(scan.columns, optional)
        if keys is not None:
            keys.put(scan.columns, optional)
        if units is not None:
            units.put(scan.columns)
    facts = check_log(layout, shapes, Findings())
    notes = _finish(layout, facts, queues, keys, units)
    repairer.done.not_repaired += queues.unplaced
    return RepairResult(
        directory=layout.root,
        side_file=side.path if side.is_used else None,
        cut_bytes=side.cut_bytes,
        log=repairer.done,
        notes=notes,
        check=check_store(layout if layout.kind == CLASSIC else open_layout(layout.root)),
    )


def _finish(
    layout: StoreLayout,
    facts: LogFacts,
    queues: QueueBuilder,
    keys: IndexRebuilder | None,
    units: UnitBuilder | None,
) -> list[str]:
    """Put the rebuilt files in the place of the old ones, then update the small files."""
    if not layout.is_bare:
        if facts.records:
            queues.keep_old(facts.min_offset)
        queues.finish()
    if keys is not None:
        keys.finish()
    if units is not None:
        units.finish()
    return repair_small_files(layout, facts, has_index=keys is not None and keys.has_entries)


def _side_path(root: Path) -> Path:
    stamp = time.strftime("%Y%m%d%H%M%S")
    path = root.with_name(f"{root.name}.cut-{stamp}.jsonl")
    number = 1
    while path.exists():
        path = root.with_name(f"{root.name}.cut-{stamp}-{number}.jsonl")
        number += 1
    return path
