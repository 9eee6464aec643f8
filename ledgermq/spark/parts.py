"""Parts of a log: how the work is divided, and the frames of one part, block by block.

    file 0 | part | part | part |  file 1 | part | part ...|     a part begins at a sound frame and ends where the
             |                                                   next one begins
             '--> block, block, damage, block                    some MiB of whole records; or bytes that are none

A plan is a snapshot: what is appended behind it is not read. Workers are functions of a part alone.
"""

import contextlib
import ctypes
import functools
import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from ledgermq.message.crc import CRC_MASK, crc32
from ledgermq.message.entry_header import FILLER, FILLER_SIZE, HEADER_SIZE
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.frames import (
    ENTRY,
    HEAD,
    HEAD_SIZE,
    Bools,
    Bytes,
    Ints,
    Stop,
    Structs,
    entry_chain,
    framed_records,
    is_common,
    record_chain,
    structs_at,
)
from ledgermq.message.layout import check_record
from ledgermq.spark.errors import DamagedLogError, PipelineError
from ledgermq.spark.log_files import DLEDGER, LogFile, StoreDirectory, next_frame

SPLIT_BYTES: Final = 64 << 20
_BLOCK_BYTES: Final = 4 << 20
_PREFIX_BYTES: Final = 8
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Of glibc's `mallopt`."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """Bytes `[begin, end)` of one log file, positions from its first byte; a frame begins at `begin`.

    Attributes:
        end: the next part begins there; None: wherever the file's records end.
        is_tail: the file is the log's last one, where zeros may follow the records.
    """

    file: LogFile
    kind: str
    begin: int
    end: int | None
    is_tail: bool


@dataclass(slots=True)
class Block:
    """Whole records of a part, in order.

    Attributes:
        data: bytes of the log; positions below count from its first one.
        base: physical offset of `data[0]`.
        starts, ends: of each record.
        heads: as if each were a common record (V1, both hosts IPv4).
        tails: behind each body; valid for common records.
        common: which records are common.
        faults: by row, why a record's content is damaged, though its frame is whole.
    """

    data: Bytes
    base: int
    starts: Ints
    ends: Ints
    heads: Structs
    tails: Ints
    common: Bools
    faults: dict[int, str]

    def record(self, row: int) -> bytes:
        """Return the bytes of one record."""
        return self.data[int(self.starts[row]) : int(self.ends[row])].tobytes()


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes `[physical_offset, physical_offset + length)` of a log that are no frames."""

    path: str
    physical_offset: int
    length: int
    detail: str


@functools.cache
def prepare_worker() -> None:
    """Prepare a worker process, once, so that it works faster.

    Its garbage collector ignores the many objects of imported modules, and the process keeps up to 32 MiB of freed
    memory: a block in new pages from the kernel costs as much as two copies of it.
    """
    gc.freeze()
    with contextlib.suppress(AttributeError, OSError):  # not glibc
        allocator = ctypes.CDLL(None)
        allocator.mallopt(_MMAP_THRESHOLD, 2 * _BLOCK_BYTES)
        allocator.mallopt(_TRIM_THRESHOLD, 8 * _BLOCK_BYTES)


def plan_parts(store: StoreDirectory, split_bytes: int = SPLIT_BYTES) -> list[LogPart]:
    """Divide a log into parts of about `split_bytes`; 0 makes one part of each file.

    Where the store is live, the last part ends at the last whole record of this moment.

    Raises:
        PipelineError: a file vanished.
    """
    parts: list[LogPart] = []
    for file in store.files:
        is_tail = file is store.files[-1]
        with _opened(file.path) as descriptor:
            begins = _begins(descriptor, file, store.kind, split_bytes)
            for begin, end in zip(begins, [*begins[1:], None], strict=True):
                if end is None and is_tail and store.is_live:
                    end = _end_of_frames(descriptor, file, store.kind, begin)
                if end != begin:
                    parts.append(LogPart(file, store.kind, begin, end, is_tail))
    return parts


def _begins(descriptor: int, file: LogFile, kind: str, split_bytes: int) -> list[int]:
    begins = [0]
    while split_bytes and (wanted := begins[-1] + split_bytes) < file.length:
        begin = next_frame(descriptor, file, kind, wanted)
        if begin >= file.length:
            break
        begins.append(begin)
    return begins


def _end_of_frames(descriptor: int, file: LogFile, kind: str, begin: int) -> int:
    part = LogPart(file, kind, begin, None, is_tail=True)
    end = begin
    for found in _frames(descriptor, part, _BLOCK_BYTES, verify=False):
        if isinstance(found, Damage):
            break
        end = found.base - file.start + int(found.ends[-1])
    return end


