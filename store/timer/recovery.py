"""Recovery of the timers: find the timer log's end, and make the wheel agree with it.

    timer log   |==== flushed, the wheel knows it ====|--- linked again, unit by unit ---| torn: cut off
    wheel       slots whose last units were cut off are made anew from the units that are there

Only the units behind the last flush are walked, unless the wheel had to be made anew.
"""

import logging
from typing import NamedTuple

from store.errors import DiskReadError
from store.timer.timer_log import MAGIC_DELETE, NO_POSITION, UNIT_SIZE, TimerLog, TimerUnit
from store.timer.wheel import Slot, TimerWheel

log = logging.getLogger(__name__)


class RecoveredTimers(NamedTuple):
    """The result of a recovery.

    Attributes:
        end: of the timer log, bytes from its start.
        has_lost_units: flushed units are missing, or there are none.
        is_dirty: the wheel differs from its file.
    """

    end: int
    has_lost_units: bool
    is_dirty: bool


def recover(wheel: TimerWheel, timer_log: TimerLog, flushed_position: int) -> RecoveredTimers:
    """Cut the timer log behind its last whole unit, and mend the wheel; the checkpoint says what was flushed.

    Raises:
        DiskFullError, DiskFailedError: the disk refused.
    """
    flushed = min(flushed_position, timer_log.end)
    if wheel.was_made or not _has_unit(timer_log, max(flushed - UNIT_SIZE, 0)):
        flushed = timer_log.min_position  # nothing says what is in the wheel, or that the flushed part is good
    end, last = flushed, None
    try:
        for position, unit in timer_log.units_from(flushed):
            _link(wheel, position, unit)
            end, last = position + UNIT_SIZE, unit
    except DiskReadError as error:  # what follows is taken again from the timer topic
        log.error("the timer log ends at %d: %s", end, error)
    timer_log.truncate_to(end)
    lost = wheel.slots_beyond(end)
    if lost:
        _rebuild(wheel, timer_log, lost)
    if last is not None or lost or end < flushed_position:
        log.info("timer log recovered up to %d (flushed: %d), %d slots rebuilt", end, flushed, len(lost))
    has_lost_units = end < flushed_position or end == timer_log.min_position
    return RecoveredTimers(end, has_lost_units, is_dirty=last is not None or bool(lost))


def _has_unit(timer_log: TimerLog, position: int) -> bool:
    try:
        return timer_log.unit(position) is not None
    except DiskReadError as error:
        log.error("the timer log is read again from its beginning: %s", error)
        return False


def _link(wheel: TimerWheel, position: int, unit: TimerUnit) -> None:
    """Add a unit to the chain of its slot, unless it is there already."""
    slot = wheel.get(unit.slot_ms) or Slot(NO_POSITION, NO_POSITION, 0)
    if slot.last < position:
        first = position if slot.first == NO_POSITION else slot.first
        waiting = slot.waiting + (-1 if unit.magic & MAGIC_DELETE else 1)
        wheel.put(unit.slot_ms, Slot(first, position, waiting, slot.magic))


def _rebuild(wheel: TimerWheel, timer_log: TimerLog, lost: dict[int, Slot]) -> None:
    """Rebuild slots whose last units are lost, from the units that are left."""
    for slot_ms in lost:
        wheel.put(slot_ms, None)
    start = max(min(slot.first for slot in lost.values()), timer_log.min_position)
    for position, unit in timer_log.units_from(start):
        if unit.slot_ms in lost:
            _link(wheel, position, unit)


def cut(wheel: TimerWheel, timer_log: TimerLog, physical_offset: int) -> list[tuple[int, TimerUnit]]:
    """Remove the newest units, back to the first whose record lies before a physical offset.

    Returns:
        `(position, unit)` of each removed unit, the newest first.
    """
    dropped = []
    try:
        for position, unit in timer_log.newest_first():
            if unit.physical_offset < physical_offset:
                break
            dropped.append((position, unit))
    except DiskReadError as error:
        log.error("the timer log is not cut farther back: %s", error)
    for position, unit in dropped:
        slot = wheel.get(unit.slot_ms)
        if slot is not None and slot.last == position:
            waiting = slot.waiting + (1 if unit.magic & MAGIC_DELETE else -1)
            left = Slot(slot.first, unit.previous, waiting, slot.magic)
            wheel.put(unit.slot_ms, None if unit.previous == NO_POSITION else left)
    if dropped:
        timer_log.truncate_to(dropped[-1][0])
    return dropped


def last_unit(timer_log: TimerLog) -> TimerUnit | None:
    """Return the last unit of the timer log, also if a blank follows it; None if there is none."""
    last = None
    for _, unit in timer_log.units_from(max(timer_log.min_position, timer_log.end - UNIT_SIZE)):
        last = unit
    return last
