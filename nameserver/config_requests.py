"""Requests of tools about the nameserver itself: its KV configuration and its settings.

Source: apache/rocketmq `namesrv/.../processor/DefaultRequestProcessor.java` (5.3).
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Final

from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import text
from ledgermq.remoting.codec.java_json import standard_json
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.serving.answer import Answer, Handler
from ledgermq.remoting.serving.live_settings import LiveSettings
from nameserver.config import NameServerConfig
from nameserver.kv_config import KvConfig, KvConfigError

_CHANGES_MAX: Final = 100


class ConfigRequests:
    """The handlers. Changes of the KV configuration are answered when they are durable, at most 100 wait for that."""

    def __init__(self, kv: KvConfig, settings: LiveSettings[NameServerConfig]) -> None:
        self._kv = kv
        self._settings = settings
        self._changes: set[asyncio.Task[None]] = set()

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """The handlers by request code."""
        return {
            RequestCode.PUT_KV_CONFIG: self._put,
            RequestCode.GET_KV_CONFIG: self._get,
            RequestCode.DELETE_KV_CONFIG: self._delete,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._table,
            RequestCode.GET_NAMESRV_CONFIG: self._settings.show,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._settings.change,
        }

    async def close(self) -> None:
        """Return when the changes that were begun are made and answered."""
        await asyncio.gather(*self._changes)

    def _put(self, connection: Connection, command: Command) -> None:
        ext = command.ext
        namespace, key, value = text(ext, "namespace"), text(ext, "key"), ext.get("value")
        # without a value the key is deleted in effect, as in RocketMQ
        change = self._kv.delete(namespace, key) if value is None else self._kv.put(namespace, key, value)
        self._begin(connection, command, change)

    def _get(self, connection: Connection, command: Command) -> Answer:
        namespace, key = text(command.ext, "namespace"), text(command.ext, "key")
        value = self._kv.get(namespace, key)
        if value is None:
            raise Refusal(Cause.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace} Key: {key}")
        return Answer({"value": value})

    def _delete(self, connection: Connection, command: Command) -> None:
        ext = command.ext
        if "namespace" in ext and "key" in ext:
            self._begin(connection, command, self._kv.delete(ext["namespace"], ext["key"]))
        else:
            connection.respond(command, ResponseCode.SUCCESS)

    def _begin(self, connection: Connection, command: Command, change: Coroutine[None, None, None]) -> None:
        if len(self._changes) >= _CHANGES_MAX:
            change.close()
            raise Refusal(Cause.BUSY, f"{len(self._changes)} changes wait to be written", retry_after_ms=100)
        task = asyncio.get_running_loop().create_task(_answer(connection, command, change))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)

    def _table(self, connection: Connection, command: Command) -> Answer:
        namespace = text(command.ext, "namespace")
        table = self._kv.table(namespace)
        if table is None:
            raise Refusal(Cause.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return Answer(body=standard_json({"table": table}))


async def _answer(connection: Connection, command: Command, change: Coroutine[None, None, None]) -> None:
    try:
        await change
    except KvConfigError as error:
        connection.refuse(command, Refusal(Cause.SYSTEM_ERROR, str(error)))
    except Exception as error:
        connection.fail(command, error)
    else:
        connection.respond(command, ResponseCode.SUCCESS)
