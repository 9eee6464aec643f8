"""Extensions of consume queues as RocketMQ writes them, for the tests of reading them."""

import struct
from pathlib import Path

from ledgermq.message.queue_unit import UNIT, UNIT_SIZE
from ledgermq.message.record import dispatch_fields
from store.queues.consume_queue import BLANK_SIZE

HEAD = struct.Struct(">hqqh")
END_OF_FILE = b"\xff\xff"
END_OF_FILE_ROOM = 4
"""Bytes at the end of a file that no unit may use."""


def encode_extension(tags_code: int, store_timestamp: int, bit_map: bytes = b"") -> bytes:
    return HEAD.pack(HEAD.size + len(bit_map), tags_code, store_timestamp, len(bit_map)) + bit_map


def extension_address(position: int) -> int:
    return position - (1 << 63)


class JavaExtension:
    """The files of one queue's extension; what is put is on disk at once."""

    def __init__(self, directory: Path, file_bytes: int) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        self.end = 0

    def put(self, tags_code: int, store_timestamp: int, bit_map: bytes = b"") -> int:
        """Append a unit; return its address."""
        unit = encode_extension(tags_code, store_timestamp, bit_map)
        left = self.file_bytes - self.end % self.file_bytes
        if len(unit) > left - END_OF_FILE_ROOM:
            self._write(self.end, END_OF_FILE)
            self.end += left
        position = self.end
        self._write(position, unit)
        self.end += len(unit)
        return extension_address(position)

    def _write(self, position: int, data: bytes) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        start = position - position % self.file_bytes
        path = self.directory / f"{start:020d}"
        if not path.exists():
            path.write_bytes(bytes(self.file_bytes))
        with path.open("r+b") as file:
            file.seek(position - start)
            file.write(data)


def extend_queues(root: Path, file_bytes: int) -> None:
    """Make of a closed store one whose plain queues RocketMQ kept with `enableConsumeQueueExt=true`."""
    log = {int(path.name): memoryview(path.read_bytes()) for path in (root / "commitlog").iterdir()}
    for folder in (root / "consumequeue").glob("*/*"):
        extension = JavaExtension(root / "consumequeue_ext" / folder.parent.name / folder.name, file_bytes)
        for path in sorted(folder.iterdir()):
            units = bytearray(path.read_bytes())
            for at in range(0, len(units), UNIT_SIZE):
                offset, size, code = UNIT.unpack_from(units, at)
                if size in (0, BLANK_SIZE):
                    continue
                start = max(start for start in log if start <= offset)
                stored_ms = dispatch_fields(log[start][offset - start : offset - start + size], 0)[5]
                UNIT.pack_into(units, at, offset, size, extension.put(code, stored_ms, bytes(offset % 3)))
            path.write_bytes(units)