class _opened:  # noqa: N801 - reads as a function
    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> int:
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise PipelineError(f"{self._path} is gone; a broker deleted it after the plan was made") from None
        except OSError as error:
            raise PipelineError(f"{self._path}: {error.strerror or error}") from None
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def read_part(part: LogPart, *, verify: bool, block_bytes: int = _BLOCK_BYTES) -> Iterator[Block | Damage]:
    """Yield what lies in a part, in order, in blocks of up to `block_bytes`, or of one record that is larger.

    `verify` compares the body of each record with its CRC.

    Raises:
        DamagedLogError: the chain of frames does not end where the next part begins.
        PipelineError: the file is gone, or the disk cannot read it.
    """
    with _opened(part.file.path) as descriptor:
        try:
            yield from _frames(descriptor, part, block_bytes, verify=verify)
        except OSError as error:
            raise PipelineError(f"{part.file.path}: {error.strerror or error}") from None


def _frames(descriptor: int, part: LogPart, usual_bytes: int, *, verify: bool) -> Iterator[Block | Damage]:
    file, position, block_bytes = part.file, part.begin, usual_bytes
    limit = file.length if part.end is None else part.end
    while position < limit:
        left = file.length - position
        data = _read(descriptor, min(block_bytes, left), position)
        block, taken, stop = _block(part.kind, data, file.start + position, (limit - position, left), verify=verify)
        if block is not None:
            yield block
        position += taken
        if stop is Stop.PADDING and _padding_bytes(descriptor, part.kind, position) == file.length - position:
            break
        if stop is Stop.WINDOW and taken:
            block_bytes = usual_bytes
        elif stop is Stop.WINDOW and block_bytes < left:
            block_bytes *= 4  # one record is larger than the window
        elif stop is Stop.WINDOW and left < _PREFIX_BYTES:
            return
        else:
            damage = _damage(descriptor, part, position)
            if damage is None:
                return
            yield damage
            position += damage.length
    if part.end is not None and position != part.end:
        detail = f"frames end at {file.start + position}, and not where the next part begins; read with splitBytes=0"
        raise DamagedLogError(file.path, file.start + part.end, detail)


def _read(descriptor: int, size: int, position: int) -> memoryview:
    """Return up to `size` bytes of a file, in memory of Arrow's: Python's own does not keep what was freed."""
    buffer = memoryview(pa.allocate_buffer(size))
    return buffer[: os.preadv(descriptor, [buffer], position)]


def _padding_bytes(descriptor: int, kind: str, position: int) -> int:
    """Return how many bytes the padding at `position` says are left in the file."""
    first, second = FILLER.unpack(os.pread(descriptor, FILLER_SIZE, position))
    return int(second if kind == DLEDGER else first)


def _block(
    kind: str, view: memoryview, base: int, room: tuple[int, int], *, verify: bool
) -> tuple[Block | None, int, Stop]:
    """Return the whole records at the start of `view`, the bytes they take, and what follows them.

    `room` is how many bytes from here frames may begin in, and how many the file has.
    """
    window_end = min(max(len(view) - _PREFIX_BYTES + 1, 0), room[0])
    follow = entry_chain if kind == DLEDGER else record_chain
    chain = follow(view, 0, window_end, room[1])
    starts, ends = chain.starts, chain.ends
    count, stop = len(starts), chain.stop
    whole = int(np.searchsorted(ends, len(view), "right"))
    if whole < count:
        count, stop = whole, Stop.WINDOW
    numbers = np.frombuffer(view, np.uint8)
    starts, ends = starts[:count], ends[:count]
    heads = structs_at(numbers, np.minimum(starts, max(len(view) - HEAD_SIZE, 0)), HEAD)
    common = is_common(heads) & (heads["size"] == ends - starts)
    framed, tails = framed_records(numbers, starts, ends, heads, common, base)
    for row in np.flatnonzero(~common).tolist():
        framed[row] = _is_framed(view, int(starts[row]), int(ends[row]), base)
    if kind == DLEDGER:
        framed &= _are_entries(numbers, starts, ends, base)
    if not framed.all():
        count, stop = int(framed.argmin()), Stop.BAD
    if not count:
        return None, 0, stop
    block = Block(
        numbers, base, starts[:count], ends[:count], heads[:count], tails[:count], common[:count], {}
    )  # fmt: skip
    if verify:
        block.faults = _crc_faults(view, block)
    return block, int(ends[count - 1]), stop


