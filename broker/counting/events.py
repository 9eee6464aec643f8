"""Counts of rare events, which are counted by labels where they happen.

Source: apache/rocketmq `broker/.../metrics/BrokerMetricsManager.java`, `PopMetricsManager.java`,
`store/.../metrics/DefaultStoreMetricsManager.java`.
"""

import time
from typing import Final

from broker.counting.tallies import Counts, Distributions
from telemetry.families import Distribution

CREATE_BOUNDS_MS: Final = (10, 100, 1000, 3000, 5000)
FINISH_BOUNDS_MS: Final = (5, 60, 600, 3600, 43_200, 86_400)
"""Upstream's bounds, which are meant as seconds and applied to milliseconds."""
DELAY_BOUNDS_S: Final = (60, 600, 3600, 43_200, 86_400, 259_200)
SCAN_BOUNDS_MS: Final = (1, 10, 100, 1000, 2000, 3000)


class Events:
    """Counts of all such events.

    Args:
        limit: largest number of label sets of each.

    Attributes:
        dead_letters: by topic (of the message's origin) and group.
        commits, rollbacks: by topic.
        finish_ms: from a half message's store time to its commit, by topic.
        timers_in, timers_out: entered into the wheel, and delivered, by topic.
        delay_s: time from the store time of a timer to its due time, by topic.
        revive_in: POP answers and acknowledgements that were recorded, by group, topic, CK or ACK, and status.
        revive_out: the same when they are finished, by group, topic, CK or ACK, and queue.
        revive_retries: messages put into retry topics, by group, topic and status.
        scan_ms: duration of scans for due POP checkpoints.
        topic_created_ms, group_created_ms: by status (and whether it is a system topic).
    """

    def __init__(self, limit: int) -> None:
        self.dead_letters = Counts(limit)
        self.commits, self.rollbacks = Counts(limit), Counts(limit)
        self.finish_ms = Distributions(FINISH_BOUNDS_MS, limit)
        self.timers_in, self.timers_out = Counts(limit), Counts(limit)
        self.delay_s = Distributions(DELAY_BOUNDS_S, limit)
        self.revive_in, self.revive_out = Counts(limit), Counts(limit)
        self.revive_retries = Counts(limit)
        self.scan_ms = Distribution(SCAN_BOUNDS_MS)
        self.topic_created_ms = Distributions(CREATE_BOUNDS_MS, limit)
        self.group_created_ms = Distributions(CREATE_BOUNDS_MS, limit)

    def forget_topic(self, topic: str) -> None:
        """Drop the counts of a topic that was removed."""
        for counts in (self.dead_letters, self.commits, self.rollbacks, self.timers_in, self.timers_out):
            counts.forget(0, topic)
        for spread in (self.finish_ms, self.delay_s):
            spread.forget(0, topic)
        for counts in (self.revive_in, self.revive_out, self.revive_retries):
            counts.forget(1, topic)

    def forget_group(self, group: str) -> None:
        """Drop the counts of a consumer group that was removed."""
        self.dead_letters.forget(1, group)
        for counts in (self.revive_in, self.revive_out, self.revive_retries):
            counts.forget(0, group)

    def topic_created(self, topic_is_system: bool, is_done: bool, since: float) -> None:
        """Count a request to create or change a topic that began at `since` (seconds, monotonic)."""
        self.topic_created_ms.of((_status(is_done), str(topic_is_system).lower())).observe(_ms_since(since))

    def group_created(self, is_done: bool, since: float) -> None:
        """Count a request to create or change a group that began at `since` (seconds, monotonic)."""
        self.group_created_ms.of((_status(is_done),)).observe(_ms_since(since))


def _status(is_done: bool) -> str:
    return "success" if is_done else "failure"


def _ms_since(since: float) -> int:
    return int(1000 * (time.monotonic() - since))
