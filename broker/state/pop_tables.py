"""POP's replicated tables: part of the state that every node has (`broker.state.tables`). Pure.

| table | key | value |
|---|---|---|
| checkpoints | topic@group@queue@start@popTime | messages that were taken and are not acknowledged |
| orders | topic@group@queue | messages that were given in order last |
| modes | topic@group | whether the group's push consumers read by PULL or by POP |
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from broker.state.pop_core import Checkpoint
from broker.state.pop_order import OrderedBatch

_K = TypeVar("_K")
_V = TypeVar("_V")

PULL, POP = "PULL", "POP"


class RequestMode(NamedTuple):
    """How push consumers of a group fetch from a topic.

    Attributes:
        mode: PULL or POP.
        share_count: number of other members whose queues a member reads in POP mode; 0 or less: all members.
    """

    mode: str
    share_count: int = 0


@dataclass(frozen=True, slots=True)
class PopChange:
    """Values to set; None removes."""

    checkpoints: Mapping[str, Checkpoint | None] = field(default_factory=dict)
    orders: Mapping[str, OrderedBatch | None] = field(default_factory=dict)
    modes: Mapping[str, RequestMode | None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.checkpoints or self.orders or self.modes)

    def to_json(self) -> dict[str, Any]:
        return {
            "checkpoints": {key: value and value.to_json() for key, value in self.checkpoints.items()},
            "orders": {key: value and value.to_json() for key, value in self.orders.items()},
            "modes": {key: value and list(value) for key, value in self.modes.items()},
        }

    @classmethod
    def from_json(cls, value: Any) -> "PopChange":
        """Read what `to_json` returned; raises ValueError, TypeError, KeyError or AttributeError for anything else."""
        return cls(
            {key: item and Checkpoint.from_json(key, item) for key, item in value.get("checkpoints", {}).items()},
            {key: item and OrderedBatch.from_json(item) for key, item in value.get("orders", {}).items()},
            {key: item and _mode(item) for key, item in value.get("modes", {}).items()},
        )


class PopTables:
    """The tables as of the last applied change.

    Attributes:
        version: counts changes.
    """

    def __init__(self) -> None:
        self.checkpoints: dict[str, Checkpoint] = {}
        self.orders: dict[str, OrderedBatch] = {}
        self.modes: dict[str, RequestMode] = {}
        self.version = 0

    def copy(self) -> "PopTables":
        """Return the tables as they are now, for another thread."""
        copy = PopTables()
        copy.checkpoints, copy.orders, copy.modes = dict(self.checkpoints), dict(self.orders), dict(self.modes)
        copy.version = self.version
        return copy

    def apply(self, change: PopChange) -> None:
        """Apply a change."""
        if change:
            self.version += 1
            update_table(self.checkpoints, change.checkpoints)
            update_table(self.orders, change.orders)
            update_table(self.modes, change.modes)

    def forget_topics(self, removed: Set[str]) -> None:
        """Remove what belongs to these topics."""
        tables: tuple[dict[str, Any], ...] = (self.checkpoints, self.orders, self.modes)
        for table in tables:
            for key in [key for key in table if key.partition("@")[0] in removed]:
                del table[key]
                self.version += 1

    def forget_groups(self, removed: Set[str]) -> None:
        """Remove what belongs to these groups, so that a group of the same name begins with its offsets only."""
        tables: tuple[dict[str, Any], ...] = (self.checkpoints, self.orders, self.modes)
        for table in tables:
            for key in [key for key in table if key.split("@")[1] in removed]:
                del table[key]
                self.version += 1

    def whole(self) -> PopChange:
        """Return all values as one change."""
        return PopChange(self.checkpoints, self.orders, self.modes)

    def replace(self, whole: PopChange) -> None:
        """Replace all values by those of `whole`."""
        self.checkpoints, self.orders, self.modes = {}, {}, {}
        self.version += 1
        self.apply(whole)


def modes_to_json(modes: Mapping[str, RequestMode]) -> dict[str, Any]:
    """Return all modes as RocketMQ lists them, in answers and in its file."""
    table: dict[str, dict[str, Any]] = {}
    for key, mode in sorted(modes.items()):
        topic, _, group = key.partition("@")
        place = {"consumerGroup": group, "topic": topic}
        row = {**place, "mode": mode.mode, "popShareQueueNum": mode.share_count}
        table.setdefault(topic, {})[group] = {name: row[name] for name in sorted(row)}
    return {"messageRequestModeMap": table}


def modes_from_json(value: Any) -> dict[str, RequestMode]:
    """Read what `modes_to_json` returned; raises KeyError, ValueError, TypeError or AttributeError otherwise."""
    rows = [
        (f"{topic}@{group}", row)
        for topic, groups in value["messageRequestModeMap"].items()
        for group, row in groups.items()
    ]
    return {key: _mode((row.get("mode") or PULL, row.get("popShareQueueNum") or 0)) for key, row in rows}


def _mode(value: Any) -> RequestMode:
    mode, share_count = value
    if mode not in (PULL, POP):
        raise ValueError(f"mode {mode!r} is neither PULL nor POP")
    return RequestMode(mode, int(share_count))


def update_table(table: dict[_K, _V], values: Mapping[_K, _V | None]) -> None:
    """Set values by name; None removes."""
    for name, value in values.items():
        if value is None:
            table.pop(name, None)
        else:
            table[name] = value
