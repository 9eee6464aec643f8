"""Compiles the text of an expression to a function over encoded properties: recursive descent, closures.

    or  := and (OR and)*                    and := equality (AND equality)*
    equality := comparison (= | <> comparison | IS [NOT] NULL)*
    comparison := unary (> >= < <= unary | [NOT] BETWEEN unary AND unary | [NOT] IN ('..',..)
                         | [NOT] CONTAINS|STARTSWITH|ENDSWITH '..')*
    unary := + - NOT unary | literal | property | ( or )

A truth value is True, False or None (unknown, since a property is missing); only True matches. Costs are bounded by the
expression's length and depth, both limited. Unlike Java's parser this one accepts 0.0, and refuses text after the end.

Source: apache/rocketmq `filter/.../parser/SelectorParser.jj`, `filter/.../expression/*.java`.
"""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from broker.sql.errors import IncomparableError, SqlSyntaxError
from broker.sql.evaluate import (
    Evaluate,
    Find,
    all_of,
    any_of,
    both,
    equal,
    integer_equal,
    integer_order,
    is_in,
    is_null,
    negated,
    negation,
    never_true,
    order,
    text_equal,
    text_of,
    text_test,
)
from broker.sql.hints import (
    CHOICES_MAX,
    NO_HINTS,
    Hints,
    all_hints,
    any_hints,
    one_of,
    patterns,
    present,
    text_part,
    value_like,
    whole_number,
)
from broker.sql.lexer import Token, tokens
from broker.sql.text_cache import text_cache
from broker.sql.values import Value, compare
from ledgermq.message.properties import property_finder

DEPTH_MAX = 100
"""Greatest depth of nested operators and parentheses."""


@dataclass(frozen=True, slots=True)
class PropertyFilter:
    """A compiled expression: called with a message's encoded properties, it returns whether the message matches.

    `hints` are byte patterns that the properties of every matching message have (see `broker.sql.hints`).
    """

    matches: Callable[[bytes], bool]
    hints: tuple[bytes, ...]

    def __call__(self, properties: bytes) -> bool:
        return self.matches(properties)


_DIGITS_MAX: Final = 19
_SHOWN_MAX: Final = 100

