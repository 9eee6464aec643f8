"""The KV configuration: short texts by namespace and key, the only state that a nameserver keeps over a restart.

The file is RocketMQ's `kvConfig.json`: `{"configTable":{namespace:{key:value}}}`. Every change is durable before it is
answered, and visible to requests: written to a new file in a thread, flushed, renamed over the old one.
Changes are made one after the other.

Source: apache/rocketmq `namesrv/.../kvconfig/KVConfigManager.java` (5.3).
"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

from ledgermq.durable_files import replace_durably
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.errors import JsonError

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Namespace whose keys are topics and whose values are `broker:queues;broker:queues`."""

_LENGTH_MAX = 4 << 20


class KvConfigError(Exception):
    """The file cannot be read or written; the text names it. It was not changed."""


class KvConfig:
    """The KV configuration of one nameserver; `load` reads it from the file."""

    def __init__(self, path: Path, tables: dict[str, dict[str, str]] | None = None) -> None:
        self._path = path
        self._tables = tables or {}
        self._changing = asyncio.Lock()

    @classmethod
    def load(cls, path: Path) -> "KvConfig":
        """Read the file; a missing file is an empty configuration.

        Raises:
            KvConfigError: it cannot be read, or has another format.
        """
        try:
            document = loads(path.read_bytes())
        except FileNotFoundError:
            return cls(path)
        except (OSError, JsonError) as error:
            raise KvConfigError(f"{path}: cannot be read: {error}") from error
        tables = document.get("configTable") if isinstance(document, dict) else None
        if not isinstance(tables, dict) or not all(_is_table(table) for table in tables.values()):
            raise KvConfigError(f'{path}: is not {{"configTable": {{namespace: {{key: value}}}}}}')
        return cls(path, tables)

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value, or None."""
        return self._tables.get(namespace, {}).get(key)

    def table(self, namespace: str) -> Mapping[str, str] | None:
        """Return all keys of a namespace; None when it was never used."""
        return self._tables.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value; durable on return.

        Raises:
            KvConfigError: the file cannot be written, or would be too large; the value is as before.
        """
        async with self._changing:
            await self._replace(namespace, {**self._tables.get(namespace, {}), key: value})

    async def delete(self, namespace: str, key: str) -> None:
        """Delete a value; durable on return. An unknown key is no error. Raises what `put` raises."""
        async with self._changing:
            if key in (table := self._tables.get(namespace, {})):
                await self._replace(namespace, {name: text for name, text in table.items() if name != key})

    async def _replace(self, namespace: str, table: dict[str, str]) -> None:
        tables = {**self._tables, namespace: table}
        await asyncio.to_thread(self._save, tables)
        self._tables = tables

    def _save(self, tables: dict[str, dict[str, str]]) -> None:
        text = json.dumps({"configTable": tables}, ensure_ascii=False, separators=(",", ":"))
        if len(text) > _LENGTH_MAX:
            raise KvConfigError(f"{self._path}: would have {len(text)} characters, the limit is {_LENGTH_MAX}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_durably(self._path, text.encode())
        except OSError as error:
            raise KvConfigError(f"{self._path}: cannot be written: {error}") from error


def _is_table(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
