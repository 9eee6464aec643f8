"""Reads JSON, also as Java's fastjson writes it: numbers, words and whole objects as map keys.

    {0: "10.0.0.1:10911"}                     -> {"0": "10.0.0.1:10911"}
    {{"brokerName": "b", "queueId": 1}: 42}   -> {'{"brokerName":"b","queueId":1}': 42}

`loads` tries the standard parser first; only text that it refuses is read by the slow parser here. Nesting and length
are limited, so that no input can exhaust the stack or block the loop, neither now nor when the value is written again.
Every text in the result can be encoded as UTF-8.

Source: behaviour of com.alibaba.fastjson 1.2.83, as measured.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import JsonError
from ledgermq.remoting.refusal import Cause, Refusal

DEPTH_MAX: Final = 64
HEADER_DEPTH_MAX: Final = 8
LENGTH_MAX: Final = 256 * 1024
SLOW_MARKS_MAX: Final = 1 << 15
"""Largest text for the slow parser, in bytes and in marks (as below): it takes 0.2 s. JSON of Java is shorter."""
MARKS_MAX: Final = 1 << 21
"""Largest number of commas, colons and opening brackets in a text, including those inside of strings.

Such a text, for example the locks of 262,144 queues or a registration of 100,000 topics, is parsed in about 0.15 s
without a pause, and takes about 120 MB.
"""
REQUEST_MARKS_MAX: Final = 1 << 20
"""The same for a client's request, which is parsed twice: to check its rights, and to serve it.

