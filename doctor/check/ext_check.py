"""Checks the extensions of queue units: filter bit maps in files beside the queue, with the tags code they replace.

    unit 20 bytes   physical offset, size, ADDRESS          ADDRESS = position in the extension's files + Long.MIN_VALUE
    extension       size i16, tags code i64, store time i64, bit map size i16, bit map        at least 20 bytes

Source: apache/rocketmq `store/ConsumeQueueExt.java` (5.3.3).
"""

import os
from collections.abc import Iterator
from struct import Struct
from typing import Final

from doctor.check.columns import Ints, QueueName
from doctor.check.findings import Fault
from doctor.read.directory import StoreLayout, offset_files
from doctor.read.unit_files import UnitFiles

EXT_ADDRESS: Final = -(1 << 63)
_UNIT: Final = Struct(">hqqh")
_IS_EXT: Final = -(1 << 31)


def ext_faults(
    layout: StoreLayout, name: QueueName, units: UnitFiles, numbers: Ints, found: Ints, codes: Ints
) -> Iterator[Fault]:
    """Yield a fault for each of the units `numbers` whose code `found` is an address with another tags code."""
    rows = [row for row in range(len(numbers)) if found[row] < _IS_EXT] if (found < _IS_EXT).any() else []
    if not rows:
        return
    folder = layout.root / "consumequeue_ext" / os.fsdecode(name.topic) / str(name.queue_id)
    files, _ = offset_files(folder)
    pieces = {file.start: file.path.read_bytes() for file in files}
    for row in rows:
        address = int(found[row]) - EXT_ADDRESS
        start = max((start for start in pieces if start <= address), default=-1)
        data = pieces.get(start, b"")
        at = address - start
        detail = f"of queue offset {int(numbers[row])} of {name}"
        if start < 0 or at + _UNIT.size > len(data):
            path, position = units.place(int(numbers[row]))
            yield Fault(layout.name(path), position, "ext-wrong", f"the extension {detail} is missing")
        elif _UNIT.unpack_from(data, at)[0] < _UNIT.size or _UNIT.unpack_from(data, at)[1] != codes[row]:
            place = layout.name(folder / f"{start:020d}")
            yield Fault(place, at, "ext-wrong", f"the extension {detail} has another tags code")
