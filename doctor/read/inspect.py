"""`inspect`: an overview from names, headers and the last file; the records between are not read."""

from datetime import datetime
from typing import Any

from dledger.log.hard_state import read_hard_state
from doctor.check.columns import QueueName
from doctor.check.index_check import list_index, open_index
from doctor.check.run import scan_file
from doctor.check.small_check import raft_checkpoint
from doctor.read.directory import DLEDGER, StoreLayout
from doctor.read.queues import BATCH_DIR, QUEUE_DIR, QueueSet, list_queues, open_queues
from doctor.read.unit_files import BLANK_SIZE, UnitFiles
from doctor.read.walk import walk_file
from ledgermq.store_progress import CHECKPOINT_NAME, CHECKPOINT_SIZE
from store.directory.abort_file import ABORT_NAME
from store.directory.checkpoint import decode_checkpoint
from store.errors import StoreFormatError


def inspect_store(layout: StoreLayout) -> dict[str, Any]:
    """Return everything, ready for JSON. Times are ms since 1970, offsets physical and half-open.

    Raises:
        OSError: a file cannot be read.
    """
    files, min_offset, max_offset = _log_files(layout)
    queues = open_queues(layout.root)
    rows = [] if layout.is_bare else _queues(layout, queues, min_offset)
    topics: dict[str, int] = {}
    for row in rows:
        topics[row["topic"]] = topics.get(row["topic"], 0) + row["max_offset"] - row["min_offset"]
    return {
        "format": layout.kind,
        "directory": str(layout.root),
        "open_by": layout.holder,
        "clean_stop": not (layout.root / ABORT_NAME).exists(),
        "min_offset": min_offset,
        "max_offset": max_offset,
        "log_file_size": layout.log_file_size,
        "log_files": files,
        "topics": topics,
        "queues": rows,
        "index_files": [] if layout.is_bare else _index_files(layout),
        "checkpoint": _checkpoint(layout),
        "raft": _raft(layout),
    }


def _log_files(layout: StoreLayout) -> tuple[list[dict[str, Any]], int, int]:
    rows = []
    last = None
    for file in layout.log_files:
        first = next(walk_file(layout, file), None)
        row: dict[str, Any] = {"file": layout.name(file.path), "start": file.start, "length": file.length}
        row["first_timestamp"] = None
        if first is not None:
            last = file
            record = first.decode()
            row["first_timestamp"] = None if record is None else record.store_timestamp
            if layout.kind == DLEDGER:
                row |= {"first_index": first.frame.entry_index, "first_term": first.frame.term}
        row["is_empty"] = first is None
        rows.append(row)
    min_offset = layout.log_files[0].start if layout.log_files else 0
    if last is None:
        return rows, min_offset, min_offset
    scan = scan_file(layout, last)
    row = next(row for row in rows if row["start"] == last.start)
    row["records"] = len(scan.columns)
    row["last_timestamp"] = int(scan.columns.timestamps.max())
    if layout.kind == DLEDGER:
        row |= {"last_index": int(scan.columns.entry_indexes[-1]), "last_term": int(scan.columns.terms[-1])}
    return rows, min_offset, last.start + scan.end


def _queues(layout: StoreLayout, queues: QueueSet, log_min_offset: int) -> list[dict[str, Any]]:
    rows = []
    for kind, is_batch in ((QUEUE_DIR, False), (BATCH_DIR, True)):
        for name in list_queues(layout.root, kind):
            units = queues.get(name, batch=is_batch)
            rows.append(_batch_row(name, units) if is_batch else _row(name, units, log_min_offset))
    return rows


def _row(name: QueueName, units: UnitFiles, log_min_offset: int) -> dict[str, Any]:
    end = units.used_end()
    low, high = units.first, max(end, units.first)
    while low < high:  # old and blank units come first
        middle = (low + high) // 2
        unit = units.read(middle, 1)
        if unit["size"][0] == BLANK_SIZE or unit["physical"][0] < log_min_offset:
            low = middle + 1
        else:
            high = middle
    topic = name.topic.decode(errors="replace")
    return {"topic": topic, "queue_id": name.queue_id, "min_offset": low, "max_offset": end, "files": len(units.files)}


