"""Offsets in broadcasting, where each member gets all messages and keeps its own offsets in a file.

    ~/.rocketmq_offsets/<client id>/<group>/offsets.json      {"offsetTable":{{"brokerName":"b",…}:42}}

The file has RocketMQ's path and format, so that a Java and a Python member of the same name can replace each other.

Source: apache/rocketmq `client/.../consumer/store/LocalFileOffsetStore.java`.
"""

from pathlib import Path
from typing import Final

from ledgermq.client.core.calls import Calls
from ledgermq.client.errors import LedgerMQError, UndecodableError
from ledgermq.client.group.queue_offsets import QueueOffsets
from ledgermq.remoting.codec.java_json import queue_map
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.errors import JsonError
from ledgermq.remoting.route import MessageQueue, parse_queue

FILE_NAME: Final = "offsets.json"
DEFAULT_DIR: Final = Path("~/.rocketmq_offsets")


class LocalOffsets(QueueOffsets):
    """The offsets of one member, kept in a file; the ends of queues are asked of their leaders.

    Args:
        folder: folder of the file; made at the first write.
        calls: see `QueueOffsets`.

    Raises:
        UndecodableError: the file exists but cannot be read, and neither can its older copy.
    """

    def __init__(self, folder: Path, calls: Calls) -> None:
        super().__init__(calls)
        self._path = folder / FILE_NAME
        self._older = folder / (FILE_NAME + ".bak")
        self._table = self._load()

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return the next offset to read."""
        return self._table.get(queue)

    async def commit(self, group: str, queue: MessageQueue, offset: int, *, deadline_s: float | None = None) -> None:
        """Store the offset to continue at after a restart.

        Raises:
            LedgerMQError: the file cannot be written.
        """
        if self._table.get(queue) == offset:
            return
        self._table[queue] = offset
        try:
            self._save()
        except OSError as error:
            raise LedgerMQError(f"offsets cannot be written to {self._path}: {error}") from error

    def _load(self) -> dict[MessageQueue, int]:
        try:
            if self._path.exists():
                return _read(self._path)
        except UndecodableError:
            if not self._older.exists():
                raise
        return _read(self._older)  # the only file, if a program died between the two renames of `_save`

    def _save(self) -> None:
        """Replace the file as a whole; the previous one is kept as `.bak`."""
        entries = ((queue, offset) for queue, offset in self._table.items())
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".tmp")
        fresh.write_bytes(b'{"offsetTable":' + queue_map(entries) + b"}")
        if self._path.exists():
            self._path.replace(self._older)
        fresh.replace(self._path)


def parse_queue_table(document: object) -> dict[MessageQueue, int]:
    """Parse a map of offsets by queue, as `loads` returns it: the keys are JSON text.

    Raises:
        JsonError, KeyError, TypeError, ValueError, AttributeError: not that shape.
    """
    if not isinstance(document, dict):
        raise TypeError(f"a map of offsets is {type(document).__name__}")
    return {parse_queue(loads(key)): int(offset) for key, offset in document.items()}


def _read(path: Path) -> dict[MessageQueue, int]:
    try:
        return parse_queue_table(loads(path.read_bytes())["offsetTable"])
    except FileNotFoundError:
        return {}
    except (JsonError, KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise UndecodableError(f"{path}: offsets cannot be read: {error!r}") from error
