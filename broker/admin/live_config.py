"""UPDATE_BROKER_CONFIG (25): changes settings while the broker runs.

    by users, or insecureSettings=true
    properties text -> not black-listed, known, valid, may change at run time? -> all are applied and saved, or none

Changes are saved for the next start in a file beside the store; broker.conf belongs to its author and is not written.
(Java writes its own file anew; the keys by which that was abused, CVE-2023-33246 and CVE-2023-37582, are refused.)

Source: apache/rocketmq `broker/.../processor/AdminBrokerProcessor.java` (updateBrokerConfig).
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from broker.config import BrokerConfig
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.properties_text import parse_properties
from ledgermq.remoting.config_key import Key, keys_of, unknown_key
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.quotas import AddressQuotas, UserQuotas
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.serving.live_settings import is_black_listed

log = logging.getLogger(__name__)

_LIVE: Final = {name: key for name, key in keys_of(BrokerConfig).items() if key.is_live}
"""Keys that are read each time they are needed, so that a change has its effect."""

_OF_SUPER_USERS: Final = frozenset(
    {
        *("startAcceptSendRequestTimeStamp", "brokerPermission", "fileReservedTime", "deleteWhen"),
        *(
            "diskMaxUsedSpaceRatio",
            "diskSpaceCleanForciblyRatio",
            "diskSpaceWarningLevelRatio",
            "cleanFileForciblyEnable",
        ),
        *("timerWheelEnable", "rejectTransactionMessage", "maxTopics"),
        *keys_of(AddressQuotas),
        *keys_of(UserQuotas),
    }
)
"""Keys that stop or slow the broker's service or delete messages: with users, only super users change them."""


class Setting(NamedTuple):
    """A key's new value, and the text that shows it. The value of a key without effect here is its text."""

    key: str
    value: Any
    shown: str

    def apply(self, config: BrokerConfig) -> None:
        """Set the value in a configuration."""
        if self.key in _LIVE:
            _LIVE[self.key].set_in(config, self.value)
        config.properties = {**config.properties, self.key: self.shown}


def read_setting(keys: Mapping[str, Key], name: str, text: str) -> Setting:
    """Parse a setting that may change while the broker runs. `keys` are all known keys.

    Raises:
        Refusal: INVALID_PARAMETER, the key is unknown or the text is not a valid value; SYSTEM_ERROR, the key cannot
            change.
    """
    if (known := keys.get(name)) is None:
        raise Refusal(Cause.INVALID_PARAMETER, f"key {name[:100]!r} {unknown_key(name, keys)}")
    try:
        value = known.kind.read(text)
    except ValueError as error:
        raise Refusal(Cause.INVALID_PARAMETER, f"key {name!r} {error}") from error
    if not known.has_effect:
        return Setting(name, text, text)
    if name not in _LIVE:
        raise Refusal(Cause.SYSTEM_ERROR, f"key {name} is read only when the broker starts: set it in broker.conf")
    return Setting(name, value, known.kind.show(value))


Keep = Callable[[Mapping[str, str]], None]
"""Saves settings for the next start; blocks. Raises OSError or StoreError when the disk fails."""


class LiveConfig:
    """Changes the broker's configuration.

    Args:
        config: shared by all parts; only this class changes it.
        keys: all known keys.
        keep: saves the changes, in a thread, before anything is changed.
        on_changed: called with the keys that were changed.
        is_super: whether the request is a super user's; None where users are not checked.
    """

    def __init__(
        self,
        config: BrokerConfig,
        keys: Mapping[str, Key],
        keep: Keep,
        on_changed: Callable[[Collection[str]], None],
        is_super: Callable[[Command], bool] | None = None,
    ) -> None:
        self._config = config
        self._keys = keys
        self._keep = keep
        self._on_changed = on_changed
        self._is_super = is_super
        # one thread, so that changes are saved in the order of the requests
        self._writer = ThreadPoolExecutor(1, "settings")

    def update(self, connection: Connection, command: Command) -> None:
        """25: apply all settings of the body, or none."""
        if self._is_super is None and not self._config.insecure_settings:
            remark = "settings are changed by users only (authenticationEnabled=true)"
            raise Refusal(Cause.NO_PERMISSION, f"{remark}; insecureSettings=true lets everybody change them")
        texts = _properties(bytes(command.body))
        of_super_users = sorted(_OF_SUPER_USERS.intersection(texts))
        if of_super_users and self._is_super is not None and not self._is_super(command):
            raise Refusal(Cause.NO_PERMISSION, f"key {of_super_users[0]} is changed by super users only")
        if any(is_black_listed(key, self._config) for key in texts):
            raise Refusal(Cause.NO_PERMISSION, "Can not update config in black list.")
        changes = [read_setting(self._keys, key, value) for key, value in texts.items()]
        kept = asyncio.get_running_loop().run_in_executor(self._writer, self._keep, texts)

        def settle(done: "asyncio.Future[None]") -> None:
            if done.cancelled():
                return
            if (error := done.exception()) is not None:
                log.error("settings that %s sent cannot be saved, and are not changed: %s", connection.address, error)
                connection.refuse(command, Refusal(Cause.SYSTEM_ERROR, f"the settings cannot be saved: {error}"))
                return
            self._take(connection, changes)
            connection.respond(command, ResponseCode.SUCCESS)

        kept.add_done_callback(settle)

    def _take(self, connection: Connection, changes: Sequence[Setting]) -> None:
        for setting in changes:
            log.info("%s sets %s=%s", connection.address, setting.key, setting.shown)
            setting.apply(self._config)
        self._on_changed([setting.key for setting in changes])


def _properties(body: bytes) -> dict[str, str]:
    """Return the keys of the body with their values; none if it has none."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise Refusal(Cause.INVALID_PARAMETER, f"the body is not UTF-8 at byte {error.start}") from error
    found = parse_properties(text)
    if "" in found:
        raise Refusal(Cause.INVALID_PARAMETER, "the body has a line without a key")
    return found
