"""The side file of a repair: what was taken out of the log, so that nothing is ever gone.

One JSON object a line: `file` (relative to the store), `offset` and `length` (bytes in it), `kind` (cut: it is zeros
now; replaced: a placeholder lies there), `detail`, `data` (the bytes, base64). Long ones take several lines.
"""

import base64
import json
import os
from pathlib import Path
from typing import TextIO

from doctor.read.raw_file import Window

_PIECE_BYTES = 1 << 20


class SideFile:
    """Written from the first thing taken out on.

    Attributes:
        path: where; there is no file while nothing was taken out.
        cut_bytes: taken out so far.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut_bytes = 0
        self._file: TextIO | None = None

    @property
    def is_used(self) -> bool:
        """Whether anything was taken out."""
        return self.cut_bytes > 0

    def keep(self, name: str, path: Path, start: int, end: int, kind: str, detail: str) -> None:
        """Write the bytes `[start, end)` of a file down; durable when `close` returns."""
        if self._file is None:
            self._file = self.path.open("x", encoding="utf-8")
        with Window(path) as window:
            for at in range(start, end, _PIECE_BYTES):
                data = window.read(at, min(_PIECE_BYTES, end - at))
                line = {"file": name, "offset": at, "length": len(data), "kind": kind, "detail": detail}
                line["data"] = base64.b64encode(data).decode()
                self._file.write(json.dumps(line) + "\n")
                self.cut_bytes += len(data)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close it."""
        if self._file is not None:
            self._file.close()
