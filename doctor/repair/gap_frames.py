"""Divides a gap inside a log among the records that replace lost ones.

gap        |.......................................|
queues     |      | lost A   | lost B |            |    units that still point into the gap
frames     |filler| A        | B      | filler     |    each at least as large as the smallest record
"""

from dledger.log.entry import HEADER_SIZE, encode_entry
from doctor.check.unit_check import open_index_units
from doctor.read.directory import StoreLayout
from doctor.repair.placeholders import FILLER_SIZE_MIN, Lost, filler, placeholder, placeholder_size_min

Frames = list[tuple[int, bytes]]
"""Physical offset (in DLedger: the entry's position), and the bytes to write there."""


def fill_records(start: int, end: int, inside: list[Lost], timestamp: int) -> Frames | None:
    """Return records that fill the physical range of a classic log; None where not even one fits."""
    known = _fitting(start, end, inside)
    if not known:
        return [(start, filler(start, end - start, timestamp))] if end - start >= FILLER_SIZE_MIN else None
    frames: Frames = []
    at = start
    for number, item in enumerate(known):
        stop = known[number + 1].physical_offset if number + 1 < len(known) else end
        if item.physical_offset - at >= FILLER_SIZE_MIN:
            frames.append((at, filler(at, item.physical_offset - at, timestamp)))
            at = item.physical_offset
        own_end = item.physical_offset + item.size
        size = (own_end if stop - own_end >= FILLER_SIZE_MIN else stop) - at
        frames.append((at, placeholder(_moved(item, at), size, timestamp)))
        at += size
    if at < end:
        frames.append((at, filler(at, end - at, timestamp)))
    return frames


def fill_entries(
    old: StoreLayout, start: int, end: int, indexes: range, term: int, inside: list[Lost], timestamp: int
) -> Frames | None:
    """Return entries with these indexes that fill a range of a DLedger log; None where they do not fit."""
    places = _unit_places(old, start, end, indexes) or _equal_places(start, end, len(indexes))
    if not places:
        return None
    frames: Frames = []
    for index, (position, size) in zip(indexes, places, strict=True):
        physical, record_size = position + HEADER_SIZE, size - HEADER_SIZE
        known = next((item for item in inside if item.physical_offset == physical), None)
        if known is not None and record_size >= placeholder_size_min(known.queue.topic):
            record = placeholder(known, record_size, timestamp)
        else:
            record = filler(physical, record_size, timestamp)
        frames.append((position, encode_entry(index, term, position, record, body_crc=0)))
    return frames


def _fitting(start: int, end: int, inside: list[Lost]) -> list[Lost]:
    """Return the lost records that lie in the gap without overlapping."""
    known: list[Lost] = []
    at = start
    for item in inside:
        fits = item.size >= placeholder_size_min(item.queue.topic) and item.physical_offset + item.size <= end
        if fits and item.physical_offset >= at:
            known.append(item)
            at = item.physical_offset + item.size
    return known


def _moved(item: Lost, physical: int) -> Lost:
    return Lost(physical, item.size, item.queue, item.queue_offset)


def _unit_places(old: StoreLayout, start: int, end: int, indexes: range) -> list[tuple[int, int]]:
    """Return the places that DLedger's own index gives for the entries, if they fill the gap."""
    units = open_index_units(old).read(indexes.start, len(indexes))
    places = [(int(unit["position"]), int(unit["size"])) for unit in units]
    at = start
    for position, size in places:
        if position != at or size < HEADER_SIZE + FILLER_SIZE_MIN:
            return []
        at += size
    return places if at == end else []


def _equal_places(start: int, end: int, count: int) -> list[tuple[int, int]]:
    """Return places for the smallest possible entries; the last one takes the rest."""
    smallest = HEADER_SIZE + FILLER_SIZE_MIN
    if not count or end - start < count * smallest:
        return []
    places = [(start + number * smallest, smallest) for number in range(count)]
    position = places[-1][0]
    return [*places[:-1], (position, end - position)]
