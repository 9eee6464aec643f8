"""Checks of arguments that programs give; each error names the argument, its value and what is allowed.

Optional arguments are checked only when they are given: `check_seconds(**given(deadline_s=deadline_s))`.
"""

import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypeGuard, TypeVar

from ledgermq.client.errors import InvalidArgumentError
from ledgermq.remoting.route import QUEUE_ID_MAX, MessageQueue

SECONDS_MAX: Final = 1_000_000_000  # about 31 years; larger values do not fit into headers
COUNT_MAX: Final = (1 << 63) - 1
TOPIC_LENGTH_MAX: Final = 127
GROUP_LENGTH_MAX: Final = 120
NAME_PATTERN: Final = re.compile(r"[%|a-zA-Z0-9_-]+")

Item = TypeVar("Item")


def given(**values: Any) -> dict[str, Any]:
    """Return the arguments that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def check_seconds(**times: float | None) -> None:
    """Accept numbers of seconds above 0, up to 31 years.

    Raises:
        InvalidArgumentError: another value; names the argument.
    """
    for name, seconds in times.items():
        if not _is_number(seconds) or not 0 < seconds <= SECONDS_MAX:
            raise InvalidArgumentError(f"{name} is {seconds!r}: it must be a number of seconds above 0")


def check_wait(**times: float | None) -> None:
    """Accept numbers of seconds as `check_seconds`, and 0."""
    for name, seconds in times.items():
        if not _is_number(seconds) or not 0 <= seconds <= SECONDS_MAX:
            raise InvalidArgumentError(f"{name} is {seconds!r}: it must be a number of seconds, 0 or more")


def check_count(*, least: int = 1, most: int = COUNT_MAX, **counts: int | None) -> None:
    """Accept whole numbers from `least` to `most`, both included.

    Raises:
        InvalidArgumentError: another value; names the argument.
    """
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or not least <= count <= most:
            raise InvalidArgumentError(f"{name} is {count!r}: it must be a whole number from {least} to {most}")


def check_flag(**flags: bool | None) -> None:
    """Accept True and False.

    Raises:
        InvalidArgumentError: another value; names the argument.
    """
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InvalidArgumentError(f"{name} is {flag!r}, neither True nor False")


def check_callable(**functions: object) -> None:
    """Accept functions, and None for no function.

    Raises:
        InvalidArgumentError: it cannot be called; names the argument.
    """
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise InvalidArgumentError(f"{name} is {function!r}, which cannot be called")


def check_kind(kind: type | tuple[type, ...], /, **values: object) -> None:
    """Accept values of the given types.

    Raises:
        InvalidArgumentError: another type; names the argument and both types.
    """
    for name, value in values.items():
        if not isinstance(value, kind):
            kinds = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
            raise InvalidArgumentError(f"{name} is {type(value).__name__}, not {kinds}: {value!r}")


def check_no_bytes(**values: object) -> None:
    """Refuse bytes where a text or a list of texts is wanted: bytes would pass for a list of numbers.

    Raises:
        InvalidArgumentError: bytes; names the argument.
    """
    for name, value in values.items():
        if isinstance(value, bytes | bytearray | memoryview):
            raise InvalidArgumentError(f"{name} is {type(value).__name__}, not str: {value!r}")


def check_text(value: object, what: str) -> None:
    """Accept a str.

    Raises:
        InvalidArgumentError: another type; names the argument and the type.
    """
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{what} is {type(value).__name__}, not str: {value!r}")


def check_name(name: str, what: str, length_max: int) -> None:
    """Refuse a topic or group name that no broker accepts.

    Raises:
        InvalidArgumentError: empty, too long, or with a character that is not allowed.
    """
    check_text(name, what)
    if not NAME_PATTERN.fullmatch(name):
        raise InvalidArgumentError(f"{what} {name!r} is empty or has a character that is not one of %|a-zA-Z0-9_-")
    if len(name) > length_max:
        raise InvalidArgumentError(f"{what} {name!r} has {len(name)} characters, at most {length_max} are allowed")


def check_topic(topic: str) -> None:
    """Check a topic name; see `check_name`."""
    check_name(topic, "topic", TOPIC_LENGTH_MAX)


def check_group(group: str) -> None:
    """Check a group name; see `check_name`."""
    check_name(group, "group", GROUP_LENGTH_MAX)


def check_text_map(*, may_delete: bool = False, **maps: object) -> None:
    """Accept mappings from str to str, and to None where that deletes a key.

    Raises:
        InvalidArgumentError: another value; names the argument.
    """
    allowed = (str, type(None)) if may_delete else (str,)
    for name, given in maps.items():
        pairs = given.items() if isinstance(given, Mapping) else [(None, None)]
        if not all(isinstance(key, str) and isinstance(value, allowed) for key, value in pairs):
            raise InvalidArgumentError(f"{name} is {given!r}: it must map texts to texts")


def listed(kind: type | tuple[type, ...], name: str, items: Iterable[Item]) -> list[Item]:
    """Return the items of an iterable as a list; a str, bytes or a mapping does not count as an iterable of items.

    Raises:
        InvalidArgumentError: not an iterable, or an item of another type; names the argument and the item's index.
    """
    if not isinstance(items, Iterable) or isinstance(items, str | bytes | bytearray | memoryview | Mapping):
        raise InvalidArgumentError(f"{name} is {type(items).__name__}, not a list: {items!r}")
    found = list(items)
    for index, item in enumerate(found):
        if not isinstance(item, kind):
            raise InvalidArgumentError(f"{name}[{index}] is {type(item).__name__}: {item!r}")
    return found


def unix_ms(when: datetime, what: str) -> int:
    """Return a datetime as Unix milliseconds.

    Raises:
        InvalidArgumentError: not a datetime, or one without a time zone, which would depend on the machine.
    """
    if not isinstance(when, datetime):
        raise InvalidArgumentError(f"{what} is {type(when).__name__}, not a datetime: {when!r}")
    if when.tzinfo is None:
        raise InvalidArgumentError(f"{what} is {when}, without a time zone: give one, such as tzinfo=UTC")
    return int(when.timestamp() * 1000)


def check_queue(queue: MessageQueue, what: str = "queue") -> None:
    """Accept a MessageQueue of two texts and a queue id.

    Raises:
        InvalidArgumentError: another value; `what` names it.
    """
    if not isinstance(queue, MessageQueue):
        raise InvalidArgumentError(f"{what} is {type(queue).__name__}, not a MessageQueue: {queue!r}")
    topic, broker, number = queue
    is_number = isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= QUEUE_ID_MAX
    if not (isinstance(topic, str) and isinstance(broker, str) and is_number):
        raise InvalidArgumentError(f"{what} is {queue!r}: topic and broker are texts, the queue id is 0 or more")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
