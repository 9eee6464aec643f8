"""Tokens of a filter expression.

Source: apache/rocketmq `filter/.../parser/SelectorParser.jj` (tokens).
"""

import re
from dataclasses import dataclass
from typing import Final

from broker.sql.errors import SqlSyntaxError

LENGTH_MAX = 16 << 10
"""Longest expression in characters."""

KEYWORDS: Final = frozenset(
    {"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"}
)

_TOKEN: Final = re.compile(
    r"""(?P<skip>[ \t\n\r\f]+|--[^\n\r]*|/\*.*?\*/)
    |(?P<float>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    |(?P<integer>0|[1-9][0-9]*[lL]?)
    |(?P<string>'(?:''|[^'])*')
    |(?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
    |(?P<sign><>|>=|<=|[=><(),+-])""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """One token.

    Attributes:
        kind: `float`, `integer`, `string`, `word`, or for keywords and signs the token itself; `end` after the last.
        text: as written; a string without its quotes.
        position: characters before it.
    """

    kind: str
    text: str
    position: int


def tokens(expression: str) -> list[Token]:
    """Return all tokens, then one of kind `end`.

    Raises:
        SqlSyntaxError: a character begins no token, or the expression is longer than `LENGTH_MAX`.
    """
    if len(expression) > LENGTH_MAX:
        raise SqlSyntaxError(f"the expression has {len(expression)} characters, the limit is {LENGTH_MAX}", LENGTH_MAX)
    found = []
    position = 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None or match.lastgroup is None:
            raise SqlSyntaxError(f"unexpected {expression[position : position + 10]!r}", position)
        if match.lastgroup != "skip":
            found.append(_token(match.lastgroup, match.group(), position))
        position = match.end()
    found.append(Token("end", "", position))
    return found


def _token(kind: str, text: str, position: int) -> Token:
    if kind == "string":
        return Token(kind, text[1:-1].replace("''", "'"), position)
    if kind == "word" and text.upper() in KEYWORDS:
        return Token(text.upper(), text, position)
    return Token(text if kind == "sign" else kind, text, position)
