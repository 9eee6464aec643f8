"""Attributes of topics and groups: their names, allowed values, and the format of changes.

    +cleanup.policy=COMPACTION,-message.type        a change of a topic's attributes

A new topic takes additions only. An existing topic keeps its attributes, except for those that may be changed. The
remarks of refusals are RocketMQ's.

Source: apache/rocketmq `common/.../TopicAttributes.java`, `common/.../SubscriptionGroupAttributes.java`,
`common/.../attribute/AttributeParser.java`, `AttributeUtil.java` (5.3.3).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ledgermq.remoting.codec.fields import I64_MAX
from ledgermq.remoting.refusal import Cause, Refusal

_LONG: Final = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_SHOWN_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute. `check` returns what is wrong with a value, or None."""

    is_changeable: bool
    check: Callable[[str], str | None]


def _one_of(*values: str) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        return None if value in values else f"value is not in set: [{', '.join(values)}]"

    return check


def _long_between(low: int, high: int) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        if not _LONG.fullmatch(value) or not -I64_MAX - 1 <= int(value) <= I64_MAX:
            return f'For input string: "{value[:_SHOWN_MAX]}"'
        return None if low <= int(value) <= high else f"value is not in range({low}, {high})"

    return check


QUEUE_TYPE: Final = "queue.type"
CLEANUP_POLICY: Final = "cleanup.policy"
MESSAGE_TYPE: Final = "message.type"
RESERVE_TIME: Final = "reserve.time"

TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    QUEUE_TYPE: Attribute(False, _one_of("SimpleCQ", "BatchCQ")),
    CLEANUP_POLICY: Attribute(False, _one_of("DELETE", "COMPACTION")),
    MESSAGE_TYPE: Attribute(True, _one_of("UNSPECIFIED", "NORMAL", "DELAY", "TRANSACTION", "FIFO", "MIXED")),
    RESERVE_TIME: Attribute(True, _long_between(-1, I64_MAX)),
}
"""Values are in the order of Java's sets, since the remark of a refusal lists them."""

GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {}
"""Empty: every attribute of a group is refused."""


def parse_change(text: str) -> dict[str, str]:
    """Parse `+key=value` and `-key`, divided by commas, as signed key to value (empty for a removal).

    Raises:
        Refusal: SYSTEM_ERROR, as RocketMQ gives it.
    """
    change: dict[str, str] = {}
    for entry in _java_split(text, ","):
        key, value = entry, ""
        if "=" in entry:
            parts = _java_split(entry, "=")
            if len(parts) < 2:
                raise _refusal(f"Index {len(parts) or 0} out of bounds for length {len(parts)}")
            key, value = parts[0], parts[1]
            if "+" not in key:
                raise _refusal(f"add/alter attribute format is wrong: {key}")
        elif "-" not in entry:
            raise _refusal(f"delete attribute format is wrong: {key}")
        if key in change:
            raise _refusal(f"key duplication: {key}")
        change[key] = value
    return change


def change_attributes(
    known: Mapping[str, Attribute], before: Mapping[str, str] | None, change: Mapping[str, str]
) -> dict[str, str]:
    """Return the attributes after `change` (signed keys); `before` is None for a topic or group that is being made.

    Raises:
        Refusal: SYSTEM_ERROR, as RocketMQ gives it.
    """
    after = dict(before or {})
    _check_keys(before, change)
    for signed, value in change.items():
        key = signed[1:]
        attribute = known.get(key)
        if attribute is None:
            raise _refusal(f"unsupported key: {key}")
        if before is not None and not attribute.is_changeable:
            raise _refusal(f"attempt to update an unchangeable attribute. key: {key}")
        if signed.startswith("-"):
            del after[key]
        elif (fault := attribute.check(value)) is not None:
            raise _refusal(fault)
        else:
            after[key] = value
    return after


def _check_keys(before: Mapping[str, str] | None, change: Mapping[str, str]) -> None:
    seen: set[str] = set()
    for signed in change:
        key = signed[1:]
        if not key or "+" in key or "-" in key:
            raise _refusal("kv string format wrong.")
        if key in seen:
            raise _refusal(f"alter duplication key. key: {key}")
        seen.add(key)
        if before is None:
            if not signed.startswith("+"):
                raise _refusal(f"only add attribute is supported while creating topic. key: {key}")
        elif signed.startswith("-"):
            if key not in before:
                raise _refusal(f"attempt to delete a nonexistent key: {key}")
        elif not signed.startswith("+"):
            raise _refusal(f"wrong format key: {key}")


def _java_split(text: str, separator: str) -> list[str]:
    """Split as Java's `String.split` does: empty parts at the end are dropped; an empty text has no parts here."""
    parts = text.split(separator)
    while parts and not parts[-1]:
        parts.pop()
    return parts


def _refusal(remark: str) -> Refusal:
    return Refusal(Cause.SYSTEM_ERROR, remark)
