"""Small files that are written whole: the one before is kept as `.bak`, and a crash leaves one of the two readable.

    NAME.new      written, synced
    NAME.bak.new  becomes another name of the present NAME
    NAME          is replaced by NAME.new in one step
    NAME.bak      is replaced by NAME.bak.new in one step; then the directory is synced

At no moment are NAME and NAME.bak the same file, so that one bad sector does not damage both.

RocketMQ reads the `.bak`, too, when the main file is missing or broken, so either program can take over at any point.

Source: apache/rocketmq `common/.../ConfigManager.java`, `common/.../MixAll.java` (string2File).
"""

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ledgermq.durable_files import write_synced
from ledgermq.remoting.codec.java_json import load_json
from ledgermq.remoting.errors import JsonError
from store.errors import StoreFormatError
from store.files.disk import sync_directory
from store.files.folders import make_folder

log = logging.getLogger(__name__)

_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Loaded(Generic[_V]):
    """The value that was read.

    Attributes:
        is_older: the main file was missing or broken, and this is what the `.bak` holds.
    """

    value: _V
    is_older: bool


def write_config(path: Path, content: bytes) -> None:
    """Replace the file, or make it, with its folder; durable on return. Blocks for flushes: not for the event loop.

    Raises:
        OSError, DiskFullError, DiskFailedError: the disk refused; the file is the old or the new one.
    """
    make_folder(path.parent)
    fresh, backup = path.with_name(path.name + ".new"), path.with_name(path.name + ".bak")
    write_synced(fresh, content)
    second_name = _second_name(path, backup) if path.exists() else None
    fresh.replace(path)
    if second_name is not None:
        second_name.replace(backup)
    sync_directory(path.parent)


def read_config(path: Path, decode: Callable[[Mapping[str, Any]], _V]) -> Loaded[_V] | None:
    """Read the JSON object of the file, or else of its `.bak`, as `decode` converts it; None if neither exists.

    `decode` raises ValueError, KeyError, TypeError or AttributeError for an object that it cannot read.

    Raises:
        StoreFormatError: what is there cannot be read; names the file and the place in it.
    """
    fault: StoreFormatError | None = None
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            value = _read(candidate, decode)
        except FileNotFoundError:
            continue
        except StoreFormatError as error:
            fault = fault or error
            continue
        if candidate is path:
            return Loaded(value, is_older=False)
        log.warning("%s; %s is read instead", fault or f"{path} is missing", candidate)
        return Loaded(value, is_older=True)
    if fault is not None:
        raise fault
    return None


def _second_name(path: Path, backup: Path) -> Path | None:
    """Make a second name of the file and return it; without hard links the file is renamed to `backup` at once.

    Then there is no file `path` for a moment, and None is returned.
    """
    other_name = backup.with_name(backup.name + ".new")
    with contextlib.suppress(FileNotFoundError):
        other_name.unlink()
    try:
        other_name.hardlink_to(path)
    except OSError:
        path.replace(backup)
        return None
    return other_name


def _read(path: Path, decode: Callable[[Mapping[str, Any]], _V]) -> _V:
    content = path.read_bytes()
    try:
        value = load_json(content)
    except JsonError as error:
        raise StoreFormatError(path, f"{len(content)} bytes: {error}") from error
    if not isinstance(value, Mapping):
        raise StoreFormatError(path, f"holds {type(value).__name__} {str(value)[:40]!r}, not a JSON object")
    try:
        return decode(value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreFormatError(path, f"holds a table that cannot be read: {error!r}") from error
