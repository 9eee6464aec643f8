"""RocketMQ's DataVersion: tells whether two copies of a table are equal.

Source: apache/rocketmq `remoting/.../protocol/DataVersion.java` (5.3).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The version of a table; equal on two nodes that have applied the same changes.

    `counter` and `timestamp` (ms since the epoch) are those of the last change; `state_version` is the node's present
    term, or the master's epoch where one is elected.
    """

    counter: int = 0
    timestamp: int = 0
    state_version: int = 0

    def next(self, timestamp: int) -> "DataVersion":
        """Return the version after one more change, made at `timestamp` (ms)."""
        return DataVersion(self.counter + 1, timestamp, self.state_version)

    def to_json(self) -> dict[str, int]:
        """Return it with the members of RocketMQ's JSON."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}