The locks of 65,536 queues have half of that.
"""

LISTED_MAX: Final = 10_000
"""Most elements of a list in a request: they take about 0.2 s of processor time if each changes a table."""

_MARKS: Final = "[{,:"
_SHOWN_MAX: Final = 100
_NUMBER_LENGTH_MAX: Final = 400
_I64_MIN: Final = -(1 << 63)
_U64_MAX: Final = (1 << 64) - 1  # largest number of the standard parser
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_WORD: Final = re.compile(r"[\w$@.+-]+", re.ASCII)
_LITERALS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None}
_STRINGS: Final = json.JSONDecoder(strict=False)

Data = bytes | bytearray | memoryview | str


def loads(data: Data, marks_max: int = MARKS_MAX) -> Any:
    """Return the value in `data`; object keys are always text, the last of equal keys counts.

    Raises:
        JsonError: not JSON even leniently, not UTF-8, too deep, of too many parts, odd and too long, or a number beyond
            a float.
    """
    if len(data) > marks_max and (count := _count(data, _MARKS)) > marks_max:
        raise JsonError(0, f"{count} commas, colons and brackets; it may have {marks_max}")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return _Parser(_text(data), _to_number).whole()
    if (opened := _count(data, "[{")) > DEPTH_MAX and _is_deep(value, opened):
        raise JsonError(0, f"nested deeper than {DEPTH_MAX}")
    return value


def _count(data: Data, marks: str) -> int:
    """Return how often the characters in `marks` occur, including inside of strings."""
    if isinstance(data, str):
        return sum(map(data.count, marks))
    whole = data if isinstance(data, (bytes, bytearray)) else bytes(data)
    return sum(map(whole.count, marks.encode()))


def _is_deep(value: Any, most: int) -> bool:
    """Return whether a list or object is nested in more than `DEPTH_MAX` others; without recursion.

    There are at most `most` of them. Once all are found, the search ends without looking into the last ones.
    """
    level = [value]
    for _ in range(DEPTH_MAX):
        most -= len(level)
        level = _inner(level)
        if not level or len(level) == most:
            return False
    return bool(_inner(level))


def _inner(outer: list[Any]) -> list[Any]:
    """Return the lists and objects that these lists and objects have as members."""
    return [
        member
        for one in outer
        for member in (one.values() if type(one) is dict else one)
        if type(member) is dict or type(member) is list
    ]


def loads_numbers_as_text(data: Data) -> Any:
    """Return what `loads` returns, for a header: numbers are returned as their text, so that no digits are lost.

    Raises:
        JsonError: see `loads`.
    """
    return _Parser(_text(data), str, HEADER_DEPTH_MAX).whole()


def _text(data: Data) -> str:
    if len(data) > LENGTH_MAX:
        raise JsonError(0, f"{len(data)} bytes that are not standard JSON; such a text may have at most {LENGTH_MAX}")
    if (count := _count(data, _MARKS)) > SLOW_MARKS_MAX:
        bound = f"such a text may have at most {SLOW_MARKS_MAX}"
        raise JsonError(0, f"{count} commas, colons and brackets in what is not standard JSON; {bound}")
    try:
        return data if isinstance(data, str) else bytes(data).decode()
    except UnicodeDecodeError as error:
        raise JsonError(error.start, "not UTF-8") from error


def _to_number(text: str) -> int | float:
    if len(text) > _NUMBER_LENGTH_MAX:
        raise ValueError(f"a number of {len(text)} characters")
    if text.lstrip("-").isdigit():
        if not _I64_MIN <= (number := int(text)) <= _U64_MAX:
            raise ValueError(f"{text[:40]} does not fit into 64 bits")
        return number
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is out of range")
    return value


def request_json(command: Command) -> Any:
    """Return the body of a request, which must be JSON, standard or as Java writes it.

    Raises:
        Refusal: MALFORMED_FIELD, with the place of the fault.
    """
    try:
        return loads(command.body, REQUEST_MARKS_MAX)
    except JsonError as error:
        raise Refusal(Cause.MALFORMED_FIELD, f"{command.name}: the body is not JSON: {error}") from error


def request_object(command: Command) -> dict[str, Any]:
    """Return the body of a request, which must be one JSON object; raises what `request_json` raises."""
    body = request_json(command)
    if not isinstance(body, dict):
        raise Refusal(Cause.MALFORMED_FIELD, f"{command.name}: the body is not a JSON object")
    return body


def listed_json(command: Command, name: str, key: str) -> list[Any]:
    """Return a list, of 1 to `LISTED_MAX` elements, that is a member of a request's JSON body.

    Each element has this key; so a list that is too long is refused before it is parsed.

    Raises:
        Refusal: MALFORMED_FIELD, names the member or the place of the fault; INVALID_PARAMETER, the list is too long.
    """
    check_keys(command, name, key)
    found = request_object(command).get(name)
    if not isinstance(found, list) or not found:
        raise Refusal(Cause.MALFORMED_FIELD, f"{command.name}: {name} is {str(found)[:_SHOWN_MAX]!r}, not a list")
    check_count(command, name, len(found))
    return found


def check_keys(command: Command, name: str, key: str, most: int = LISTED_MAX) -> None:
    """Check a list whose elements each have this key, before the body is parsed; see `check_count`."""
    check_count(command, name, bytes(command.body).count(f'"{key}"'.encode()), most)


def check_count(command: Command, name: str, count: int, most: int = LISTED_MAX) -> None:
    """Refuse a list of a request that has more than `most` elements.

    Raises:
        Refusal: INVALID_PARAMETER.
    """
    if count > most:
        remark = f"{command.name}: {name} has {count} elements, {most} are the most: send several requests"
        raise Refusal(Cause.INVALID_PARAMETER, remark)


def json_body(body: bytes | memoryview, what: str) -> Mapping[str, Any]:
    """Return a body that must be one JSON object; raises what `json_value` raises."""
    value = json_value(body, what)
    if not isinstance(value, dict):
        raise bad_body(what, value, "a JSON object")
    return value


def json_value(body: bytes | memoryview, what: str) -> Any:
    """Return a body that must be JSON, standard or as Java writes it.

    Raises:
        Refusal: SYSTEM_ERROR, as RocketMQ answers it, with the place of the fault.
    """
    try:
        return loads(body)
    except JsonError as error:
        raise Refusal(Cause.SYSTEM_ERROR, f"{what}: {error}") from error


def bad_body(what: str, value: object, wanted: str) -> Refusal:
    """Return the refusal of a body's member that has a wrong value."""
    return Refusal(Cause.SYSTEM_ERROR, f"{what} is {str(value)[:_SHOWN_MAX]!r}, not {wanted}")


