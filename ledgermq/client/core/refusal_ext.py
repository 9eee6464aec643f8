"""What LedgerMQ's servers add to an error answer: cause, when to come back, who leads.

Other brokers send none of it; what does not parse is taken as not said, since a hint is only a hint.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RefusalExt:
    """The extension fields of a refusal, read."""

    cause: str | None
    retry_after_s: float | None
    leader_hint: str | None

    @classmethod
    def read(cls, ext: Mapping[str, str]) -> "RefusalExt":
        """Pick the fields out of an answer's ext."""
        retry_after = ext.get("retryAfterMs", "")
        return cls(
            cause=ext.get("cause") or None,
            retry_after_s=int(retry_after) / 1000 if retry_after.isdecimal() and len(retry_after) <= 9 else None,
            leader_hint=_address(ext.get("leaderHint", "")),
        )


def _address(hint: str) -> str | None:
    """`host:port`, also when a node id stands before it (`n0@host:port`)."""
    address = hint.rpartition("@")[2]
    return address if address.rpartition(":")[2].isdecimal() else None
