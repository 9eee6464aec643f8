"""Replacement of old segments by compacted ones, in steps; a crash may come after each step.

    compactionLog/T/0/compacting/   new files and a manifest, all of it durable          crash: thrown away
    compactionLog/T/0/replacing/    the same folder renamed: the replacement has begun     crash: finished
        1. old log files whose name no new one has are deleted   (all new ones are still in the folder)
        2. the new log files move to their place
        3. the same with the files of units
        4. the manifest and the folder are removed

The manifest says which names are new and where the untouched segments begin, so every step can be done again.
RocketMQ renames the old files to `.delete` first and can lose both; what it left half done is undone or finished, too.

Source: apache/rocketmq `store/.../kv/CompactionLog.java` (replaceFiles, replaceCqFiles, 5.3.3).
"""

import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ledgermq.durable_files import write_synced
from store.errors import StoreFormatError
from store.files.folders import open_folder
from store.files.mapped_file import FILE_NAME_DIGITS, file_name, sync_directory

log = logging.getLogger(__name__)

COMPACTING: Final = "compacting"
REPLACING: Final = "replacing"
_MANIFEST: Final = "manifest.json"
_DELETED: Final = ".delete"


@dataclass(frozen=True, slots=True)
class QueueFolders:
    """The two folders of one queue."""

    log: Path
    units: Path

    @property
    def compacting(self) -> "QueueFolders":
        """The folders in which new segments are made."""
        return QueueFolders(self.log / COMPACTING, self.units / COMPACTING)

    def make(self) -> None:
        """Make both folders, durably."""
        open_folder(self.log)
        open_folder(self.units)

    def names(self) -> list[str]:
        """Return the names of the log files, in order.

        Raises:
            StoreFormatError: a file that has another name.
        """
        paths = sorted(path for path in self.log.iterdir() if not path.is_dir())
        for path in paths:
            if not _is_name(path.name):
                raise StoreFormatError(path, f"is not named by a start offset of {FILE_NAME_DIGITS} digits")
        return [path.name for path in paths]


def begin(place: QueueFolders) -> QueueFolders:
    """Make and return an empty place for new segments."""
    for directory in (place.compacting.log, place.compacting.units):
        shutil.rmtree(directory, ignore_errors=True)
    place.compacting.make()
    return place.compacting


def replace(place: QueueFolders, names: list[str], kept_from: int) -> None:
    """Put the compacted segments `names` in the place of those that start below `kept_from`.

    The files of `place.compacting` are durable already.

    Raises:
        OSError, DiskFailedError: done in part; `recover` goes on with it.
    """
    if names and int(names[-1]) >= kept_from:
        raise StoreFormatError(
            place.compacting.log / names[-1], f"reaches past {kept_from}, where the segments kept begin"
        )
    write_synced(place.compacting.log / _MANIFEST, json.dumps({"names": names, "keptFrom": kept_from}).encode())
    sync_directory(place.compacting.units)
    sync_directory(place.compacting.log)
    place.compacting.log.rename(place.log / REPLACING)
    sync_directory(place.log)
    _finish(place)


def recover(place: QueueFolders) -> None:
    """Finish a replacement that had begun; delete new segments whose replacement had not.

    Raises:
        StoreFormatError: its manifest cannot be read.
        OSError, DiskFailedError: the disk refuses.
    """
    _undo_java(place)
    if (place.log / REPLACING).is_dir():
        log.warning("%s: finished a replacement of segments that was interrupted", place.log)
        _finish(place)
    for directory in (place.compacting.log, place.compacting.units):
        shutil.rmtree(directory, ignore_errors=True)
    known = set(place.names())
    for path in [path for path in place.units.iterdir() if not path.is_dir() and path.name not in known]:
        path.unlink()


def _finish(place: QueueFolders) -> None:
    source = place.log / REPLACING
    manifest = source / _MANIFEST
    if manifest.exists():  # else the crash came in the last step
        names, kept_from = _read_manifest(manifest)
        for path in (place.log / name for name in place.names()):
            if int(path.name) < kept_from and path.name not in names:
                path.unlink()
        sync_directory(place.log)
        _move(source, place.log, names)
        for path in place.units.iterdir():
            if _is_name(path.name) and int(path.name) < kept_from and path.name not in names:
                path.unlink()
        _move(place.compacting.units, place.units, names)
        manifest.unlink()
    shutil.rmtree(place.compacting.units, ignore_errors=True)
    source.rmdir()
    sync_directory(place.log)


def _move(source: Path, target: Path, names: list[str]) -> None:
    for name in names:
        if (source / name).exists():
            (source / name).replace(target / name)
    sync_directory(target)


def _read_manifest(path: Path) -> tuple[list[str], int]:
    try:
        value = json.loads(path.read_bytes())
        names, kept_from = [file_name(int(name)) for name in value["names"]], int(value["keptFrom"])
    except (ValueError, TypeError, KeyError) as error:
        raise StoreFormatError(path, f"is not a list of compacted files: {error!r}") from error
    return names, kept_from


def _undo_java(place: QueueFolders) -> None:
    """Undo a replacement that a Java broker did not finish, in which all old files exist under new names."""
    for directory in (place.log, place.units):
        renamed = sorted(directory.glob(f"*{_DELETED}"))
        waiting = directory / COMPACTING
        is_undone = waiting.is_dir() and any(waiting.iterdir())
        for path in renamed:
            log.warning(
                "%s: %s",
                path,
                "restored, its replacement was not finished" if is_undone else "deleted, it has been replaced",
            )
            if is_undone:
                path.replace(path.with_suffix(""))
            else:
                path.unlink()


def _is_name(name: str) -> bool:
    return len(name) == FILE_NAME_DIGITS and name.isascii() and name.isdigit()
