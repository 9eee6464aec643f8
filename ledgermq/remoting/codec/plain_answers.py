"""Answers of success that are passed on as they came, with another number: their JSON is only read if somebody asks.

    {"code":0,"extFields":{..},"flag":1,"language":"PYTHON","opaque":12,"serializeTypeCurrentRPC":"JSON","version":479}
    '---------------------------- before ---------------------------'  '------------------- after --------------------'

This is the form in which LedgerMQ's brokers write them.
"""

import re
from typing import Final

import orjson

from ledgermq.remoting.codec.command import JSON_HEADER, OUR_LANGUAGE, OUR_VERSION, RESPONSE_FLAG, Command

_AFTER: Final = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % OUR_VERSION
_FORM: Final = re.compile(
    rb'\{"code":0,"extFields":\{[^{}]*\},"flag":%d,"language":"%b","opaque":(?P<opaque>0|[1-9][0-9]{0,9})%b'
    % (RESPONSE_FLAG, OUR_LANGUAGE.encode(), re.escape(_AFTER))
)


class PlainAnswer(Command):
    """An answer of success as it was received.

    Attributes:
        before: the header up to the number.
    """

    __slots__ = ("_ext", "before")

    def __init__(self, opaque: int, before: bytes, body: bytes | memoryview) -> None:
        self.code = 0
        self.opaque = opaque
        self.flag = RESPONSE_FLAG
        self.body = body
        self.remark = None
        self.language = OUR_LANGUAGE
        self.version = OUR_VERSION
        self.header_type = JSON_HEADER
        self.before = before
        self._ext: dict[str, str] | None = None

    @property
    def ext(self) -> dict[str, str]:  # type: ignore[override]
        """The header fields."""
        if self._ext is None:
            self._ext = orjson.loads(self.before + b"0}")["extFields"]
        return self._ext

    def header(self, opaque: int) -> bytes:
        """Return the same header with another number."""
        return b"%b%d%b" % (self.before, opaque, _AFTER)


def plain_answer(header: bytes | bytearray, body: bytes | memoryview) -> PlainAnswer | None:
    """Return the answer with this header; None if it has another form."""
    match = _FORM.fullmatch(header)
    return None if match is None else PlainAnswer(int(match["opaque"]), bytes(header[: match.start("opaque")]), body)
