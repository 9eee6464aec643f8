"""UPDATE_BROKER_CONFIG (25): settings changed while the broker runs.

    properties text -> black list? known? parses? changes at run time? -> all are taken, or none

What is changed holds until the process ends: it is not written into broker.conf, which belongs to its author. (Java
writes its file anew; the keys through which that was abused, CVE-2023-33246 and CVE-2023-37582, are refused.)

Source: apache/rocketmq `broker/.../processor/AdminBrokerProcessor.java` (updateBrokerConfig).
"""

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from broker.config import BrokerConfig
from ledgermq.remoting.codes import ResponseCode
from ledgermq.remoting.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.properties_text import parse_properties
from ledgermq.remoting.refusal import Cause, Refusal

log = logging.getLogger(__name__)

LIVE_FIELDS: Final = frozenset(
    {
        "auto_create_group",
        "broker_permission",
        "file_reserved_ms",
        "filter_retries",
        "long_polling",
        "max_pull_bytes",
        "max_pull_count",
        "property_filter",
        "short_polling_ms",
        "store_replies",
        "transaction_check_interval_ms",
        "transaction_check_max",
        "transaction_op_interval_ms",
        "transaction_op_size_bytes",
        "transaction_timeout_ms",
    }
)
"""Fields of the configuration that are read when they are needed, so that a change has its effect."""

_FORBIDDEN: Final = frozenset(
    {"brokerConfigPath", "configBlackList", "configStorePath", "filterServerNums", "kvConfigPath", "rocketmqHome"}
)


class Setting(NamedTuple):
    """One key's new value: the field it sets (None for a key without effect here), and how it is shown."""

    field: str | None
    value: Any
    shown: str


ReadSetting = Callable[[str, str], Setting]
"""From a key and a text to the setting; raises Refusal INVALID_PARAMETER for an unknown key, or a text that is none."""


class LiveConfig:
    """Changes the broker's configuration.

    Args:
        config: shared by all parts; only this class changes it.
        on_permission: called when what the whole broker allows has changed.
    """

    def __init__(self, config: BrokerConfig, read: ReadSetting, on_permission: Callable[[], None]) -> None:
        self._config = config
        self._read = read
        self._on_permission = on_permission

    def update(self, connection: Connection, command: Command) -> None:
        """25: take all settings of the body, or none."""
        changes = {key: self._setting(key, value) for key, value in _properties(bytes(command.body)).items()}
        for key, setting in changes.items():
            log.info("%s sets %s=%s", connection.address, key, setting.shown)
            if setting.field is not None:
                setattr(self._config, setting.field, setting.value)
        self._config.properties = {
            **self._config.properties,
            **{key: setting.shown for key, setting in changes.items()},
        }
        if "brokerPermission" in changes:
            self._on_permission()
        connection.respond(command, ResponseCode.SUCCESS)

    def _setting(self, key: str, value: str) -> Setting:
        if key in _FORBIDDEN:
            raise Refusal(Cause.NO_PERMISSION, "Can not update config in black list.")
        setting = self._read(key, value)
        if setting.field is not None and setting.field not in LIVE_FIELDS:
            raise Refusal(Cause.SYSTEM_ERROR, f"key {key} is read at the start only: set it in broker.conf")
        return setting


def _properties(body: bytes) -> dict[str, str]:
    """The keys of the body, at least one."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise Refusal(Cause.INVALID_PARAMETER, f"the body is no UTF-8 at byte {error.start}") from error
    found = parse_properties(text)
    if not found or "" in found:
        raise Refusal(Cause.INVALID_PARAMETER, "the body names no key, or has a line without one")
    return found
