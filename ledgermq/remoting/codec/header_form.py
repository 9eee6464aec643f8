"""The form of a request's header, checked before the request is served.

A form is a line of names: `queueId:i` is a 32-bit number, `maxNum:n` a 32-bit number that is not negative, `offset:l` a
64-bit number, `topic` is text. A field with `?` or `*` may be missing or empty, one with `~` may be missing; clients
nearly always send fields with `*` and `~`. `topic@22` is refused with code 22 if it is missing or wrong, as RocketMQ
does; any other fault is code 1, and the remark names the field.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from typing import Final, NamedTuple

from ledgermq.remoting.codec.fields import Fields, integer, long, text
from ledgermq.remoting.refusal import Cause, Refusal

_MISSING: Final = {
    cause.code: cause
    for cause in (
        Cause.NO_PERMISSION,
        Cause.TOPIC_NOT_EXIST,
        Cause.QUERY_NOT_FOUND,
        Cause.GROUP_NOT_EXIST,
        Cause.INVALID_PARAMETER,
        Cause.POLLING_TIMEOUT,
    )
}


_READERS: Final[Mapping[str, Callable[[Fields, str], object]]] = {
    "": text,
    "i": integer,
    "n": partial(integer, low=0),
    "l": long,
}

_PLAIN: Final = {"i": "-?[0-9]{1,9}", "n": "[0-9]{1,9}", "l": "-?[0-9]{1,18}"}
"""Matches numbers that are certainly valid, as nearly all are. Others are checked one by one."""


class _Word(NamedTuple):
    """One field of a form. `lack` is `?`, `*`, `~` or empty; `cause` is that of its refusal, None: MALFORMED_FIELD."""

    name: str
    kind: str
    lack: str
    cause: Cause | None


class HeaderForm:
    """The form of one request's header; `line` is as described above."""

    def __init__(self, line: str) -> None:
        self._words = [_word(word) for word in line.split()]
        usual = [(word.name, word.kind) for word in self._words if word.lack != "?"]
        self._texts = _getter([name for name, kind in usual if not kind])
        self._numbers = _getter([name for name, kind in usual if kind])
        self._are_plain = re.compile(",".join(_PLAIN[kind] for _, kind in usual if kind)).fullmatch
        self._optional = [word.name for word in self._words if word.lack == "?"]

    def check(self, fields: Fields) -> None:
        """Check a header against this form.

        Raises:
            Refusal: MALFORMED_FIELD or the field's own cause; names the field.
        """
        try:
            self._texts(fields)
            is_plain = self._are_plain(",".join(self._numbers(fields))) is not None
        except KeyError:
            is_plain = False
        if not is_plain or not fields.keys().isdisjoint(self._optional):
            self._check_each(fields)

    def _check_each(self, fields: Fields) -> None:
        for word in self._words:
            value = fields.get(word.name)
            if value is None if word.lack == "~" else word.lack and not value:
                continue
            try:
                _READERS[word.kind](fields, word.name)
            except Refusal as refusal:
                if word.cause is None:
                    raise
                raise Refusal(word.cause, refusal.remark) from refusal


def _getter(names: list[str]) -> Callable[[Fields], tuple[str, ...]]:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda fields: tuple([fields[name] for name in names])


def _word(word: str) -> _Word:
    rest, _, code = word.partition("@")
    lack = rest[-1] if rest[-1] in "?*~" else ""
    name, _, kind = rest.removesuffix(lack).partition(":")
    return _Word(name, kind, lack, _MISSING[int(code)] if code else None)


def forms(table: str) -> Mapping[int, HeaderForm]:
    """Return forms by request code, from lines that begin with it; a line that begins with a blank continues one."""
    lines = (line.partition(" ") for line in re.sub(r"\n +", " ", table.strip()).splitlines())
    return {int(code): HeaderForm(line) for code, _, line in lines}
