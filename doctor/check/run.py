"""`check`: reads every file and reports every fault.

    log files, one process each --- scan ---> columns ---> units, keys, DLedger units                (check_file)
    in one process --------------- order of the files, units and keys of no record, small files      (check_store)

Memory is bounded by the columns of one log file for each process. Nothing is written or locked.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from doctor.check.columns import QueueName
from doctor.check.findings import BEHIND, Fault, Findings
from doctor.check.index_check import check_index_file, check_keys, list_index, open_index
from doctor.check.log_check import LogShape, check_log
from doctor.check.queue_check import Span, check_leftovers, check_units
from doctor.check.settled import Settled, find_settled
from doctor.check.small_check import LogFacts, check_small_files
from doctor.check.timer_check import check_timer
from doctor.check.unit_check import check_index_units, check_units_behind
from doctor.read.directory import DLEDGER, OffsetFile, StoreLayout
from doctor.read.framing import EntryFraming, RecordFraming
from doctor.read.queues import QueueSet, open_queues
from doctor.read.scan import FileScan, Scanner
from ledgermq.store_progress import CHECKPOINT_NAME
from store.directory.checkpoint import decode_checkpoint

OnProgress = Callable[[int], None]

_PARALLEL_BYTES_MIN = 64 << 20
_POINTING = ("queue-dangling", "unit-wrong", "index-wrong")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of `check`. Offsets are physical, half-open; `index_entries` are those of the key index."""

    format: str
    records: int
    bytes: int
    queues: int
    index_entries: int
    min_offset: int
    max_offset: int
    findings: Findings
    facts: LogFacts

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            "format": self.format,
            "records": self.records,
            "bytes": self.bytes,
            "queues": self.queues,
            "index_entries": self.index_entries,
            "min_offset": self.min_offset,
            "max_offset": self.max_offset,
            "faults": self.findings.as_json(),
            "notes": self.findings.notes,
        }


@dataclass(slots=True)
class FileCheck:
    """The result for one log file.

    `missing_keys`: physical offset of the first record that lacks keys, and their number.
    """

    shape: LogShape
    faults: list[Fault]
    spans: dict[tuple[QueueName, bool], list[Span]] = field(default_factory=dict)
    missing_keys: tuple[int, int] | None = None
    suspects: int = 0
    deleted: int = 0
    unwritten: int = 0


def check_store(
    layout: StoreLayout, *, with_index: bool = True, jobs: int = 0, on_progress: OnProgress | None = None
) -> CheckResult:
    """Check all files.

    Args:
        layout: the store.
        with_index: False leaves the key index out.
        jobs: number of processes; 0: one for each core.
        on_progress: called with the bytes done since the last call.

    Raises:
        OSError: a file or folder cannot be read at all.
    """
    findings = Findings()
    settled = find_settled(layout)
    with_keys = with_index and not layout.is_bare and bool(list_index(layout.root))
    queues = None if layout.is_bare else open_queues(layout.root)
    parts = list(_run(layout, settled, queues, with_keys, jobs, on_progress))
    for part in parts:
        findings.extend(part.faults)
    facts = check_log(layout, [part.shape for part in parts], findings)
    spans: dict[tuple[QueueName, bool], list[Span]] = {}
    for part in parts:
        for key, values in part.spans.items():
            spans.setdefault(key, []).extend(values)
    queue_count = 0
    if queues is not None:
        faults, queue_count = check_leftovers(
            layout, _queues(layout, queues), spans, facts.min_offset, facts.max_offset
        )
        findings.extend(faults)
    entries = _check_index(layout, parts, facts, findings) if with_index and not layout.is_bare else 0
    if layout.kind == DLEDGER:
        findings.extend(check_units_behind(layout, facts.first_index, facts.last_index))
    check_small_files(layout, facts, findings)
    if not layout.is_bare:
        check_timer(layout, facts, findings)
    _report_missing_file(layout, parts, findings)
    _add_notes(parts, findings)
    return CheckResult(
        format=layout.kind,
        records=facts.records,
        bytes=facts.max_offset - facts.min_offset,
        queues=queue_count,
        index_entries=entries,
        min_offset=facts.min_offset,
        max_offset=facts.max_offset,
        findings=findings,
        facts=facts,
    )


