"""What an expression says of the bytes of every message it matches: patterns for a search through many at once.

    a > 8 AND region IN ('eu', 'us')   -->   0x02 a 0x01 (digits above 8) 0x02    0x02 region 0x01 (eu|us) 0x02

A hint may be found in messages that do not match, but is in all that do. In the bytes searched, each property stands
between two 0x02. The one that counts (the last of its name that is not empty) is one of those, so what several tests
ask of one property is asked of the same place.
"""

import re
from collections.abc import Iterable
from typing import Final

Hints = dict[bytes, bytes]
"""By the name of a property, or by nothing for a choice between several: a pattern of what stands behind a 0x02."""

NO_HINTS: Final[Hints] = {}
BYTES_MAX: Final = 512
"""Of a hint; of one that grows beyond, the shorter part stands."""
CHOICES_MAX: Final = 32
PART_MAX: Final = 8
"""Bytes of a text that is looked for inside a value: each may be compared at each place."""

SCANS_MAX: Final = 2
"""How often the search for one hint may go through a value; tests beyond that are not part of it."""

_SCAN: Final = rb"[^\x02]*"
_HINTS_MAX: Final = 4
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def present(name: bytes) -> Hints:
    """There is such a property."""
    return {name: re.escape(name) + rb"\x01(?!\x02)"}


def value_like(name: bytes, pattern: bytes) -> Hints:
    """Its value is matched by a pattern, as a whole."""
    return _of_value(name, b"(?:" + pattern + rb")\x02")


def whole_number(name: bytes, sign: str, number: int) -> Hints:
    """Its value is a whole number that is `=`, `<>`, `<`, `<=`, `>` or `>=` this one."""
    if sign == "<>":
        return present(name)
    if sign == "=":
        zero = rb"[+-]?0+" if number == 0 else b""
        return value_like(name, zero or _signed(number < 0) + b"0*+%d" % abs(number))
    if sign in (">", ">="):
        return value_like(name, _at_least(number + (sign == ">")))
    return value_like(name, _at_most(number - (sign == "<")))


def one_of(name: bytes, texts: Iterable[bytes]) -> Hints:
    """Its value is one of these."""
    return value_like(name, b"|".join(map(re.escape, sorted(texts))))


def text_part(name: bytes, word: str, part: str) -> Hints:
    """Its value CONTAINS, STARTSWITH or ENDSWITH this text."""
    if not part or _REPLACEMENT in part:  # which stands for bytes that are no text
        return present(name)
    encoded = part.encode(errors="surrogatepass")
    if word == "STARTSWITH":
        return _of_value(name, re.escape(encoded))
    if word == "ENDSWITH":
        return _of_value(name, _SCAN + re.escape(encoded[-PART_MAX:]) + rb"\x02")
    return _of_value(name, _SCAN + re.escape(encoded[:PART_MAX]))


def all_hints(parts: Iterable[Hints]) -> Hints:
    """Of what all of these are asked for."""
    found: Hints = {}
    for hints in parts:
        for name, hint in hints.items():
            found[name] = _both(name, found[name], hint) if name in found else hint
    return found


def any_hints(parts: Iterable[Hints]) -> Hints:
    """Of what one of these is asked for: a choice between a hint of each, if each has one."""
    chosen: list[bytes] = []
    for hints in parts:
        if not hints or len(chosen) == CHOICES_MAX:
            return NO_HINTS
        chosen.append(max(hints.values(), key=len))
    choice = b"(?:" + b"|".join(chosen) + b")"
    return {b"": choice} if _is_cheap(choice) else NO_HINTS


def patterns(hints: Hints) -> tuple[bytes, ...]:
    """Some patterns to search for, each of which every wanted message has."""
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
    """Digits, the first not 0, of this number above 0 or a greater one."""
    digits = b"%d" % number
    more = [b"[1-9][0-9]{%d,}" % len(digits)]
    return b"|".join([*more, *_branches(digits, ord("9")), digits])


def _up_to(number: int) -> bytes:
    """Digits, the first not 0, of this number or a smaller one; none of 0."""
    digits = b"%d" % number
    fewer = b"[0-9]{0,%d}" % (len(digits) - 1)
    return b"|".join([fewer, *_branches(digits, ord("0")), digits])


def _branches(digits: bytes, last: int) -> Iterable[bytes]:
    """As many digits that begin as these, have one nearer to the `last` possible, and then any."""
    for index, digit in enumerate(digits):
        if digit == last:
            continue
        low, high = (digit + 1, last) if last > digit else (last, digit - 1)
        yield digits[:index] + b"[%c-%c]" % (low, high) + b"[0-9]{%d}" % (len(digits) - index - 1)