def block_of_records(data: bytes) -> Block:
    """Return a block of consecutive records from any places of a log, as in answers to pulls.

    Raises:
        CorruptRecordError: the bytes are not whole, sound records; the position is that in `data`.
    """
    numbers = np.frombuffer(data, np.uint8)
    chain = record_chain(memoryview(data), 0, len(data), len(data))
    starts, ends = chain.starts, chain.ends
    if chain.end != len(data):
        raise CorruptRecordError(chain.end, f"{len(data) - chain.end} bytes are no whole record")
    heads = structs_at(numbers, np.minimum(starts, max(len(data) - HEAD_SIZE, 0)), HEAD)
    common = is_common(heads) & (heads["size"] == ends - starts)
    framed, tails = framed_records(numbers, starts, ends, heads, common, None)
    bad = common & ~framed
    block = Block(numbers, 0, starts, ends, heads, tails, common & framed, {})
    for row in np.flatnonzero(~block.common).tolist():
        bad[row] = check_record(data, int(starts[row]), int(ends[row]), check_crc=False) != ends[row] - starts[row]
    block.faults = _crc_faults(memoryview(data), block)
    for row in np.flatnonzero(bad).tolist():
        raise CorruptRecordError(int(starts[row]), "its lengths do not add up")
    for row, detail in block.faults.items():
        raise CorruptRecordError(int(starts[row]), detail)
    return block


def _are_entries(data: Bytes, starts: Ints, ends: Ints, base: int) -> Bools:
    """Return which records follow a header that says their size and its own place, and come after one another."""
    headers = structs_at(data, starts - HEADER_SIZE, ENTRY)
    fits: Bools = (headers["position"] == starts - HEADER_SIZE + base) & (headers["body"] == ends - starts)
    index = headers["index"]
    fits[1:] &= (index[1:] == index[:-1] + 1) & (headers["term"][1:] >= headers["term"][:-1])
    return fits


def _is_framed(data: memoryview, start: int, end: int, base: int) -> bool:
    try:
        size = check_record(data, start, end, check_crc=False)
    except CorruptRecordError:
        return False
    physical = int.from_bytes(data[start + 28 : start + 36], "big", signed=True)
    return size == end - start and physical == base + start


def _crc_faults(view: memoryview, block: Block) -> dict[int, str]:
    begins = np.where(block.common, block.starts + HEAD_SIZE, 0).tolist()
    ends = np.where(block.common, block.tails, 0).tolist()
    found = np.array([crc32(view[begin:end]) for begin, end in zip(begins, ends, strict=True)], np.int64) & CRC_MASK
    wrong = block.common & (found != block.heads["crc"]) & (block.heads["body"] != 0)
    expected = block.heads["crc"]
    faults = {int(row): f"body CRC {found[row]}, the record says {expected[row]}" for row in np.flatnonzero(wrong)}
    for row in np.flatnonzero(~block.common).tolist():
        record = block.record(row)
        try:
            check_record(record, 0, len(record), check_crc=True)
        except CorruptRecordError as error:
            faults[row] = error.detail
    return faults


def _damage(descriptor: int, part: LogPart, position: int) -> Damage | None:
    """Return the damaged bytes from `position` to the next frame of the part; None if only the log's zeros follow."""
    file = part.file
    limit = file.length if part.end is None else part.end
    found = min(next_frame(descriptor, file, part.kind, position + 1), limit)
    if found < limit or part.end is not None:
        detail = f"{found - position} bytes are no records; records follow"
        return Damage(file.path, file.start + position, found - position, detail)
    used = _used_end(descriptor, file, position)
    if part.is_tail:
        torn = f"torn tail: {used - position} bytes behind the last record are no record"
        return Damage(file.path, file.start + position, used - position, torn) if used > position else None
    detail = f"no record and no padding follows, though the log goes on in the next file ({used - position} bytes used)"
    return Damage(file.path, file.start + position, limit - position, detail)


def _used_end(descriptor: int, file: LogFile, position: int) -> int:
    """Return the end of the last nonzero byte at or after `position`; `position` if all are zero."""
    used = position
    while position < file.length:
        try:
            position = max(os.lseek(descriptor, position, os.SEEK_DATA), position)
        except OSError:
            break  # nothing but a hole
        chunk = os.pread(descriptor, _BLOCK_BYTES, position)
        if not chunk:
            break
        rest = chunk.rstrip(b"\0")
        if rest:
            used = position + len(rest)
        position += len(chunk)
    return used
