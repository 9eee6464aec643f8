"""The side file of a repair: the bytes that were removed from the log, so that nothing is lost.

One JSON object a line: `file` (relative to the store), `offset` and `length` (bytes in it), `kind` (cut: it is zeros
now; replaced: a placeholder is there), `detail`, `data` (the bytes, base64). Long ones take several lines.
"""

import base64
import json
import os
from pathlib import Path
from typing import TextIO

from doctor.read.raw_file import FileWindow

_PIECE_BYTES = 1 << 20


class SideFile:
    """Created when the first bytes are removed.

    Attributes:
        path: of the file, which does not exist while nothing was removed.
        cut_bytes: number of bytes removed so far.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut_bytes = 0
        self._file: TextIO | None = None

    @property
    def is_used(self) -> bool:
        """Whether anything was removed."""
        return self.cut_bytes > 0

    def keep(self, name: str, path: Path, start: int, end: int, kind: str, detail: str) -> None:
        """Write the bytes `[start, end)` of a file; durable when `close` returns."""
        if self._file is None:
            self._file = self.path.open("x", encoding="utf-8")
        with FileWindow(path) as window:
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
