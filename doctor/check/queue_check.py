"""Compares queues with records: first the unit of every record, file by file; then every unit that no record claimed.

records of one log file   q3: 120 121 122 ...      units of q3  |...120 121 122...|  equal? else missing or wrong
all files done            claimed [0, 4711)        units of q3 outside: old (below the log), blank, or dangling
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from doctor.check.columns import Columns, Ints, QueueName
from doctor.check.ext_check import ext_faults
from doctor.check.findings import BEHIND, Fault
from doctor.check.numbering import OFFSET_MAX, is_folder_name
from doctor.check.settled import NEVER
from doctor.read.directory import StoreLayout
from doctor.read.queues import BATCH_DIR, QUEUE_DIR, QueueSet, list_queues
from doctor.read.unit_files import BLANK_SIZE, UnitFiles, Units
from doctor.read.walk import record_at
from ledgermq.message.queue_unit import SCHEDULE_TOPIC

IS_EXT = -(1 << 31)
"""Codes below this are addresses of extensions; no hash has such a value, since hashes are of int range."""

_LOOKED_UP_MAX = 10_000
_LIVE_TRIES = 20
_LIVE_PAUSE_S = 0.05

Span = tuple[int, int]


@dataclass(slots=True)
class QueueClaims:
    """The queues as the records of one or more files describe them.

    Attributes:
        spans: by queue and kind of units, the unit numbers `[first, end)` that records claim.
        deleted: records of deleted topics; they have no units.
        unwritten: units that a broker which has not stopped cleanly may have held in memory.
        waits: number of times that the check may still wait for units that are being written.
        torn: rows whose units or keys show more than the record has.
    """

    faults: list[Fault] = field(default_factory=list)
    spans: dict[tuple[QueueName, bool], list[Span]] = field(default_factory=dict)
    torn: set[int] = field(default_factory=set)
    deleted: int = 0
    unwritten: int = 0
    waits: int = 0


@dataclass(frozen=True, slots=True)
class Expected:
    """The units that some records of one queue should have."""

    name: QueueName
    is_batch: bool
    rows: Ints
    numbers: Ints
    is_optional: npt.NDArray[np.bool_]


def check_units(
    layout: StoreLayout,
    queues: QueueSet,
    columns: Columns,
    optional: npt.NDArray[np.bool_],
    *,
    is_recent: bool,
    written_end: int = NEVER,
) -> QueueClaims:
    """Compare the records of one file with their units.

    Args:
        layout: the store.
        queues: its queues.
        columns: the records.
        optional: records that may have no unit yet.
        is_recent: units of its last records may still be written, if the store is in use.
        written_end: physical offset behind which the last units of a queue may be missing.
    """
    claims = QueueClaims()
    claims.deleted = int((columns.in_queue & ~_living(queues, columns)).sum())
    if is_recent and layout.holder is not None:
        claims.waits, written_end = _LIVE_TRIES, 0
    for expected in expected_units(queues, columns, optional):
        _check_queue(layout, queues, columns, expected, claims, written_end)
    return claims


def expected_units(queues: QueueSet, columns: Columns, optional: npt.NDArray[np.bool_]) -> Iterator[Expected]:
    """Yield for each queue the records that have a unit in it, and the unit numbers."""
    rows = np.flatnonzero(columns.in_queue & _living(queues, columns))
    order = rows[np.argsort(columns.queues[rows], kind="stable")]
    bounds = np.searchsorted(columns.queues[order], np.arange(len(columns.names) + 1))
    for number, name in enumerate(columns.names):
        mine = order[bounds[number] : bounds[number + 1]]
        if len(mine):
            is_batch = queues.is_batch(name.topic)
            numbers = np.arange(len(mine)) if is_batch else columns.queue_offsets[mine]
            yield Expected(name, is_batch, mine, numbers, optional[mine])
    yield from _light_units(columns, optional)


def _living(queues: QueueSet, columns: Columns) -> npt.NDArray[np.bool_]:
    """Return which records belong to existing topics, and not to an earlier topic of the same name."""
    ends = [NEVER if queues.is_deleted(name.topic) else queues.removed.get(name.topic, 0) for name in columns.names]
    return np.asarray(columns.physical_offsets >= np.array([*ends, 0], np.int64)[columns.queues])


def _light_units(columns: Columns, optional: npt.NDArray[np.bool_]) -> Iterator[Expected]:
    """Yield the units in light queues that records have in addition to their own."""
    light: dict[QueueName, list[tuple[int, int]]] = {}
    for row, name, offset in columns.light:
        if columns.in_queue[row] and 0 <= offset <= OFFSET_MAX and is_folder_name(name.topic):
            light.setdefault(name, []).append((row, offset))
    for name, items in light.items():
        mine, numbers = (np.array(column, np.int64) for column in zip(*items, strict=True))
        yield Expected(name, False, mine, numbers, optional[mine])


def _check_queue(
    layout: StoreLayout,
    queues: QueueSet,
    columns: Columns,
    expected: Expected,
    claims: QueueClaims,
    written_end: int,
) -> None:
    units = queues.get(expected.name, batch=expected.is_batch)
    if expected.is_batch:
        expected = _place_batches(units, columns, expected)
    numbers = expected.numbers
    claims.spans.setdefault((expected.name, expected.is_batch), []).extend(find_spans(numbers))
    found, bad = _compare(units, columns, expected)
    while claims.waits > 0 and (bad & (found["size"] == 0)).any():
        claims.waits -= 1
        time.sleep(_LIVE_PAUSE_S)
        found, bad = _compare(units, columns, expected)
    missing = bad & (found["size"] == 0)
    last = np.flatnonzero(~missing)[-1] + 1 if not missing.all() else 0
    missing &= ~expected.is_optional
    unwritten = missing & (columns.physical_offsets[expected.rows] >= written_end)
    unwritten[:last] = False
    claims.unwritten += int(unwritten.sum())
    missing &= ~unwritten
    claims.faults += _runs(layout, units, expected, missing, "queue-missing", "no unit")
    wrong = bad & (found["size"] != 0)
    later = wrong & (found["physical"] > columns.physical_offsets[expected.rows])
    wrong[_superseded(layout, expected, found, later)] = False
    for row in expected.rows[wrong & (found["physical"] == columns.physical_offsets[expected.rows])]:
        claims.torn.add(int(row))
    claims.faults += _runs(layout, units, expected, wrong, "queue-wrong", "units that contradict their records")
    claims.faults += ext_faults(layout, expected.name, units, numbers, found["code"], columns.codes[expected.rows])


def _superseded(layout: StoreLayout, expected: Expected, found: Units, later: npt.NDArray[np.bool_]) -> list[int]:
    """Return those `later` units that point at a newer record of the same number.

    Their topic was deleted and created again.
    """
    name, result = expected.name, []
    for at in np.flatnonzero(later)[:_LOOKED_UP_MAX].tolist():
        record = record_at(layout, int(found["physical"][at]))
        place = None if record is None else (record.topic.encode(), record.queue_id, record.queue_offset)
        if place == (name.topic, name.queue_id, int(expected.numbers[at])):
            result.append(at)
    return result


def _compare(units: UnitFiles, columns: Columns, expected: Expected) -> tuple[Units, npt.NDArray[np.bool_]]:
    """Return the units of these records, and which of them differ from what they should be."""
    found = _gather(units, expected.numbers)
    return found, _differences(columns, expected, found)


def _gather(units: UnitFiles, numbers: Ints) -> Units:
    """Return the units with these numbers."""
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0:
        return np.zeros(len(numbers), units.unit)
    if high - low < 4 * len(numbers) + 1024:
        return np.asarray(units.read(low, high - low + 1)[numbers - low])
    return np.concatenate([units.read(first, end - first) for first, end in find_spans(numbers)])


def _differences(columns: Columns, expected: Expected, found: Units) -> npt.NDArray[np.bool_]:
    rows = expected.rows
    codes = found["code"].astype(np.int64)
    bad: npt.NDArray[np.bool_] = found["physical"] != columns.physical_offsets[rows]
    bad |= found["size"] != columns.sizes[rows]
    # these are due times, which depend on the levels in the broker's configuration
    if expected.name.topic == SCHEDULE_TOPIC:
        bad |= (codes != columns.codes[rows]) & ~(codes > columns.timestamps[rows])
    else:
        bad |= (codes != columns.codes[rows]) & (codes >= IS_EXT)
    if expected.is_batch:
        counts = np.array([columns.batches.get(int(row), 1) for row in rows])
        bad |= (found["base"] != columns.queue_offsets[rows]) | (found["count"] != counts)
        bad |= found["time"] != columns.timestamps[rows]
    return bad


def _place_batches(units: UnitFiles, columns: Columns, expected: Expected) -> Expected:
    """Find batch units by the position of their records, else after the last unit.

    They are not numbered by queue offset.
    """
    end = units.used_end()
    stored = units.read(units.first, max(end - units.first, 0))["physical"].astype(np.int64)
    wanted = columns.physical_offsets[expected.rows]
    at = np.searchsorted(stored, wanted) + units.first
    return Expected(expected.name, True, expected.rows, np.maximum.accumulate(at), expected.is_optional)


def find_spans(numbers: Ints) -> list[Span]:
    """Return runs of numbers that rise by one."""
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(numbers, cuts)]


def _runs(
    layout: StoreLayout,
    units: UnitFiles,
    expected: Expected,
    bad: npt.NDArray[np.bool_],
    kind: str,
    what: str,
) -> list[Fault]:
    """Return one fault for each run of bad units inside one file."""
    faults = []
    numbers = expected.numbers[bad]
    for first, end in find_spans(numbers) if len(numbers) else []:
        while first < end:
            path, position = units.place(first)
            stop = min(end, first - first % units.file_units + units.file_units)
            detail = f"{what} for queue offsets {first} to {stop - 1} of {expected.name}"
            faults.append(Fault(layout.name(path), position, kind, detail))
            first = stop
    return faults


def check_leftovers(
    layout: StoreLayout,
    queues: QueueSet,
    spans: dict[tuple[QueueName, bool], list[Span]],
    min_offset: int,
    max_offset: int,
) -> tuple[list[Fault], int]:
    """Return the faults of units that no record claims, and the number of queues."""
    faults: list[Fault] = []
    count = 0
    for kind, is_batch in ((QUEUE_DIR, False), (BATCH_DIR, True)):
        for name in list_queues(layout.root, kind):
            units = queues.get(name, batch=is_batch)
            if not units.files:
                continue
            count += 1
            faults += _file_faults(layout, units)
            faults += _dangling(layout, units, name, spans.get((name, is_batch), []), min_offset, max_offset)
    return faults, count


def _dangling(
    layout: StoreLayout, units: UnitFiles, name: QueueName, claimed: list[Span], min_offset: int, max_offset: int
) -> Iterator[Fault]:
    for first, end in _outside(claimed, units.first, units.used_end()):
        for number, found in units.pieces(first, end):
            used = (found["size"] != 0) & (found["size"] != BLANK_SIZE) & (found["physical"] >= min_offset)
            if layout.holder is not None:
                used &= found["physical"] < max_offset  # units written after the log was read
            at = np.flatnonzero(used)
            if not len(at):
                continue
            path, position = units.place(number + int(at[0]))
            physical = int(found["physical"][at[0]])
            where = BEHIND if physical >= max_offset else "where no record of this queue starts"
            detail = f"{len(at)} units of {name}, the first at queue offset {number + int(at[0])}: points at {physical}"
            yield Fault(layout.name(path), position, "queue-dangling", f"{detail}, {where}")


def _outside(claimed: list[Span], first: int, end: int) -> Iterator[Span]:
    """Yield the parts of `[first, end)` that no span covers."""
    for low, high in sorted(claimed):
        if first < low:
            yield first, min(low, end)
        first = max(first, high)
    if first < end:
        yield first, end


def _file_faults(layout: StoreLayout, units: UnitFiles) -> Iterator[Fault]:
    """Yield faults in the lengths, names and order of a queue's files."""
    for path in units.strangers:
        yield Fault(layout.name(path), 0, "bad-name", "is not named by a position of 20 digits")
    expected = units.files[0].start
    for file in units.files:
        if file.length != units.file_size:
            detail = f"is {file.length} bytes long, the others {units.file_size}"
            yield Fault(layout.name(file.path), min(file.length, units.file_size), "bad-length", detail)
        if file.start % units.file_size:
            yield Fault(layout.name(file.path), 0, "bad-name", f"{file.start} is not a multiple of {units.file_size}")
        elif file.start > expected:
            missing = units.directory / f"{expected:020d}"
            yield Fault(layout.name(missing), 0, "missing-file", f"the queue continues in {file.path.name}")
        expected = file.start + units.file_size
