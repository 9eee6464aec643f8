"""One declaration per configuration key, beside the field that it sets.

    warms_up: bool = key("warmMapedFileEnable", BOOL, False, "Touch every page of a new file beforehand.")

A settings class is a dataclass. Each field is a key, a section (another settings class, see `section`), or something
that the program fills in itself. From the declarations come the parsing of files, `ledgermq config explain`, and what
the requests for a running node's configuration show and change.
"""

import dataclasses
import difflib
import enum
import functools
import ipaddress
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

T = TypeVar("T")
D = TypeVar("D")
Settings = TypeVar("Settings")

OURS = "LedgerMQ"
"""Origin of the keys that RocketMQ does not have."""
STORE = "MessageStoreConfig"
NETTY = "NettyServerConfig and NettyClientConfig"
_METADATA = "ledgermq.config_key"
_LIKENESS_MIN = 0.5  # least similarity of two names (difflib) for a hint
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class ValueKind(Generic[T]):
    """How the text of a value is read and shown.

    Attributes:
        name: for the user: `bool`, `int`, `long`, `double`, `text`, or the allowed words separated by `/`.
        read: raises ValueError, whose text continues a sentence that has named the key.
        show: returns a text that `read` accepts, unless the value is secret.
        none: how a field without a value is shown.
    """

    name: str
    read: Callable[[str], T]
    show: Callable[[T], str] = str
    none: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The declaration of one key.

    Attributes:
        origin: RocketMQ's configuration class, or `OURS`.
        default: RocketMQ's default as text; in words between `<` and `>` when it is computed.
        default_here: LedgerMQ's default, likewise.
        help: one sentence.
        note: what the key does here beyond that; may be empty.
        reason: why the key has no effect here, see `EFFECTS`; `*` for a key that has one.
        is_live: a change while the process runs takes effect.
        alias: another name of the key in files; may be empty.
        path: attribute names that lead from the settings class to the field; empty for a key without effect.
    """

    name: str
    origin: str
    kind: ValueKind[Any]
    default: str
    default_here: str
    help: str
    note: str = ""
    reason: str = "*"
    is_live: bool = False
    alias: str = ""
    path: tuple[str, ...] = ()

    @property
    def has_effect(self) -> bool:
        """Whether anything reads the key."""
        return self.reason == "*"

    def value_in(self, settings: object) -> Any:
        """Return the value of the key's field."""
        for name in self.path:
            settings = getattr(settings, name)
        return settings

    def shown_in(self, settings: object) -> str:
        """Return the value of the key's field as text."""
        value = self.value_in(settings)
        return self.kind.none if value is None else self.kind.show(value)

    def set_in(self, settings: object, value: Any) -> None:
        """Set the key's field; the object that holds it must not be frozen."""
        *sections, field = self.path
        for name in sections:
            settings = getattr(settings, name)
        setattr(settings, field, value)


def key(
    name: str,
    kind: ValueKind[T],
    default: D,
    help: str,  # noqa: A002
    *,
    shown: str | None = None,
    upstream: str | None = None,
    origin: str = "",
    live: bool = False,
    note: str = "",
    alias: str = "",
) -> T | D:
    """Return a dataclass field that the key `name` sets.

    Args:
        name: RocketMQ's name, or ours.
        kind: how its text is read.
        default: of the field.
        help: one sentence for the user.
        shown: the default as text, where the field's own would say something else.
        upstream: RocketMQ's default as text, where it differs.
        origin: RocketMQ's class that has the key, where it is not the settings class's `ORIGIN`.
        live: see `Key.is_live`.
        note: see `Key`.
        alias: see `Key`.
    """
    if shown is None:
        shown = "" if default is None else kind.show(default)  # type: ignore[arg-type]
    known = Key(
        name=name,
        origin=origin,
        kind=kind,
        default=shown if upstream is None else upstream,
        default_here=shown,
        help=help,
        note=note,
        is_live=live,
        alias=alias,
    )
    field: Any = dataclasses.field(default=default, repr=kind is not SECRET, metadata={_METADATA: known})
    return field  # type: ignore[no-any-return]


def section(settings: type[T], default: Any = dataclasses.MISSING) -> T:
    """Return a dataclass field that holds further settings.

    Args:
        settings: the class of the section; `build` always makes one.
        default: for objects that are made without `build`; a section with its defaults when not given.
    """
    made: dict[str, Any] = {"default": default}
    if default is dataclasses.MISSING:
        made = {"default_factory": lambda: build(settings, {})}
    field: Any = dataclasses.field(**made, metadata={_METADATA: settings})
    return field  # type: ignore[no-any-return]


@functools.cache
def keys_of(settings: type) -> Mapping[str, Key]:
    """Return the keys of a settings class and its sections, by name. An alias is a key of its own, without a path."""
    return MappingProxyType({found.name: found for found in _keys_of(settings, ())})


def _keys_of(settings: type, path: tuple[str, ...]) -> Iterator[Key]:
    for field in dataclasses.fields(settings):
        declared = field.metadata.get(_METADATA)
        if isinstance(declared, type):
            yield from _keys_of(declared, (*path, field.name))
        elif declared is not None:
            origin = declared.origin or settings.ORIGIN  # type: ignore[attr-defined]
            yield dataclasses.replace(declared, origin=origin, path=(*path, field.name))
            if declared.alias:
                words = f"Another name of {declared.name}, easier to remember."
                yield dataclasses.replace(
                    declared, name=declared.alias, origin=OURS, help=words, note="", alias=""
                )  # no path