def _batch_row(name: QueueName, units: UnitFiles) -> dict[str, Any]:
    end = units.used_end()
    first, last = (units.read(max(number, 0), 1) for number in (units.first, end - 1))
    max_offset = int(last["base"][0] + last["count"][0]) if end else 0
    topic = name.topic.decode(errors="replace")
    row = {"topic": topic, "queue_id": name.queue_id, "min_offset": int(first["base"][0]), "max_offset": max_offset}
    return {**row, "files": len(units.files), "batches": end}


def _index_files(layout: StoreLayout) -> list[dict[str, Any]]:
    rows = []
    for path in list_index(layout.root):
        row: dict[str, Any] = {"file": layout.name(path), "length": path.stat().st_size}
        try:
            header = open_index(path).header
        except ValueError as error:
            row["unreadable"] = str(error)
        else:
            row |= header._asdict() | {"entry_count": header.entry_count - 1}
        rows.append(row)
    return rows


def _checkpoint(layout: StoreLayout) -> dict[str, Any] | None:
    path = layout.root / CHECKPOINT_NAME
    if layout.is_bare or not path.exists():
        return None
    found = decode_checkpoint(path.read_bytes()[:CHECKPOINT_SIZE])
    row = {name: getattr(found, f"{name}_timestamp") for name in ("log", "queues", "index")}
    own = found.progress
    if own is not None:
        row |= {"flushed_offset": own.flushed_offset, "dispatched_offset": own.dispatched_offset}
    return row


def _raft(layout: StoreLayout) -> dict[str, Any] | None:
    if layout.raft_dir is None:
        return None
    row: dict[str, Any] = {"directory": layout.name(layout.raft_dir), "term": None, "voted_for": None}
    try:
        state = read_hard_state(layout.raft_dir)
    except StoreFormatError as error:
        row["unreadable"] = str(error)
        state = None
    if state is not None:
        row |= {"term": state.term, "voted_for": state.voted_for}
    checkpoint = raft_checkpoint(layout.raft_dir)
    row["committed_index"] = None if checkpoint is None else checkpoint.committed_index
    return row


def as_table(facts: dict[str, Any]) -> str:
    """Return the same as text for a person."""
    stop = "stopped cleanly" if facts["clean_stop"] else "abort file: not stopped cleanly"
    state = f"open by process {facts['open_by']}" if facts["open_by"] else stop
    lines = [
        f"{facts['format']} store {facts['directory']}, {state}",
        f"log [{facts['min_offset']}, {facts['max_offset']})",
    ]
    if facts["raft"] is not None:
        raft = facts["raft"]
        lines.append(f"raft term {raft['term']}, vote {raft['voted_for']!r}, committed index {raft['committed_index']}")
    lines += ["", *_table(["log file", "from", "entry", "term"], [_log_row(row) for row in facts["log_files"]])]
    queues = [
        [row["topic"], row["queue_id"], row["min_offset"], row["max_offset"], row["files"]] for row in facts["queues"]
    ]
    if queues:
        lines += ["", *_table(["topic", "queue", "min", "max", "files"], queues)]
    index = [
        [row["file"], row.get("entry_count", "?"), _time(row.get("begin_timestamp")), _time(row.get("end_timestamp"))]
        for row in facts["index_files"]
    ]
    if index:
        lines += ["", *_table(["index file", "entries", "from", "to"], index)]
    if facts["checkpoint"] is not None:
        shown = ", ".join(
            f"{name} {_time(value) if value > 1 << 36 else value}" for name, value in facts["checkpoint"].items()
        )
        lines += ["", f"checkpoint: {shown}"]
    return "\n".join(lines)


def _log_row(row: dict[str, Any]) -> list[Any]:
    when = "empty" if row["is_empty"] else _time(row["first_timestamp"])
    return [row["file"], when, row.get("first_index", ""), row.get("first_term", "")]


def _table(head: list[str], rows: list[list[Any]]) -> list[str]:
    cells = [head, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _time(timestamp: int | None) -> str:
    if not timestamp or not 0 < timestamp < 1 << 43:
        return "-"
    return f"{datetime.fromtimestamp(timestamp / 1000):%Y-%m-%d %H:%M:%S}"
