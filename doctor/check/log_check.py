"""Checks the log as a sequence of files: lengths, gaps between files, its end, and what follows it."""

import itertools
from dataclasses import dataclass

from doctor.check.findings import Findings
from doctor.check.small_check import LogFacts
from doctor.read.directory import DLEDGER, OffsetFile, StoreLayout
from doctor.read.scan import FileScan


@dataclass(frozen=True, slots=True)
class LogShape:
    """The part of one file's `FileScan` that the check of the whole log uses. Times are ms, 0 for none; indexes -1.

    `record_end` is the end of the last record, before a filler.
    """

    file: OffsetFile
    records: int
    end: int
    record_end: int
    is_full: bool
    used_end: int
    detail: str
    read_error: bool
    first_timestamp: int
    last_timestamp: int
    first_index: int
    last_index: int
    first_term: int
    last_term: int

    @classmethod
    def of(cls, scan: FileScan) -> "LogShape":
        """Return the shape of a scanned file."""
        columns = scan.columns
        indexes, terms, times = columns.entry_indexes, columns.terms, columns.timestamps
        return cls(
            file=scan.file,
            records=len(columns),
            end=scan.end,
            record_end=scan.blank_start if scan.is_full else scan.end,
            is_full=scan.is_full,
            used_end=scan.used_end,
            detail=scan.detail,
            read_error=scan.read_error is not None,
            first_timestamp=int(times[0]) if len(times) else 0,
            last_timestamp=int(times.max()) if len(times) else 0,
            first_index=int(indexes[0]) if len(indexes) else -1,
            last_index=int(indexes[-1]) if len(indexes) else -1,
            first_term=int(terms[0]) if len(terms) else -1,
            last_term=int(terms[-1]) if len(terms) else -1,
        )


def last_in_use(shapes: list[LogShape]) -> int:
    """Return the number of the last file that belongs to the log; -1 for none.

    That is the last file with a record, or a full file before one.
    """
    return max((at for at, shape in enumerate(shapes) if shape.records or shape.is_full), default=-1)


def check_log(layout: StoreLayout, shapes: list[LogShape], findings: Findings) -> LogFacts:
    """Add the faults between and after the files; return what the log says about itself."""
    for path in layout.strangers:
        if not path.name.endswith(".tmp"):
            findings.add(layout.name(path), 0, "bad-name", "is not named by an offset of 20 digits")
    last = last_in_use(shapes)
    _check_row(layout, findings)
    for at, shape in enumerate(shapes):
        if at < last:
            _check_inner(layout, shape, findings)
        elif shape.used_end > shape.end and not shape.read_error and layout.holder is None:
            detail = f"{shape.used_end - shape.end} bytes behind the log's last record: {shape.detail}"
            findings.add(layout.name(shape.file.path), shape.end, "torn-tail", detail)
    if layout.kind == DLEDGER:
        _check_entries(layout, [shape for shape in shapes if shape.records], findings)
    return _facts(shapes, last)


def _check_row(layout: StoreLayout, findings: Findings) -> None:
    expected = layout.log_files[0].start if layout.log_files else 0
    for number, file in enumerate(layout.log_files):
        is_new = file.length == 0 and number == len(layout.log_files) - 1
        if file.length != layout.log_file_size and not is_new:
            detail = f"is {file.length} bytes long, the others {layout.log_file_size}"
            findings.add(layout.name(file.path), min(file.length, layout.log_file_size), "bad-length", detail)
        if file.start != expected:
            missing = layout.log_dir / f"{expected:020d}"
            detail = f"the log continues in {file.path.name}; {file.start - expected} bytes are missing"
            findings.add(layout.name(missing), 0, "missing-file", detail)
        expected = file.start + layout.log_file_size


def _check_inner(layout: StoreLayout, shape: LogShape, findings: Findings) -> None:
    """Check a file that others follow: it must be full."""
    if shape.is_full or shape.read_error:
        return
    kind = "bad-entry" if layout.kind == DLEDGER else "bad-record"
    detail = f"{shape.detail}; no record follows in this file, though later files have some"
    findings.add(layout.name(shape.file.path), shape.end, kind, detail)


def _check_entries(layout: StoreLayout, shapes: list[LogShape], findings: Findings) -> None:
    for before, shape in itertools.pairwise(shapes):
        whole = before.is_full and shape.file.start == before.file.start + layout.log_file_size
        if whole and (shape.first_index != before.last_index + 1 or shape.first_term < before.last_term):
            detail = f"entry {shape.first_index} of term {shape.first_term}, "
            detail += f"after entry {before.last_index} of term {before.last_term}"
            findings.add(layout.name(shape.file.path), 0, "bad-entry", detail)


def _facts(shapes: list[LogShape], last: int) -> LogFacts:
    used = [shape for shape in shapes if shape.records]
    end = shapes[last].file.start + shapes[last].record_end if last >= 0 else (shapes[0].file.start if shapes else 0)
    return LogFacts(
        records=sum(shape.records for shape in shapes),
        min_offset=shapes[0].file.start if shapes else 0,
        max_offset=end,
        first_timestamp=used[0].first_timestamp if used else 0,
        last_timestamp=max((shape.last_timestamp for shape in used), default=0),
        first_index=used[0].first_index if used else -1,
        last_index=used[-1].last_index if used else -1,
        last_term=used[-1].last_term if used else -1,
    )
