"""Settings changed while a broker ran, kept beside its store for the next start: `config/ledgermqSettings.json`.

    {"settings": {"transactionCheckMax": {"before": "15", "value": "14"}}, "writtenBy": "ledgermq"}

`broker.conf` is never written. A kept setting holds as long as broker.conf gives the value that it gave
when the setting was changed (`before`, as text). An edit of the key in broker.conf afterwards ends the kept setting.
"""

import threading
from collections.abc import Mapping
from typing import Any, Final

import orjson

from broker.admin.live_config import read_setting
from ledgermq.remoting.refusal import Refusal
from node.keys import BROKER_KEYS
from node.node_config import NodeConfig
from store.directory.config_file import read_config, write_config

FILE: Final = "ledgermqSettings.json"


class KeptSettings:
    """The file of one broker.

    Args:
        config: from broker.conf and the command line.

    Raises:
        StoreFormatError: the file and its `.bak` cannot be read.
    """

    def __init__(self, config: NodeConfig) -> None:
        self._path = config.broker.store.folders.tables / FILE
        self._given = config.broker.properties
        self._lock = threading.Lock()
        found = read_config(self._path, _settings) if self._path.parent.is_dir() else None
        self._settings = found.value if found is not None else {}

    def apply(self, config: NodeConfig) -> None:
        """Apply the kept settings to the configuration; its notices name those that hold, and those that do not."""
        notices = []
        for key, (before, value) in sorted(self._settings.items()):
            if self._given.get(key) != before:
                notices.append(f"{key}={value}, kept in {self._path}, holds no more: broker.conf has changed it since")
                continue
            try:
                setting = read_setting(BROKER_KEYS, key, value)
            except Refusal as refusal:
                notices.append(f"{key}={value}, kept in {self._path}, holds no more: {refusal.remark}")
                continue
            setting.apply(config.broker)
            notices.append(f"{key}={setting.shown}: changed while the broker ran, kept in {self._path}")
        config.notices += tuple(notices)

    def keep(self, changes: Mapping[str, str]) -> None:
        """Put these settings into the file; durable on return. Blocks for flushes: not for the event loop.

        Raises:
            OSError, StoreError: the disk refused; the file is as it was.
        """
        with self._lock:
            settings = self._settings | {key: (self._given.get(key, ""), value) for key, value in changes.items()}
            table = {key: {"before": before, "value": value} for key, (before, value) in settings.items()}
            content = {"settings": table, "writtenBy": "ledgermq"}
            write_config(self._path, orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))
            self._settings = settings


def _settings(file: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    table = file.get("settings")
    if not isinstance(table, Mapping):
        raise ValueError("has no object `settings`")
    return {str(key): (str(entry["before"]), str(entry["value"])) for key, entry in table.items()}
