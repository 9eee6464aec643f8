"""Comparing a property's text with what an expression says, as Java's filter does.

Properties are text. Compared with a number they are read as one of its kind: with a whole number only whole numbers
are, so that `a > 3` does not match a=3.5 there, nor here. Text that cannot be read so makes the whole expression not
match. Whole numbers have any size here; Java's end at 32 bits.

Source: apache/rocketmq `filter/.../expression/ComparisonExpression.java`.
"""

import re
from typing import Final

from broker.sql.errors import IncomparableError

Value = str | int | float | bool | None

_DIGITS_MAX: Final = 40
_INTEGER: Final = re.compile(rf"[+-]?[0-9]{{1,{_DIGITS_MAX}}}\Z")
_ENCODED_INTEGER: Final = re.compile(_INTEGER.pattern.encode())
_DECIMAL: Final = re.compile(r"\s*[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)\s*\Z")


def compare(left: Value, right: Value) -> int:
    """Below 0, 0 or above 0, as `left` is less than, equal to or greater than `right`; kinds that differ give -1.

    Neither is None.

    Raises:
        IncomparableError: text that is no number where one is needed.
    """
    if isinstance(left, str):
        left, right = _text_first(left, right)
    elif isinstance(right, str):
        if isinstance(left, bool):
            raise IncomparableError
        right = decimal(right) if isinstance(left, float) else integer(right)
    elif isinstance(left, bool) is not isinstance(right, bool):
        return -1
    return (left > right) - (left < right)  # type: ignore[operator]  # of one kind by now, or both numbers


def compare_order(left: Value, right: Value) -> int:
    """As `compare`, but two texts are compared as decimals."""
    if isinstance(left, str) and isinstance(right, str):
        return compare(decimal(left), decimal(right))
    return compare(left, right)


def integer(text: str) -> int:
    """A whole number."""
    if _INTEGER.match(text) is None:
        raise IncomparableError
    return int(text)


def encoded_integer(value: bytes) -> int:
    """A whole number that is encoded text."""
    if not (value.isdigit() and len(value) <= _DIGITS_MAX) and _ENCODED_INTEGER.match(value) is None:
        raise IncomparableError
    return int(value)


def decimal(text: str) -> float:
    """A decimal as Java's Double.valueOf reads it (without its hexadecimal form)."""
    if _DECIMAL.match(text) is None:
        raise IncomparableError
    return float(text.strip().rstrip("fFdD"))


def _text_first(left: str, right: Value) -> tuple[Value, Value]:
    if isinstance(right, bool):
        return left.lower() == "true", right
    if isinstance(right, float):
        return decimal(left), right
    if isinstance(right, int):
        return integer(left), right
    return left, right
