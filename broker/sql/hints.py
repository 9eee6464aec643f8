"""Hints: byte patterns that occur in the properties of every message an expression matches, to search many at once.

    a > 8 AND region IN ('eu', 'us')   -->   0x02 a 0x01 (digits above 8) 0x02    0x02 region 0x01 (eu|us) 0x02

Every message that matches has the hint; some that do not match may have it, too. In the bytes searched, each property
is between two 0x02. Of several properties with one name the last one that is not empty counts; all tests of a name are
combined into one pattern for one such place.
"""

import re
from collections.abc import Iterable
from typing import Final

Hints = dict[bytes, bytes]
"""By property name: the pattern behind a 0x02. A choice between several properties has the empty name."""

NO_HINTS: Final[Hints] = {}
BYTES_MAX: Final = 512
"""Longest hint in bytes; tests that would make it longer are left out of it."""
CHOICES_MAX: Final = 32
PART_MAX: Final = 8
"""Longest text to search inside a value, in bytes: its cost is its length times the value's."""

SCANS_MAX: Final = 2
"""How often a hint may make the search pass over one value; further tests are left out of the hint."""

_SCAN: Final = rb"[^\x02]*"
_HINTS_MAX: Final = 4
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def present(name: bytes) -> Hints:
    """Return hints for the test that a property exists."""
    return {name: re.escape(name) + rb"\x01(?!\x02)"}


def value_like(name: bytes, pattern: bytes) -> Hints:
    """Return hints for the test that the pattern matches the whole value."""
    return _of_value(name, b"(?:" + pattern + rb")\x02")


def whole_number(name: bytes, sign: str, number: int) -> Hints:
    """Return hints for the test that the value is an integer and `value sign number` holds.

    `sign` is =, <>, <, <=, > or >=.
    """
    if sign == "<>":
        return present(name)
    if sign == "=":
        zero = rb"[+-]?0+" if number == 0 else b""
        return value_like(name, zero or _signed(number < 0) + b"0*+%d" % abs(number))
    if sign in (">", ">="):
        return value_like(name, _at_least(number + (sign == ">")))
    return value_like(name, _at_most(number - (sign == "<")))


def one_of(name: bytes, texts: Iterable[bytes]) -> Hints:
    """Return hints for the test that the value is one of `texts`."""
    return value_like(name, b"|".join(map(re.escape, sorted(texts))))


def text_part(name: bytes, word: str, part: str) -> Hints:
    """Return hints for the test that the value CONTAINS, STARTSWITH or ENDSWITH (`word`) the text `part`."""
    if not part or _REPLACEMENT in part:  # U+FFFD stands for bytes that are not valid UTF-8
        return present(name)
    encoded = part.encode(errors="surrogatepass")
    if word == "STARTSWITH":
        return _of_value(name, re.escape(encoded))
    if word == "ENDSWITH":
        return _of_value(name, _SCAN + re.escape(encoded[-PART_MAX:]) + rb"\x02")
    return _of_value(name, _SCAN + re.escape(encoded[:PART_MAX]))


def all_hints(parts: Iterable[Hints]) -> Hints:
    """Return hints for messages for which all parts hold."""
    found: Hints = {}
    for hints in parts:
        for name, hint in hints.items():
            found[name] = _both(name, found[name], hint) if name in found else hint
    return found


def any_hints(parts: Iterable[Hints]) -> Hints:
    """Return hints for messages for which one of the parts holds.

    They are a choice between one hint of each part, if each part has one.
    """
    chosen: list[bytes] = []
    for hints in parts:
        if not hints or len(chosen) == CHOICES_MAX:
            return NO_HINTS
        chosen.append(max(hints.values(), key=len))
    choice = b"(?:" + b"|".join(chosen) + b")"
    return {b"": choice} if _is_cheap(choice) else NO_HINTS


def patterns(hints: Hints) -> tuple[bytes, ...]:
    """Return at most `_HINTS_MAX` patterns to search for; every matching message has each of them."""
    longest = sorted(hints.values(), key=len, reverse=True)[:_HINTS_MAX]
    return tuple(rb"\x02" + hint for hint in longest)


def _of_value(name: bytes, pattern: bytes) -> Hints:
    hint = re.escape(name) + rb"\x01(?=" + pattern + b")"
    return {name: hint} if _is_cheap(hint) else present(name)


def _both(name: bytes, one: bytes, other: bytes) -> bytes:
    if not name:
        return max(one, other, key=len)
    both = one + other[len(re.escape(name) + rb"\x01") :]
    return both if _is_cheap(both) else one


def _is_cheap(hint: bytes) -> bool:
    return len(hint) <= BYTES_MAX and hint.count(_SCAN) <= SCANS_MAX


def _signed(is_negative: bool) -> bytes:
    return b"-" if is_negative else rb"\+?"


def _at_least(number: int) -> bytes:
    if number < 0:
        return _signed(True) + b"0*+(?:" + _up_to(-number) + rb")|\+?[0-9]+"
    if number == 0:
        return rb"\+?[0-9]+|-0+"
    return _signed(False) + b"0*+(?:" + _from(number) + b")"


def _at_most(number: int) -> bytes:
    if number < 0:
        return _signed(True) + b"0*+(?:" + _from(-number) + b")"
    return _signed(False) + b"0*+(?:" + _up_to(number) + b")|-[0-9]+"


def _from(number: int) -> bytes:
    """Return a pattern for the digits, without leading 0, of `number` (above 0) or any greater number."""
    digits = b"%d" % number
    more = [b"[1-9][0-9]{%d,}" % len(digits)]
    return b"|".join([*more, *_branches(digits, ord("9")), digits])


def _up_to(number: int) -> bytes:
    """Return a pattern for the digits, without leading 0, of any number from 0 to `number`; 0 has no digits."""
    digits = b"%d" % number
    fewer = b"[0-9]{0,%d}" % (len(digits) - 1)
    return b"|".join([fewer, *_branches(digits, ord("0")), digits])


def _branches(digits: bytes, last: int) -> Iterable[bytes]:
    """Patterns for numbers of as many digits: a common prefix, then a digit nearer to `last`, then any digits."""
    for index, digit in enumerate(digits):
        if digit == last:
            continue
        low, high = (digit + 1, last) if last > digit else (last, digit - 1)
        yield digits[:index] + b"[%c-%c]" % (low, high) + b"[0-9]{%d}" % (len(digits) - index - 1)
