"""What tools ask of the nameserver itself: its KV configuration and its settings.

Source: apache/rocketmq `namesrv/.../processor/DefaultRequestProcessor.java` (5.3).
"""

from collections.abc import Mapping

from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import filled
from ledgermq.remoting.codec.java_json import standard_json
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from nameserver.answers import Answer, Handler
from nameserver.kv_config import KvConfig, KvConfigError
from nameserver.settings import Settings


class ConfigRequests:
    """The handlers."""

    def __init__(self, kv: KvConfig, settings: Settings) -> None:
        self._kv = kv
        self._settings = settings

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """By request code."""
        return {
            RequestCode.PUT_KV_CONFIG: self._put,
            RequestCode.GET_KV_CONFIG: self._get,
            RequestCode.DELETE_KV_CONFIG: self._delete,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._table,
            RequestCode.GET_NAMESRV_CONFIG: self._settings_text,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_settings,
        }

    def _put(self, connection: Connection, command: Command) -> Answer:
        ext = command.ext
        namespace, key, value = filled(ext, "namespace"), filled(ext, "key"), ext.get("value")
        if value is None:
            raise Refusal(Cause.INVALID_PARAMETER, "field value is missing")
        try:
            self._kv.put(namespace, key, value)
        except KvConfigError as error:
            raise Refusal(Cause.SYSTEM_ERROR, str(error)) from error
        return Answer()

    def _get(self, connection: Connection, command: Command) -> Answer:
        namespace, key = filled(command.ext, "namespace"), filled(command.ext, "key")
        value = self._kv.get(namespace, key)
        if value is None:
            raise Refusal(Cause.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace} Key: {key}")
        return Answer({"value": value})

    def _delete(self, connection: Connection, command: Command) -> Answer:
        try:
            self._kv.delete(filled(command.ext, "namespace"), filled(command.ext, "key"))
        except KvConfigError as error:
            raise Refusal(Cause.SYSTEM_ERROR, str(error)) from error
        return Answer()

    def _table(self, connection: Connection, command: Command) -> Answer:
        namespace = filled(command.ext, "namespace")
        table = self._kv.table(namespace)
        if table is None:
            raise Refusal(Cause.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return Answer(body=standard_json({"table": table}))

    def _settings_text(self, connection: Connection, command: Command) -> Answer:
        return Answer(body=self._settings.as_text().encode())

    def _update_settings(self, connection: Connection, command: Command) -> Answer:
        try:
            wanted = bytes(command.body).decode()
        except UnicodeDecodeError as error:
            raise Refusal(Cause.INVALID_PARAMETER, f"settings: not UTF-8 at byte {error.start}") from error
        self._settings.update(wanted)
        return Answer()
