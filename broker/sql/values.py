"""Compares the text of a property with a value of an expression, as Java's filter does.

Properties are text. For a comparison with an integer they are parsed as integers, so `a > 3` does not match a=3.5, in
RocketMQ neither. If the text cannot be parsed, the whole expression does not match. Integers have any size here, in
Java 32 bits.

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
    """Return a negative number, 0 or a positive one, as `left` is less than, equal to or greater than `right`.

    It is -1 for different kinds of values. Neither may be None.

    Raises:
        IncomparableError: a text is compared with a number and is none.
    """
    if isinstance(left, str):
        left, right = _text_first(left, right)
    elif isinstance(right, str):
        if isinstance(left, bool):
            raise IncomparableError
        right = decimal(right) if isinstance(left, float) else integer(right)
    elif isinstance(left, bool) is not isinstance(right, bool):
        return -1
    return (left > right) - (left < right)  # type: ignore[operator]  # both are texts, both booleans, or both numbers


def compare_order(left: Value, right: Value) -> int:
    """Compare as `compare` does, but two texts as decimals."""
    if isinstance(left, str) and isinstance(right, str):
        return compare(decimal(left), decimal(right))
    return compare(left, right)


def integer(text: str) -> int:
    """Parse an integer; raises `IncomparableError` for any other text."""
    if _INTEGER.match(text) is None:
        raise IncomparableError
    return int(text)


def encoded_integer(value: bytes) -> int:
    """Parse encoded text as `integer` does."""
    if not (value.isdigit() and len(value) <= _DIGITS_MAX) and _ENCODED_INTEGER.match(value) is None:
        raise IncomparableError
    return int(value)


def decimal(text: str) -> float:
    """Parse a decimal as Java's Double.valueOf does (without its hexadecimal form); raises `IncomparableError`."""
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
