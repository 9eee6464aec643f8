"""The settings of a running nameserver or controller under RocketMQ's names, for requests that show and change them.

Some settings may change while the process runs, with effect at once. The file with which the process was started
belongs to the user and is never written. Keys without effect here keep the value that they are given.

Source: apache/rocketmq `namesrv/.../processor/DefaultRequestProcessor.java` (updateConfig, getConfig), 5.3.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.properties_text import parse_properties
from ledgermq.remoting.config_key import keys_of, unknown_key
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.serving.answer import Answer

_BLACK_LIST = frozenset(
    {"brokerConfigPath", "configBlackList", "configStorePath", "filterServerNums", "kvConfigPath", "rocketmqHome"}
)
"""Keys that no request may change, whatever the configuration's own list is."""

_SHOWN_MAX = 100


class Configuration(Protocol):
    """A dataclass of settings with a declaration of each key; a frozen one for `LiveSettings`."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Every known key under RocketMQ's name with the value in force, as text."""

    @property
    def config_black_list(self) -> tuple[str, ...]:
        """Keys that may not be changed at run time."""


def is_black_listed(key: str, config: Configuration) -> bool:
    """Return whether no request may change the key."""
    return key in _BLACK_LIST or key in config.config_black_list


C = TypeVar("C", bound=Configuration)
S = TypeVar("S")


class LiveSettings(Generic[C]):
    """The present configuration; `config` is replaced by each change.

    Args:
        config: the configuration at the start. Its `properties` are all known keys with their values.
        on_change: called after a change has taken effect.
    """

    def __init__(self, config: C, on_change: Callable[[C], None]) -> None:
        self.config = config
        self._on_change = on_change
        self._keys = keys_of(type(config))
        self._live = {name: key for name, key in self._keys.items() if key.is_live}
        shown = {name: key.shown_in(config) for name, key in self._keys.items() if key.path}
        self._properties = shown | dict(config.properties) | {name: shown[name] for name in self._live}

    def as_text(self) -> str:
        """Return all keys, sorted, as the lines of a properties file."""
        return "".join(f"{key}={_escape(value)}\n" for key, value in sorted(self._properties.items()))

    def show(self, connection: Connection, command: Command) -> Answer:
        """Answer a request for the settings."""
        return Answer(body=self.as_text().encode())

    def change(self, connection: Connection, command: Command) -> Answer:
        """Serve a request with settings as its body; errors as `update`."""
        try:
            self.update(bytes(command.body).decode())
        except UnicodeDecodeError as error:
            raise Refusal(Cause.INVALID_PARAMETER, f"settings: not UTF-8 at byte {error.start}") from error
        return Answer()

    def update(self, text: str) -> None:
        """Change the settings in the lines of a properties file: all of them or none.

        Raises:
            Refusal: NO_PERMISSION for a key that only a restart may change, INVALID_PARAMETER for an unknown key or a
                value that cannot be parsed.
        """
        wanted = parse_properties(text)
        config = self.config
        for key, value in wanted.items():
            self._check(key, value)
            if (live := self._live.get(key)) is not None:
                try:
                    config = _replaced(config, live.path, live.kind.read(value))
                except ValueError as error:
                    shown = str(error)[:_SHOWN_MAX]
                    raise Refusal(Cause.INVALID_PARAMETER, f"key {key!r} {shown}") from error
        self._properties |= wanted
        self.config = config
        self._on_change(self.config)

    def _check(self, key: str, value: str) -> None:
        if is_black_listed(key, self.config):
            raise Refusal(Cause.NO_PERMISSION, f"Can not update config in black list. It holds {key}")
        if key not in self._properties:
            raise Refusal(Cause.INVALID_PARAMETER, f"key {key[:_SHOWN_MAX]!r} {unknown_key(key, self._properties)}")
        if key in self._keys and key not in self._live and value != self._properties[key]:
            raise Refusal(
                Cause.NO_PERMISSION, f"key {key!r} cannot change from {self._properties[key]!r} while running"
            )


def _replaced(settings: S, path: Sequence[str], value: Any) -> S:
    """Return a copy of settings with another value of one field; `path` leads to it through sections."""
    first, *rest = path
    field = _replaced(getattr(settings, first), rest, value) if rest else value
    return replace(settings, **{first: field})  # type: ignore[type-var]  # a dataclass


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")
