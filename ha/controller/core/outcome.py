"""The outcome of applying a command: the cause of a refusal, or nothing, and the group as it is now."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ha.controller.core.model import Group
from ledgermq.remoting.refusal import Cause


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """Kept with the command's key, so that a repeated command gets the same.

    Attributes:
        cause: of the refusal; None when the command was carried out.
        remark: of the refusal.
        group: as the command left it; None where there is none.
    """

    cause: Cause | None = None
    remark: str = ""
    group: Group | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        return {
            "cause": None if self.cause is None else self.cause.name,
            "remark": self.remark,
            "group": None if self.group is None else self.group.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "CommandOutcome":
        """Return the outcome that `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: it is not one.
        """
        cause = None if value["cause"] is None else Cause[value["cause"]]
        return cls(cause, value["remark"], None if value["group"] is None else Group.from_json(value["group"]))