def build(settings: type[Settings], values: Mapping[str, Any]) -> Settings:
    """Make settings from values by key name; a key that is left out has its default."""
    given: dict[str, Any] = {}
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        declared = field.metadata.get(_METADATA)
        if isinstance(declared, type):
            given[field.name] = build(declared, values)
        elif declared is not None and declared.name in values:
            given[field.name] = values[declared.name]
    return settings(**given)


def unknown_key(name: str, known: Mapping[str, Any]) -> str:
    """Return the predicate of an error about an unknown key, with the nearest known key if one resembles it.

    Upper and lower case do not matter. Only the first hundred characters are compared: anybody may ask, and the search
    takes long with a long name.
    """
    folded = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name[:100].lower(), folded, n=1, cutoff=_LIKENESS_MIN)
    hint = f"nearest known key is {folded[matches[0]]!r}" if matches else "no known key is like it"
    return f"is unknown; {hint}"


# ---- kinds of values


def _read_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"is {text!r}, not true or false")
    return text.lower() == "true"


def read_integer(text: str, limit: int = 1 << 31) -> int:
    """Parse a whole number in [-limit, limit).

    Raises:
        ValueError: it is not one.
    """
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"is {text!r}, not a whole number")
    number = int(text)
    if not -limit <= number < limit:
        raise ValueError(f"is {text}, out of range [{-limit}, {limit})")
    return number


def _read_double(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"is {text!r}, not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"is {text!r}, not a finite number")
    return number


def checked(kind: ValueKind[T], allows: Callable[[T], bool], complaint: str) -> ValueKind[T]:
    """Return a kind of which only some values are allowed; the error of others is `is VALUE, COMPLAINT`."""

    def read(text: str) -> T:
        value = kind.read(text)
        if not allows(value):
            raise ValueError(f"is {value}, {complaint}")
        return value

    return ValueKind(kind.name, read, kind.show)


def converted(kind: ValueKind[T], read: Callable[[T], D], show: Callable[[D], T]) -> ValueKind[D]:
    """Return a kind whose values are held in another unit or type than in the file."""
    return ValueKind(kind.name, lambda text: read(kind.read(text)), lambda value: kind.show(show(value)))


def one_of(*words: str) -> ValueKind[str]:
    """Return a kind that allows only these words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"is {text!r}, not one of {', '.join(words)}")
        return text

    return ValueKind("/".join(words), read)


EnumT = TypeVar("EnumT", bound=enum.StrEnum)


def member_of(words: type[EnumT]) -> ValueKind[EnumT]:
    """Return a kind that allows the values of an enumeration."""
    return converted(one_of(*words), words, str)


def _show_secret(text: str) -> str:
    return "***" if text else ""


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for part in text.split(";") if (word := part.strip()))


BOOL = ValueKind("bool", _read_bool, lambda value: str(value).lower())
INT = ValueKind("int", read_integer)
LONG = ValueKind("long", lambda text: read_integer(text, 1 << 63))
DOUBLE = ValueKind("double", _read_double)
TEXT = ValueKind("text", str)
SECRET = ValueKind("text", str, _show_secret)
PATH = ValueKind("text", lambda text: Path(text).expanduser())
WORDS = ValueKind("text", _words, ";".join)
"""Words separated by semicolons; empty ones are left out."""

POSITIVE = checked(INT, lambda number: number > 0, "must be above 0")
NOT_NEGATIVE = checked(INT, lambda number: number >= 0, "must be 0 or more")
POSITIVE_LONG = checked(LONG, lambda number: number > 0, "must be above 0")
NOT_NEGATIVE_LONG = checked(LONG, lambda number: number >= 0, "must be 0 or more")
PERCENT = checked(INT, lambda number: 0 <= number <= 100, "not a percentage from 0 to 100")
PERCENT_AS_RATIO = converted(PERCENT, lambda number: number / 100, lambda ratio: round(ratio * 100))
RATIO = checked(DOUBLE, lambda number: 0 <= number <= 1, "not a part from 0 to 1")
PORT = checked(INT, lambda number: 0 <= number < 65536, "not a port from 0 to 65535")
"""A port; 0 means any free one."""
SECONDS = converted(POSITIVE, float, int)
HOURS_AS_MS = converted(NOT_NEGATIVE, lambda hours: hours * 3_600_000, lambda ms: ms // 3_600_000)


def _read_port_or_off(text: str) -> int | None:
    if text == "off":
        return None
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"is {text!r}, not a port or off")
    return PORT.read(text)


PORT_OR_OFF: ValueKind[int | None] = ValueKind("port or off", _read_port_or_off, none="off")

BY_NAME: Mapping[str, ValueKind[Any]] = {kind.name: kind for kind in (BOOL, INT, LONG, DOUBLE, TEXT)}
"""The kinds that a table of keys may name."""


def _read_networks(text: str) -> tuple[Network, ...]:
    words = [word.strip() for word in text.split(";") if word.strip()]
    try:
        return tuple(ipaddress.ip_network(word) for word in words)
    except ValueError as error:
        raise ValueError(f"does not parse: {error}") from error


NETWORKS = ValueKind("text", _read_networks, lambda networks: ";".join(map(str, networks)))
