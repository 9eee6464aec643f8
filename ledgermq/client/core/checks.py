"""What programs give, refused by name when it is not what it should be.

Whatever may be left out is checked only when it is given: `if deadline_s is not None: check_seconds(...)`.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, TypeGuard, TypeVar

from ledgermq.client.errors import InvalidArgumentError

SECONDS_MAX: Final = 1_000_000_000  # 31 years: more is a mistake, and does not fit into headers
COUNT_MAX: Final = (1 << 63) - 1

Item = TypeVar("Item")


def check_seconds(**times: float | None) -> None:
    """Refuse what is no number of seconds above 0, or more than 31 years.

    Raises:
        InvalidArgumentError: names it.
    """
    for name, seconds in times.items():
        if not _is_number(seconds) or not 0 < seconds <= SECONDS_MAX:
            raise InvalidArgumentError(f"{name} is {seconds!r}: it must be a number of seconds above 0")


def check_wait(**times: float | None) -> None:
    """As `check_seconds`, and 0 is allowed."""
    for name, seconds in times.items():
        if not _is_number(seconds) or not 0 <= seconds <= SECONDS_MAX:
            raise InvalidArgumentError(f"{name} is {seconds!r}: it must be a number of seconds, 0 or more")


def check_count(*, least: int = 1, most: int = COUNT_MAX, **counts: int | None) -> None:
    """Refuse what is no whole number from `least` to `most`.

    Raises:
        InvalidArgumentError: names it.
    """
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or not least <= count <= most:
            raise InvalidArgumentError(f"{name} is {count!r}: it must be a whole number from {least} to {most}")


def check_flag(**flags: bool | None) -> None:
    """Refuse what is neither True nor False.

    Raises:
        InvalidArgumentError: names it.
    """
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InvalidArgumentError(f"{name} is {flag!r}, neither True nor False")


def check_callable(**functions: object) -> None:
    """Refuse what cannot be called; None stands for nothing.

    Raises:
        InvalidArgumentError: names it.
    """
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise InvalidArgumentError(f"{name} is {function!r}, which cannot be called")


def check_kind(kind: type | tuple[type, ...], **values: object) -> None:
    """Refuse what is of another type.

    Raises:
        InvalidArgumentError: names it, and both types.
    """
    for name, value in values.items():
        if not isinstance(value, kind):
            kinds = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
            raise InvalidArgumentError(f"{name} is {type(value).__name__}, not {kinds}: {value!r}")


def check_no_bytes(**values: object) -> None:
    """Refuse bytes where a text or several are wanted: they would pass for several numbers.

    Raises:
        InvalidArgumentError: names it.
    """
    for name, value in values.items():
        if isinstance(value, bytes | bytearray | memoryview):
            raise InvalidArgumentError(f"{name} is {type(value).__name__}, not str: {value!r}")


def check_text(value: object, what: str) -> None:
    """Refuse what is no text.

    Raises:
        InvalidArgumentError: names it, and its type.
    """
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{what} is {type(value).__name__}, not str: {value!r}")


def check_texts(**values: object) -> None:
    """As `check_text`, for several."""
    for name, value in values.items():
        check_text(value, name)


def check_text_map(*, may_delete: bool = False, **maps: object) -> None:
    """Refuse what does not map texts to texts (or to None, if that deletes).

    Raises:
        InvalidArgumentError: names it.
    """
    allowed = (str, type(None)) if may_delete else (str,)
    for name, given in maps.items():
        pairs = given.items() if isinstance(given, Mapping) else [(None, None)]
        if not all(isinstance(key, str) and isinstance(value, allowed) for key, value in pairs):
            raise InvalidArgumentError(f"{name} is {given!r}: it must map texts to texts")


def listed(kind: type | tuple[type, ...], name: str, items: Iterable[Item]) -> list[Item]:
    """Several things as a list; a text or bytes are one thing, not several.

    Raises:
        InvalidArgumentError: not several, or one is of another type; names it.
    """
    if not isinstance(items, Iterable) or isinstance(items, str | bytes | bytearray | memoryview | Mapping):
        raise InvalidArgumentError(f"{name} is {type(items).__name__}, not a list: {items!r}")
    found = list(items)
    for index, item in enumerate(found):
        if not isinstance(item, kind):
            raise InvalidArgumentError(f"{name}[{index}] is {type(item).__name__}: {item!r}")
    return found


def unix_ms(when: datetime, what: str) -> int:
    """A time as Unix ms.

    Raises:
        InvalidArgumentError: no datetime, or one without a time zone, which means another time on each machine.
    """
    if not isinstance(when, datetime):
        raise InvalidArgumentError(f"{what} is {type(when).__name__}, not a datetime: {when!r}")
    if when.tzinfo is None:
        raise InvalidArgumentError(f"{what} is {when}, without a time zone: say which")
    return int(when.timestamp() * 1000)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
