"""Checks the timer's two files: the log of 52-byte units, and the wheel whose slots point into it.

    timerlog/0000...   size i32 = 52, previous i64, magic i32, time i64, delay i32, physical offset i64, size i32, ...
    timerwheel         slots of 32 bytes: time / precision i64, first i64, last i64, count i32, magic i32

Only incomplete units and pointers to nothing are faults: a unit may outlive its record. Source: apache/rocketmq
`store/timer/TimerLog.java`, `store/timer/TimerWheel.java` (5.3.3).
"""

import numpy as np

from doctor.check.findings import Findings
from doctor.check.small_check import LogFacts
from doctor.read.directory import OffsetFile, StoreLayout, offset_files
from doctor.read.raw_file import CHUNK_BYTES, FileWindow, data_pieces
from ledgermq.message.record import BLANK_MAGIC

UNIT = np.dtype(
    [
        *(("size", ">i4"), ("previous", ">i8"), ("magic", ">i4"), ("time", ">i8"), ("delay", ">i4")),
        *(("physical", ">i8"), ("length", ">i4"), ("hash", ">i4"), ("reserved", ">i8")),
    ]
)
SLOT = np.dtype([("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("count", ">i4"), ("magic", ">i4")])
_MAGIC_MAX = 8


def check_timer(layout: StoreLayout, facts: LogFacts, findings: Findings) -> None:
    """Check both files, if they exist."""
    files, strangers = offset_files(layout.root / "timerlog")
    for path in strangers:
        findings.add(layout.name(path), 0, "bad-name", "is not named by a position of 20 digits")
    end = files[0].start if files else 0
    for file in files:
        end = _check_file(layout, file, facts, findings)
    wheel = layout.root / "timerwheel"
    if files and wheel.is_file() and layout.holder is None:
        _check_wheel(layout, files[0].start, end, findings)


def _check_file(layout: StoreLayout, file: OffsetFile, facts: LogFacts, findings: Findings) -> int:
    """Check one file of the timer log; return the offset at which its units end."""
    with FileWindow(file.path) as window:
        used = min(-(-window.used_end(0) // UNIT.itemsize) * UNIT.itemsize, window.length)
        data = np.frombuffer(window.read(0, used // UNIT.itemsize * UNIT.itemsize), UNIT)
    sizes = data["size"]
    stop = np.flatnonzero((sizes != UNIT.itemsize) | (data["magic"] == BLANK_MAGIC))
    count = int(stop[0]) if len(stop) else len(data)
    units = data[:count]
    numbers = np.arange(count) * UNIT.itemsize + file.start
    bad = (units["previous"] >= numbers) | (units["magic"] < 0) | (units["magic"] > _MAGIC_MAX)
    bad |= (units["physical"] < 0) | (units["length"] <= 0)
    lost = int((units["physical"] + units["length"] > facts.max_offset).sum())
    if lost and layout.holder is None:
        findings.notes.append(f"{layout.name(file.path)}: {lost} units are of records that the log does not have")
    for at in np.flatnonzero(bad)[:1]:
        detail = f"{int(bad.sum())} units point at nothing; the first is of the record at {int(units['physical'][at])}"
        findings.add(layout.name(file.path), int(at) * UNIT.itemsize, "timer-wrong", detail)
    if count < len(data) and int(data["magic"][count]) != BLANK_MAGIC and layout.holder is None:
        detail = f"no unit begins there, and {used - count * UNIT.itemsize} bytes are not zero"
        findings.add(layout.name(file.path), count * UNIT.itemsize, "timer-wrong", detail)
    return file.start + count * UNIT.itemsize


def _check_wheel(layout: StoreLayout, start: int, end: int, findings: Findings) -> None:
    path = layout.root / "timerwheel"
    with FileWindow(path) as window:
        if window.length % SLOT.itemsize:
            findings.add(
                layout.name(path),
                window.length,
                "timer-wrong",
                f"{window.length} bytes are not a whole number of slots",
            )
            return
        for low, high in data_pieces(window):
            for at in range(low - low % SLOT.itemsize, high, CHUNK_BYTES):
                slots = np.frombuffer(window.read(at, min(CHUNK_BYTES, window.length - at)), SLOT)
                bad = np.flatnonzero((slots["count"] > 0) & ((slots["last"] >= end) | (slots["last"] < 0)))
                if len(bad):
                    detail = (
                        f"{len(bad)} slots, the first points at {int(slots['last'][bad[0]])}: no unit of the timer log"
                    )
                    findings.add(layout.name(path), at + int(bad[0]) * SLOT.itemsize, "timer-wrong", detail)
                    return
