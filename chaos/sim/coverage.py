"""What many seeds together have covered: a seed without a commit, a fault and a change of leader proves little."""

from collections import Counter
from typing import get_args

from chaos.sim.plan import (
    CLEANING_FAULTS,
    CLOCK_JUMP,
    FAULTS,
    FAULTS_OF_FIVE,
    LATE_FAULTS,
    LATE_STACK_FAULTS,
    RARE_STACK_FAULTS,
    ROT_FAULTS,
    STACK_FAULTS,
)
from chaos.sim.run import RunResult
from chaos.sim.stack.callers import MORTAL_FAULTS
from chaos.sim.stack.members import FAULTS as MEMBER_FAULTS
from chaos.sim.stack.nameservers import FAULTS as NAMESERVER_FAULTS
from chaos.sim.stack.sockets import ANSWER_FAULTS
from dledger.core.messages import Message
from dledger.peers.wire import CopyRequest, CopyResponse

JUDGED_SEEDS = 1000
GAP_EXIT_CODE = 13
"""Exit code if a kind of fault or message never occurred in `JUDGED_SEEDS` or more; the rarest do in 3 of 100."""


class Coverage:
    """Sums over seeds that ran without a violation.

    Attributes:
        seed_count: number of seeds.
        counting: those that committed something, in which a fault met a member, and which had a second leader.
        totals: number of occurrences of each counted event.
    """

    def __init__(self, *, is_stack: bool) -> None:
        faults = (
            *FAULTS,
            *LATE_FAULTS,
            *(
                (
                    *STACK_FAULTS,
                    *LATE_STACK_FAULTS,
                    *RARE_STACK_FAULTS,
                    *ROT_FAULTS,
                    *CLEANING_FAULTS,
                    *FAULTS_OF_FIVE,
                    CLOCK_JUMP,
                    *NAMESERVER_FAULTS,
                    *MEMBER_FAULTS,
                    *MORTAL_FAULTS,
                    *ANSWER_FAULTS,
                )
                if is_stack
                else ()
            ),
        )
        kinds = (*get_args(Message), *((CopyRequest, CopyResponse) if is_stack else ()))
        messages = (kind.__name__ for kind in kinds)
        self._wanted = [*(f"fault {kind}" for kind in faults), *(f"message {name}" for name in messages)]
        self.seed_count = 0
        self.counting = 0
        self.totals: Counter[str] = Counter()

    def add(self, result: RunResult) -> None:
        """Add the result of one seed."""
        met_a_fault = any(mark.startswith("fault ") for mark in result.marks)
        self.seed_count += 1
        self.counting += bool(result.committed_count and met_a_fault and result.marks.get("leader elected", 0) > 1)
        self.totals.update(result.marks)
        self.totals["events"] += result.event_count
        self.totals["entries committed"] += result.committed_count
        self.totals["batches acknowledged"] += result.acked_count

    def campaign(self) -> str:
        """Return the line for the documents: kills, pauses, partitions, and batches acknowledged without a loss."""
        names = ("leader killed", "leader paused", "partitions")
        kills, pauses, partitions = (self.totals[name] for name in names)
        acked = self.totals["batches acknowledged"]
        faults = f"{kills} kills and {pauses} pauses of the leader, {partitions} partitions"
        return f"{faults}; {acked} batches acknowledged, 0 lost"

    def missing(self) -> list[str]:
        """Return the kinds of faults and messages that never occurred."""
        return [name for name in self._wanted if not self.totals[name]]

    def has_gap(self) -> bool:
        """Return whether so many seeds should have covered more: fewer than a quarter count, or a kind is missing."""
        return self.seed_count >= JUDGED_SEEDS and (4 * self.counting < self.seed_count or bool(self.missing()))