_ORDERS: Final[dict[str, Callable[[int, int], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_TEXT_TESTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": lambda text, part: part in text,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


@dataclass(frozen=True, slots=True)
class _Node:
    """A part of the expression.

    `kind` is `constant`, `property`, `boolean` (a test) or `number` (a negated part). Constants have a `value`,
    properties `find` and `name`. `hints` are those of messages for which a test is true.
    """

    evaluate: Evaluate
    kind: str
    depth: int = 1
    value: Value = None
    find: Find | None = None
    name: bytes = b""
    hints: Hints = field(default_factory=dict)


@text_cache
def compile_filter(expression: str) -> PropertyFilter:
    """Compile an expression. Cached, since clients repeat their expressions.

    Raises:
        SqlSyntaxError: it is malformed, compares what cannot be compared, or is longer or deeper than the limits.
    """
    node = _Parser(expression).parse()
    evaluate = node.evaluate

    def matches(properties: bytes) -> bool:
        try:
            return evaluate(properties) is True
        except IncomparableError:
            return False

    return PropertyFilter(matches, patterns(node.hints))


class _Parser:
    def __init__(self, expression: str) -> None:
        self._tokens = tokens(expression)
        self._at = 0
        self._open = 0

    def parse(self) -> _Node:
        node = self._boolean(self._or())
        if self._here.kind != "end":
            raise self._unexpected("the end, or an operator")
        return node

    # ---- tokens

    @property
    def _here(self) -> Token:
        return self._tokens[self._at]

    def _take(self, *kinds: str) -> Token | None:
        """Take the present token if it is of one of these kinds; otherwise return None."""
        token = self._here
        if token.kind not in kinds:
            return None
        self._at += 1
        return token

    def _need(self, kind: str) -> Token:
        token = self._take(kind)
        if token is None:
            raise self._unexpected(kind)
        return token

    def _unexpected(self, wanted: str) -> SqlSyntaxError:
        token = self._here
        return SqlSyntaxError(f"expected {wanted}, found {token.text[:20]!r}", token.position)

    # ---- grammar

    def _or(self) -> _Node:
        return self._chain("OR", self._and, any_of)

    def _and(self) -> _Node:
        return self._chain("AND", self._equality, all_of)

    def _chain(
        self, word: str, operand: Callable[[], _Node], join: Callable[[tuple[Evaluate, ...]], Evaluate]
    ) -> _Node:
        node = operand()
        if self._here.kind != word:
            return node
        parts = [self._boolean(node)]
        while self._take(word):
            parts.append(self._boolean(operand()))
        hints = (all_hints if word == "AND" else any_hints)(part.hints for part in parts)
        if word == "AND" and len(parts) == 2:
            return self._test(both(parts[0].evaluate, parts[1].evaluate), *parts, hints=hints)
        return self._test(join(tuple(part.evaluate for part in parts)), *parts, hints=hints)

    def _equality(self) -> _Node:
        left = self._comparison()
        while (token := self._take("=", "<>", "IS")) is not None:
            if token.kind == "IS":
                negated = self._take("NOT") is not None
                self._need("NULL")
                hints = present(left.name) if negated and left.find is not None else NO_HINTS
                left = self._test(is_null(left.evaluate, negated), left, hints=hints)
            else:
                right = self._comparison()
                self._check_equal(left, right, token)
                hints = _equal_hints(left, right, token.kind)
                left = self._test(_equal(left, right, token.kind == "<>"), left, right, hints=hints)
        return left

    def _comparison(self) -> _Node:
        left = self._unary()
        while True:
            here = self._here
            if self._take(*_ORDERS):
                right = self._unary()
                left = self._ordered(here, left, right)
                continue
            negated = here.kind == "NOT" and self._tokens[self._at + 1].kind in ("BETWEEN", "IN", *_TEXT_TESTS)
            if negated:
                self._at += 1
            if self._take("BETWEEN"):
                left = self._between(here, left, negated)
            elif self._take("IN"):
                left = self._in(here, left, negated)
            elif (word := self._take(*_TEXT_TESTS)) is not None:
                part = self._need("string").text
                hints = _text_hints(left, word.kind, part, negated)
                left = self._test(text_test(left.evaluate, _TEXT_TESTS[word.kind], part, negated), left, hints=hints)
            else:
                return left

    def _between(self, token: Token, left: _Node, negated: bool) -> _Node:
        low = self._unary()
        self._need("AND")
        high = self._unary()
        if not negated and low.kind == high.kind == "constant" and low.value is not None and high.value is not None:
            try:
                is_empty = compare(high.value, low.value) < 0
            except IncomparableError:
                is_empty = True
            if is_empty:
                raise SqlSyntaxError(f"BETWEEN {low.value!r} AND {high.value!r} is an empty range", token.position)
        first = self._ordered(Token("<" if negated else ">=", "", token.position), left, low)
        second = self._ordered(Token(">" if negated else "<=", "", token.position), left, high)
        evaluate = any_of((first.evaluate, second.evaluate)) if negated else both(first.evaluate, second.evaluate)
        hints = (any_hints if negated else all_hints)((first.hints, second.hints))
        return self._test(evaluate, first, second, hints=hints)

    def _in(self, token: Token, left: _Node, negated: bool) -> _Node:
        if left.find is None:
            raise SqlSyntaxError("IN must follow a property", token.position)
        self._need("(")
        texts = {self._need("string").text}
        while self._take(","):
            texts.add(self._need("string").text)
        self._need(")")
        encoded = frozenset(map(_encoded, texts))
        hints = present(left.name) if negated or len(encoded) > CHOICES_MAX else one_of(left.name, encoded)
        return self._test(is_in(left.find, encoded, negated), left, hints=hints)

    def _unary(self) -> _Node:
        token = self._take("+", "-", "NOT")
        if token is None:
            return self._primary()
        with_depth = self._nested(self._unary, token)
        if token.kind == "NOT":
            node = self._boolean(with_depth)
            return self._test(negation(node.evaluate), node)
        if token.kind == "-":
            return _Node(negated(with_depth.evaluate), "number", with_depth.depth + 1)
        return with_depth

    def _primary(self) -> _Node:
        token = self._here
        if self._take("("):
            node = self._nested(self._or, token)
            self._need(")")
            return node
        if self._take("word"):
            name = token.text.encode()
            find = property_finder(name)
            return _Node(text_of(find), "property", find=find, name=name)
        if self._take("TRUE", "FALSE", "NULL"):
            value: Value = {"TRUE": True, "FALSE": False, "NULL": None}[token.kind]
        elif self._take("string"):
            value = token.text
        elif self._take("integer"):
            value = _long(token)
        elif self._take("float"):
            value = _double(token)
        else:
            raise self._unexpected("a value, a property or (")
        return _Node(lambda _: value, "constant", value=value)

    # ---- building

    def _nested(self, parse: Callable[[], _Node], token: Token) -> _Node:
        self._open += 1
        if self._open > DEPTH_MAX:
            raise SqlSyntaxError(f"the expression is nested deeper than {DEPTH_MAX}", token.position)
        node = parse()
        self._open -= 1
        return node

    def _test(self, evaluate: Evaluate, *parts: _Node, hints: Hints = NO_HINTS) -> _Node:
        depth = 1 + max(part.depth for part in parts)
        if depth > DEPTH_MAX:
            raise SqlSyntaxError(f"the expression is nested deeper than {DEPTH_MAX}", self._here.position)
        return _Node(evaluate, "boolean", depth, hints=hints)

    def _boolean(self, node: _Node) -> _Node:
        """Return the part as a test. A bare property is never true, since its value is text."""
        if node.kind == "boolean" or (node.kind == "constant" and (node.value is None or isinstance(node.value, bool))):
            return node
        if node.kind == "property":
            return self._test(never_true(node.evaluate), node)
        raise SqlSyntaxError("expected a condition, found a value", self._here.position)

    def _ordered(self, token: Token, left: _Node, right: _Node) -> _Node:
        for node in (left, right):
            is_number = isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
            if node.kind == "boolean" or (node.kind == "constant" and not is_number):
                raise SqlSyntaxError(f"{token.kind} compares only numbers", token.position)
        holds = _ORDERS[token.kind]
        if left.find is not None and isinstance(right.value, int):
            hints = whole_number(left.name, token.kind, right.value)
            return self._test(integer_order(left.find, right.value, holds), left, right, hints=hints)
        hints = all_hints(present(node.name) for node in (left, right) if node.find is not None)
        return self._test(order(left.evaluate, right.evaluate, lambda order: holds(order, 0)), left, right, hints=hints)

    def _check_equal(self, left: _Node, right: _Node, token: Token) -> None:
        constants = [node.value for node in (left, right) if node.kind == "constant"]
        if None in constants:
            raise SqlSyntaxError("a comparison with NULL is never true; write IS NULL", token.position)
        if len(constants) == 2 and isinstance(constants[0], bool) and not isinstance(constants[1], bool):
            raise SqlSyntaxError(f"{constants[0]!r} cannot be compared with {constants[1]!r}", token.position)


def _equal(left: _Node, right: _Node, negated: bool) -> Evaluate:
    if left.find is not None and isinstance(right.value, str):
        return text_equal(left.find, _encoded(right.value), negated)
    if left.find is not None and isinstance(right.value, int) and not isinstance(right.value, bool):
        return integer_equal(left.find, right.value, negated)
    return equal(left.evaluate, right.evaluate, negated)


def _equal_hints(left: _Node, right: _Node, sign: str) -> Hints:
    """Return hints of `=` and `<>`: only of comparisons with a constant, since two missing properties are equal."""
    if left.find is None or right.kind != "constant":
        return NO_HINTS
    if isinstance(right.value, str) and sign == "=":
        return value_like(left.name, re.escape(_encoded(right.value)))
    if isinstance(right.value, int) and not isinstance(right.value, bool):
        return whole_number(left.name, sign, right.value)
    return present(left.name)


def _text_hints(left: _Node, word: str, part: str, negated: bool) -> Hints:
    if left.find is None:
        return NO_HINTS
    return present(left.name) if negated else text_part(left.name, word, part)


def _encoded(text: str) -> bytes:
    """Return a constant in UTF-8. A lone surrogate, which no property has, becomes bytes that are not valid UTF-8."""
    return text.encode(errors="surrogatepass")


def _long(token: Token) -> int:
    digits = token.text.rstrip("lL")
    if len(digits) > _DIGITS_MAX or int(digits) >= 1 << 63:
        raise SqlSyntaxError(f"{token.text[:_SHOWN_MAX]} does not fit into 64 bits", token.position)
    return int(digits)


def _double(token: Token) -> float:
    value = float(token.text)
    if value == float("inf"):
        raise SqlSyntaxError(f"{token.text[:_SHOWN_MAX]} does not fit into a double", token.position)
    return value