def _add_notes(parts: list[FileCheck], findings: Findings) -> None:
    """Add notes about things that are not faults."""
    deleted = sum(part.deleted for part in parts)
    if deleted:
        findings.notes.append(
            f"{deleted} records are of topics that topics.json does not have, or from before their topic was removed"
        )
    unwritten = sum(part.unwritten for part in parts)
    if unwritten:
        findings.notes.append(
            f"{unwritten} units are not in the queues' files yet: the broker writes them at its next checkpoint, or"
            " makes them from the log at its next start"
        )
    suspects = sum(part.suspects for part in parts)
    if suspects:
        findings.notes.append(f"{suspects} records have zero bytes in their properties and may be torn")


def scan_file(layout: StoreLayout, file: OffsetFile, start: int = 0, on_progress: OnProgress | None = None) -> FileScan:
    """Scan one log file of a store from a position."""
    if layout.kind == DLEDGER:
        framing: RecordFraming | EntryFraming = EntryFraming(file.start, has_records=not layout.is_bare)
    else:
        framing = RecordFraming(file.start)
    return Scanner(file, framing, is_live=layout.holder is not None, on_progress=on_progress).run(start)


def check_file(
    layout: StoreLayout,
    file: OffsetFile,
    settled: Settled,
    queues: QueueSet | None,
    *,
    with_keys: bool,
    on_progress: OnProgress | None = None,
) -> FileCheck:
    """Check one log file, and the parts of other files that belong to its records; `queues`: None in a bare layout."""
    scan = scan_file(layout, file, on_progress=on_progress)
    columns = scan.columns
    part = FileCheck(LogShape.of(scan), _log_faults(layout, scan), suspects=len(columns.suspect))
    optional = settled.optional(columns)
    torn: set[int] = set()
    if queues is not None and len(columns):
        is_recent = file in layout.log_files[-2:]  # the last file may just have been begun
        claims = check_units(
            layout, _queues(layout, queues), columns, optional, is_recent=is_recent, written_end=settled.written_end
        )
        part.faults += claims.faults
        part.spans = claims.spans
        part.deleted, part.unwritten = claims.deleted, claims.unwritten
        torn = claims.torn
    if with_keys and len(columns):
        torn |= _check_keys(layout, scan, optional, part)
    for row in sorted(torn & set(columns.suspect.tolist()) - set(scan.damages)):
        position = int(columns.physical_offsets[row]) - file.start
        detail = "the properties lack what its queue unit or index entries have of them"
        part.faults.append(Fault(layout.name(file.path), position, "torn-properties", detail))
    if layout.kind == DLEDGER:
        part.faults += check_index_units(layout, columns)
    return part


def _queues(layout: StoreLayout, queues: QueueSet) -> QueueSet:
    """Return the queues with none of them open; of a running broker, which makes topics meanwhile, those of now."""
    return open_queues(layout.root) if layout.holder is not None else queues.closed()


def _check_keys(layout: StoreLayout, scan: FileScan, optional: npt.NDArray[np.bool_], part: FileCheck) -> set[int]:
    handles = []
    for path in list_index(layout.root):
        try:
            handles.append(open_index(path))
        except (ValueError, OSError):  # the check of the index file reports this
            continue
    if layout.holder is not None:  # the index of a running broker is behind the log
        indexed = max((handle.header.end_offset for handle in handles), default=-1)
        optional = optional | (scan.columns.physical_offsets > indexed)
    start = scan.file.start
    found = check_keys(layout, handles, scan.columns, optional, start, start + scan.end)
    part.faults += found.faults
    part.missing_keys = found.missing
    return found.torn


