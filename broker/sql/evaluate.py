"""The closures an expression is compiled to: each takes a message's properties and gives a value or a verdict.

Source: apache/rocketmq `filter/.../expression/{Logic,Comparison,Unary}Expression.java`.
"""

from collections.abc import Callable, Mapping

from broker.sql.values import Value, compare, compare_order

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]


def all_of(parts: tuple[Evaluate, ...]) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        verdict: Value = True
        for part in parts:
            value = part(properties)
            if value is False:
                return False
            if value is None:
                verdict = None
        return verdict

    return evaluate


def any_of(parts: tuple[Evaluate, ...]) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        verdict: Value = False
        for part in parts:
            value = part(properties)
            if value is True:
                return True
            if value is None:
                verdict = None
        return verdict

    return evaluate


def negation(part: Evaluate) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        value = part(properties)
        return None if value is None else not value

    return evaluate


def never_true(part: Evaluate) -> Evaluate:
    return lambda properties: None if part(properties) is None else False


def negated(part: Evaluate) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        value = part(properties)
        return -value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    return evaluate


def is_null(part: Evaluate, negated: bool) -> Evaluate:
    return lambda properties: (part(properties) is None) is not negated


def equal(left: Evaluate, right: Evaluate, negated: bool) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        one, other = left(properties), right(properties)
        if one is None:
            return None if other is not None else not negated
        if other is None:
            return negated
        return (compare(one, other) == 0) is not negated

    return evaluate


def order(left: Evaluate, right: Evaluate, holds: Callable[[int], bool]) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        one = left(properties)
        if one is None:
            return None
        other = right(properties)
        return None if other is None else holds(compare_order(one, other))

    return evaluate


def is_in(part: Evaluate, texts: frozenset[str], negated: bool) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        value = part(properties)
        return (value in texts) is not negated if isinstance(value, str) else None

    return evaluate


def text_test(part: Evaluate, holds: Callable[[str, str], bool], wanted: str, negated: bool) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        value = part(properties)
        return bool(wanted) and isinstance(value, str) and holds(value, wanted) is not negated

    return evaluate
