"""The text of a configuration value, made into the value its key asks for; refused with a sentence that says why."""

import math
import re
from collections.abc import Callable, Mapping

from dledger.config import PeerAddress, parse_peers
from dledger.errors import RaftConfigError
from ledgermq.remoting.addresses import is_port
from node.keys import Key
from store.cleaning.config import parse_hours

Value = bool | int | float | str

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_RANGES = {"int": 1 << 31, "long": 1 << 63}


class ValueRefusedError(ValueError):
    """The value does not fit its key; the text continues a sentence that has named the key."""


def parse_value(key: Key, text: str) -> Value:
    """The value by the key's kind.

    Raises:
        ValueRefusedError: it does not parse.
    """
    if (parse := _PARSERS.get(key.kind)) is not None:
        return parse(key, text)
    words = key.kind.split("/")
    if text not in words:
        raise ValueRefusedError(f"is {text!r}, not one of {', '.join(words)}")
    return text


def _bool(key: Key, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueRefusedError(f"is {text!r}, not true or false")
    return text.lower() == "true"


def _integer(key: Key, text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueRefusedError(f"is {text!r}, not a whole number")
    number, limit = int(text), _RANGES[key.kind]
    if not -limit <= number < limit:
        raise ValueRefusedError(f"is {text}, out of range [{-limit}, {limit})")
    return number


def _double(key: Key, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueRefusedError(f"is {text!r}, not a number") from None
    if not math.isfinite(number):
        raise ValueRefusedError(f"is {text!r}, not a finite number")
    return number


def _port_or_off(key: Key, text: str) -> Value:
    if text == "off":
        return text
    if not _INTEGER.fullmatch(text):
        raise ValueRefusedError(f"is {text!r}, not a port or off")
    return port(int(text))


_PARSERS: Mapping[str, Callable[[Key, str], Value]] = {
    "bool": _bool,
    "int": _integer,
    "long": _integer,
    "double": _double,
    "port or off": _port_or_off,
    "text": lambda key, text: text,
}


def port(number: int) -> int:
    """A TCP port; 0 asks for any free one.

    Raises:
        ValueRefusedError: not in [0, 65535].
    """
    if not 0 <= number < 65536:
        raise ValueRefusedError(f"is {number}, not a port from 0 to 65535")
    return number


def codes(text: str) -> frozenset[int]:
    """Request codes, `10,310`.

    Raises:
        ValueRefusedError: one is no number.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if not _INTEGER.fullmatch(word):
            raise ValueRefusedError(f"has {word!r}, which is no request code")
    return frozenset(map(int, words))


def show_codes(found: frozenset[int]) -> str:
    """The codes as `codes` reads them."""
    return ",".join(map(str, sorted(found)))


def positive(number: int) -> int:
    """A number above 0.

    Raises:
        ValueRefusedError: it is not.
    """
    if number <= 0:
        raise ValueRefusedError(f"is {number}, must be above 0")
    return number


def not_negative(number: int) -> int:
    """A number from 0 on.

    Raises:
        ValueRefusedError: it is not.
    """
    if number < 0:
        raise ValueRefusedError(f"is {number}, must be 0 or more")
    return number


def percent(number: int) -> int:
    """A part of a hundred.

    Raises:
        ValueRefusedError: not in [0, 100].
    """
    if not 0 <= number <= 100:
        raise ValueRefusedError(f"is {number}, not a percentage from 0 to 100")
    return number


def ratio(number: float) -> float:
    """A part of one.

    Raises:
        ValueRefusedError: not in [0, 1].
    """
    if not 0 <= number <= 1:
        raise ValueRefusedError(f"is {number}, not a part from 0 to 1")
    return number


def hours(text: str) -> frozenset[int]:
    """Hours of a day, `02;14`.

    Raises:
        ValueRefusedError: one of them is none.
    """
    try:
        return parse_hours(text)
    except ValueError as error:
        raise ValueRefusedError(f"is {error}") from error


def show_hours(found: frozenset[int]) -> str:
    """As they are written in a file."""
    return ";".join(f"{hour:02d}" for hour in sorted(found))


def permission(number: int) -> int:
    """Bits 4 read and 2 write.

    Raises:
        ValueRefusedError: other bits.
    """
    if number not in (0, 2, 4, 6):
        raise ValueRefusedError(f"is {number}, not 2 (write), 4 (read), 6 (both) or 0")
    return number


def register_interval(number: int) -> int:
    """RocketMQ brings this time into [10000, 60000] by itself; so do we."""
    return max(10_000, min(number, 60_000))


def words(text: str) -> tuple[str, ...]:
    """Words divided by semicolons; empty ones are left out."""
    return tuple(word for part in text.split(";") if (word := part.strip()))


def address_list(text: str) -> tuple[str, ...]:
    """`host:port;host:port`.

    Raises:
        ValueRefusedError: a part that is something else, or stands twice.
    """
    places = [part.strip() for part in text.split(";") if part.strip()]
    for place in places:
        host, _, number = place.rpartition(":")
        if not host or not is_port(number):
            raise ValueRefusedError(f"has {place!r}, not host:port")
        if places.count(place) > 1:
            raise ValueRefusedError(f"has {place!r} twice")
    return tuple(places)


def raft_peers(text: str) -> tuple[PeerAddress, ...]:
    """`n0-host:port;n1-host:port`.

    Raises:
        ValueRefusedError: it does not parse, or two peers are equal.
    """
    try:
        return parse_peers(text)
    except RaftConfigError as error:
        raise ValueRefusedError(f"does not parse: {error}") from error


def broker_role(text: str) -> str:
    """Only ASYNC_MASTER, the role of a broker that nobody copies from.

    Raises:
        ValueRefusedError: another role of classic replication, which is not here.
    """
    if text != "ASYNC_MASTER":
        raise ValueRefusedError(f"is {text}: masters and slaves are not here yet, replicate by enableDLegerCommitLog")
    return text


def whole_units(size: int) -> int:
    """A size rounded up to units of 20 bytes, as upstream does.

    Raises:
        ValueRefusedError: not above 0.
    """
    return -(-positive(size) // 20) * 20
