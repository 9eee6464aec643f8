"""The replicated tables on disk, so that a restart replays only the log's tail.

    config/topics.json, subscriptionGroup.json, consumerOffset.json   RocketMQ's own files and shapes
    config/ledgermqState.json                                         how far the log is in them (written last)

The tables may be newer than the offset beside them, never older: changes are absolute, so replaying some again is
harmless. Each file is written whole beside its place, flushed, and renamed; the one before is kept as `.bak`, which is
read when the main file is missing or broken.

Source: apache/rocketmq `common/.../ConfigManager.java`, `broker/.../topic/TopicConfigManager.java` and its peers.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from broker.state import ReplicatedState, StateFormatError
from ledgermq.remoting.errors import JsonError
from ledgermq.remoting.lenient_json import loads as lenient_loads
from store.errors import StoreFormatError

TOPICS_FILE = "topics.json"
GROUPS_FILE = "subscriptionGroup.json"
OFFSETS_FILE = "consumerOffset.json"
STATE_FILE = "ledgermqState.json"

_FORMAT = 1
_PRETTY = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS


def encode_files(state: ReplicatedState) -> list[tuple[str, bytes]]:
    """`(name, content)` of each file, in the order in which they must be written."""
    version = {"dataVersion": state.topic_version.to_json()}
    topics = version | {"topicConfigTable": {name: topic.to_json() for name, topic in state.topics.items()}}
    version = {"dataVersion": state.group_version.to_json()}
    groups = version | {
        "forbiddenTable": {},
        "subscriptionGroupTable": {name: group.to_json() for name, group in state.groups.items()},
    }
    mark = {"format": _FORMAT, "appliedOffset": state.applied_offset, "removed": state.removed}
    return [
        (TOPICS_FILE, orjson.dumps(topics, option=_PRETTY)),
        (GROUPS_FILE, orjson.dumps(groups, option=_PRETTY)),
        (OFFSETS_FILE, orjson.dumps({"offsetTable": state.offsets}, option=_PRETTY)),
        (STATE_FILE, orjson.dumps(mark, option=orjson.OPT_INDENT_2)),
    ]


def write_files(directory: Path, files: list[tuple[str, bytes]]) -> None:
    """Replace the files, in order, each durable before the next. Blocks for flushes: not for the event loop.

    Raises:
        OSError: the disk refused; files already replaced stay so, which is harmless.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files:
        _replace(directory / name, content)


def load_state(directory: Path) -> ReplicatedState:
    """The tables as they lay on disk; empty ones when there are none.

    Where a Java broker wrote the tables, or one of them is broken and its `.bak` is read, nothing is known of how far
    the log is in them: all of the log is to be replayed (`applied_offset` 0).

    Raises:
        StoreFormatError: files that are not ours to read (a newer format, a field that is no such thing), by name.
    """
    loader = _Loader(directory)
    topics, groups, offsets = loader.read(TOPICS_FILE), loader.read(GROUPS_FILE), loader.read(OFFSETS_FILE)
    mark = loader.read(STATE_FILE) or {"format": _FORMAT, "appliedOffset": 0}
    if mark.get("format") != _FORMAT or not isinstance(mark.get("appliedOffset"), int):
        raise StoreFormatError(directory / STATE_FILE, f"says {mark}; this program knows format {_FORMAT}")
    snapshot = {
        "format": _FORMAT,
        "appliedOffset": 0 if loader.has_met_broken else mark["appliedOffset"],
        "topics": topics.get("topicConfigTable") or {},
        "groups": groups.get("subscriptionGroupTable") or {},
        "offsets": offsets.get("offsetTable") or {},
        "removed": mark.get("removed") or {},
        "topicVersion": topics.get("dataVersion") or {},
        "groupVersion": groups.get("dataVersion") or {},
    }
    state = ReplicatedState()
    try:
        state.restore(orjson.dumps(snapshot, option=orjson.OPT_NON_STR_KEYS))
    except StateFormatError as error:
        raise StoreFormatError(directory, f"holds tables that cannot be read: {error.detail}") from error
    return state


class _Loader:
    """Reads each file, or its `.bak`; remembers whether a main file was there and broken."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.has_met_broken = False

    def read(self, name: str) -> Mapping[str, Any]:
        """The file's object; empty when there is neither the file nor its `.bak`."""
        errors: list[StoreFormatError] = []
        for path in (self._directory / name, self._directory / f"{name}.bak"):
            try:
                return _parse(path)
            except FileNotFoundError:
                continue
            except StoreFormatError as error:
                errors.append(error)
                self.has_met_broken = True
        if errors:
            raise errors[0]
        return {}


def _parse(path: Path) -> Mapping[str, Any]:
    try:
        value = lenient_loads(path.read_bytes())
    except JsonError as error:
        raise StoreFormatError(path, f"is not JSON: {error}") from error
    if not isinstance(value, Mapping):
        raise StoreFormatError(path, "is not a JSON object")
    return value


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(path.name + ".new")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        path.replace(path.with_name(path.name + ".bak"))
    fresh.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
