"""UPDATE_BROKER_CONFIG (25): settings changed while the broker runs.

    properties text -> black list? known? parses? changes at run time? -> all are taken and kept, or none

What is changed is kept for the next start, beside the store: broker.conf belongs to its author and is not written.
(Java writes its file anew; the keys through which that was abused, CVE-2023-33246 and CVE-2023-37582, are refused.)

Source: apache/rocketmq `broker/.../processor/AdminBrokerProcessor.java` (updateBrokerConfig).
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from broker.config import BrokerConfig
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.properties_text import parse_properties
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal

log = logging.getLogger(__name__)

LIVE_FIELDS: Final = frozenset(
    {
        "accepts_sends_from_ms",
        "auto_create_group",
        "broker_permission",
        "clear_retry_topics",
        "cold_data_control",
        "cold_global_threshold_bytes",
        "cold_group_threshold_bytes",
        "default_pop_share_queues",
        "default_query_max_count",
        "default_request_mode",
        "file_reserved_ms",
        "filter_retries",
        "hot_memory_percent",
        "lite_pull",
        "long_polling",
        "max_pull_bytes",
        "max_pull_count",
        "max_topics",
        "mixed_types",
        "pop_from_retry_percent",
        "pop_limits_open",
        "pop_reads_retry_v1",
        "pop_retry_v2",
        "pop_open_limit",
        "pop_shows_retry_topic",
        "pop_start_from_memory",
        "pop_wakes_on_order_release",
        "property_filter",
        "recall_enable",
        "recall_when_not_writable",
        "reject_transactions",
        "server_allocates_queues",
        "short_polling_ms",
        "slave_read",
        "store_replies",
        "timer_max_delay_s",
        "timer_slot_count_max",
        "timer_wheel_enable",
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


Keep = Callable[[Mapping[str, str]], None]
"""Keeps settings for the next start; blocks. Raises OSError or StoreError when the disk refuses."""


class LiveConfig:
    """Changes the broker's configuration.

    Args:
        config: shared by all parts; only this class changes it.
        keep: runs in a thread before anything is changed.
        on_changed: called with the keys that have changed.
    """

    def __init__(
        self, config: BrokerConfig, read: ReadSetting, keep: Keep, on_changed: Callable[[Collection[str]], None]
    ) -> None:
        self._config = config
        self._read = read
        self._keep = keep
        self._on_changed = on_changed
        self._writer = ThreadPoolExecutor(1, "settings")  # one thread: kept in the order in which they are taken

    def update(self, connection: Connection, command: Command) -> None:
        """25: take all settings of the body, or none."""
        texts = _properties(bytes(command.body))
        changes = {key: check_live(key, self._read(key, value)) for key, value in texts.items() if self._may(key)}
        kept = asyncio.get_running_loop().run_in_executor(self._writer, self._keep, texts)

        def settle(done: "asyncio.Future[None]") -> None:
            if done.cancelled():
                return
            if (error := done.exception()) is not None:
                log.error("settings of %s are not kept, and not changed: %s", connection.address, error)
                connection.refuse(command, Refusal(Cause.SYSTEM_ERROR, f"the settings cannot be kept: {error}"))
                return
            self._take(connection, changes)
            connection.respond(command, ResponseCode.SUCCESS)

        kept.add_done_callback(settle)

    def _may(self, key: str) -> bool:
        if key in _FORBIDDEN or key in self._config.config_black_list:
            raise Refusal(Cause.NO_PERMISSION, "Can not update config in black list.")
        return True

    def _take(self, connection: Connection, changes: Mapping[str, Setting]) -> None:
        for key, setting in changes.items():
            log.info("%s sets %s=%s", connection.address, key, setting.shown)
            if setting.field is not None:
                setattr(self._config, setting.field, setting.value)
        self._config.properties = {
            **self._config.properties,
            **{key: setting.shown for key, setting in changes.items()},
        }
        self._on_changed(changes.keys())


def check_live(key: str, setting: Setting) -> Setting:
    """The setting, if it can change while the broker runs.

    Raises:
        Refusal: SYSTEM_ERROR, it cannot.
    """
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