class _Parser:
    """Recursive descent. A method gets the position of what it reads and sets `_end` to the position after it."""

    def __init__(self, text: str, to_number: Callable[[str], Any], depth_max: int = DEPTH_MAX) -> None:
        self._text = text
        self._depth_max = depth_max
        self._to_number = to_number
        self._end = 0
        self._in_key = False

    def whole(self) -> Any:
        value = self._value(self._skip(0), 0)
        end = self._skip(self._end)
        if end != len(self._text):
            raise JsonError(end, f"{self._text[end : end + 20]!r} after the value")
        return value

    def _value(self, at: int, depth: int) -> Any:
        if depth > self._depth_max:
            raise JsonError(at, f"nested deeper than {self._depth_max}")
        match self._text[at : at + 1]:
            case "{":
                return self._object(at, depth)
            case "[":
                return self._array(at, depth)
            case '"':
                return self._string(at)
            case _:
                return self._number_or_literal(at)

    def _object(self, at: int, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        at = self._skip(at + 1)
        more = not self._closes(at, "}")
        while more:
            key = self._key(at, depth)
            self._expect(":", self._skip(self._end))
            result[key] = self._value(self._skip(self._end), depth + 1)
            at, more = self._next(self._skip(self._end), "}")
        return result

    def _array(self, at: int, depth: int) -> list[Any]:
        result: list[Any] = []
        at = self._skip(at + 1)
        more = not self._closes(at, "]")
        while more:
            result.append(self._value(at, depth + 1))
            at, more = self._next(self._skip(self._end), "]")
        return result

    def _next(self, at: int, closing: str) -> tuple[int, bool]:
        if self._closes(at, closing):
            return at, False
        self._expect(",", at)
        return self._skip(self._end), True

    def _closes(self, at: int, closing: str) -> bool:
        self._end = at + 1
        return self._text.startswith(closing, at)

    def _expect(self, mark: str, at: int) -> None:
        if not self._text.startswith(mark, at):
            raise JsonError(at, f"{mark!r} expected, found {self._text[at : at + 1]!r}")
        self._end = at + 1

    def _key(self, at: int, depth: int) -> str:
        if self._text.startswith('"', at):
            return self._string(at)
        if self._text.startswith("{", at):
            if self._in_key:  # each further level would double the backslashes
                raise JsonError(at, "an object as a key, within another such key")
            self._in_key = True
            key = self._value(at, depth + 1)
            self._in_key = False
            return json.dumps(key, separators=(",", ":"), ensure_ascii=False)
        return self._word(at, "a key")

    def _word(self, at: int, what: str) -> str:
        match = _WORD.match(self._text, at)
        if match is None:
            raise JsonError(at, f"{what} expected, found {self._text[at : at + 1]!r}")
        self._end = match.end()
        return match.group()

    def _string(self, at: int) -> str:
        value: str
        try:
            value, self._end = _STRINGS.raw_decode(self._text, at)
        except ValueError as error:
            raise JsonError(at, f"not a string: {error}") from error
        # half of a surrogate pair cannot be encoded; Java would write a question mark for it
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _number_or_literal(self, at: int) -> Any:
        match = _NUMBER.match(self._text, at)
        if match is not None:
            self._end = match.end()
            try:
                return self._to_number(match.group())
            except ValueError as error:
                raise JsonError(at, str(error)) from error
        word = self._word(at, "a value")
        if word not in _LITERALS:
            raise JsonError(at, f"a value expected, found {word[:40]!r}")
        return _LITERALS[word]

    def _skip(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        return match.end() if match else at
