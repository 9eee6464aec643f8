r"""The state of the controllers in one file, from which a restart begins and which a late member is sent.

    "ledgermq controller 1\n", CRC-32 of the rest as 8 hexadecimal digits, "\n", JSON

The JSON holds the state and the last two entries that it contains: behind them the journal goes on.
"""

import base64
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from ha.controller.errors import QuorumFileError

_HEAD: Final = b"ledgermq controller 1\n"
_CRC_LENGTH: Final = 9

Entry = tuple[bytes, int, int]
"""A command as PySyncObj wrote it, its index, its term."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the file holds.

    Attributes:
        state: of the state machine after `last`.
        previous: the entry before the last.
        last: entry that the state contains.
    """

    state: bytes
    previous: Entry
    last: Entry


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the file's content."""
    body = orjson.dumps(
        {
            "state": base64.b64encode(snapshot.state).decode(),
            "entries": [[base64.b64encode(one[0]).decode(), *one[1:]] for one in (snapshot.previous, snapshot.last)],
        }
    )
    return _HEAD + b"%08x\n" % zlib.crc32(body) + body


def read_snapshot(path: Path) -> Snapshot | None:
    """Read the snapshot in a file; return None if there is no file.

    Raises:
        QuorumFileError: it is damaged.
        OSError: it cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    crc, body = data[len(_HEAD) : len(_HEAD) + _CRC_LENGTH], data[len(_HEAD) + _CRC_LENGTH :]
    if not data.startswith(_HEAD):
        raise QuorumFileError(path, "is no snapshot of a controller, or of another version")
    if crc != b"%08x\n" % zlib.crc32(body):
        raise QuorumFileError(path, f"is damaged: the checksum of its {len(body)} bytes does not fit")
    value = orjson.loads(body)
    previous, last = ((base64.b64decode(one[0]), one[1], one[2]) for one in value["entries"])
    return Snapshot(base64.b64decode(value["state"]), previous, last)