def _log_faults(layout: StoreLayout, scan: FileScan) -> list[Fault]:
    name = layout.name(scan.file.path)
    kind = "bad-entry" if layout.kind == DLEDGER else "bad-record"
    faults = [Fault(name, gap.start, kind, f"{gap.detail}; {gap.end - gap.start} bytes") for gap in scan.gaps]
    header = 48 if layout.kind == DLEDGER else 0
    for row, detail in scan.damages.items():
        position = _position(scan, row) - header
        faults.append(Fault(name, position, "bad-body", f"physical offset {scan.file.start + position}: {detail}"))
    for row, wrong in scan.misnumbered.items():
        detail = f"queue offset {wrong} of {scan.columns.names[scan.columns.queues[row]]} is impossible"
        faults.append(Fault(name, _position(scan, row) - header, "bad-number", detail))
    for row in scan.nameless:
        detail = f"topic {scan.columns.names[scan.columns.queues[row]].topic!r} cannot name a folder"
        faults.append(Fault(name, _position(scan, row) - header, "bad-topic", detail))
    if scan.blank_fault:
        faults.append(Fault(name, scan.blank_start, kind, scan.blank_fault))
    if scan.read_error is not None:
        faults.append(Fault(name, scan.end, "read-error", scan.read_error))
    return faults


def _position(scan: FileScan, row: int) -> int:
    return int(scan.columns.physical_offsets[row]) - scan.file.start


def _run(
    layout: StoreLayout,
    settled: Settled,
    queues: QueueSet | None,
    with_keys: bool,
    jobs: int,
    on_progress: OnProgress | None,
) -> Iterator[FileCheck]:
    """Yield the results of all log files, in order."""
    jobs = min(jobs or len(os.sched_getaffinity(0)), len(layout.log_files))
    if jobs <= 1 or sum(file.length for file in layout.log_files) < _PARALLEL_BYTES_MIN:
        for file in layout.log_files:
            yield check_file(layout, file, settled, queues, with_keys=with_keys, on_progress=on_progress)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        futures = [
            pool.submit(check_file, layout, file, settled, queues, with_keys=with_keys) for file in layout.log_files
        ]
        for file, future in zip(layout.log_files, futures, strict=True):
            yield future.result()
            if on_progress is not None:
                on_progress(file.length)


def _check_index(layout: StoreLayout, parts: list[FileCheck], facts: LogFacts, findings: Findings) -> int:
    """Check every index file by itself, report the keys without an entry, and return the number of entries."""
    total = 0
    paths = list_index(layout.root)
    for path in paths:
        faults, count = check_index_file(layout.name(path), path)
        findings.extend([] if layout.holder is not None and path == paths[-1] else faults)
        total += count
        if faults or not count:
            continue
        handle = open_index(path)
        last = int(handle.entries(handle.count, 1)["offset"][0])
        if last >= facts.max_offset and layout.holder is None:
            number = handle.bisect(facts.max_offset)
            detail = f"{handle.count - number + 1} entries point {BEHIND}, {facts.max_offset}"
            findings.add(layout.name(path), handle.layout.entry_at(number), "index-wrong", detail)
    missing = [part.missing_keys for part in parts if part.missing_keys is not None]
    if missing:
        count = sum(keys for _, keys in missing)
        detail = f"{count} keys have no entry; the first belongs to the record at {missing[0][0]}"
        findings.add(layout.name(paths[-1]) if paths else "index", 0, "index-missing", detail)
    if not paths and facts.records:
        _judge_no_index(layout, findings)
    return total


def _judge_no_index(layout: StoreLayout, findings: Findings) -> None:
    path = layout.root / CHECKPOINT_NAME
    if path.exists() and decode_checkpoint(path.read_bytes()[:4096]).index_timestamp > 0:
        findings.add("index", 0, "index-missing", "there are no index files, but by the checkpoint there were some")
    else:
        findings.notes.append("no index files: messageIndexEnable is false, or they are lost")


def _report_missing_file(layout: StoreLayout, parts: list[FileCheck], findings: Findings) -> None:
    """Report a missing next file where other files point behind a log whose last file is full."""
    if parts and not parts[-1].shape.is_full:
        return
    start = parts[-1].shape.file.start + layout.log_file_size if parts else 0
    path = layout.log_dir / f"{start:020d}"
    if any(fault.kind in _POINTING and BEHIND in fault.detail for fault in findings.faults):
        findings.add(
            layout.name(path), 0, "missing-file", f"other files point at records from physical offset {start} on"
        )
