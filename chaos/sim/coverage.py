"""What many seeds have met together: a seed without a commit, a fault and a change of leader proves little."""

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
"""From so many seeds on, each kind of fault and of message must occur: the rarest do in 3 of 100."""


class Coverage:
    """Sums over seeds that were clean.

    Attributes:
        seed_count: all of them.
        counting: those that committed something, in which a fault met a member, and which had a second leader.
        totals: how often each thing happened.
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
        """Take one more seed."""
        met_a_fault = any(mark.startswith("fault ") for mark in result.marks)
        self.seed_count += 1
        self.counting += bool(result.committed_count and met_a_fault and result.marks.get("leader elected", 0) > 1)
        self.totals.update(result.marks)
        self.totals["events"] += result.event_count
        self.totals["entries committed"] += result.committed_count
        self.totals["batches acknowledged"] += result.acked_count

    def campaign(self) -> str:
        """What these seeds add to the faults of a campaign: each run that met them was clean."""
        names = ("leader killed", "leader paused", "partitions")
        kills, pauses, partitions = (self.totals[name] for name in names)
        acked = self.totals["batches acknowledged"]
        faults = f"{kills} kills and {pauses} pauses of the leader, {partitions} partitions"
        return f"{faults}; {acked} batches acknowledged, 0 lost"

    def missing(self) -> list[str]:
        """Kinds of faults and of messages that never occurred."""
        return [name for name in self._wanted if not self.totals[name]]

    def has_gap(self) -> bool:
        """Whether so many seeds should have met more: less than a quarter of them count, or a kind is missing."""
        return self.seed_count >= JUDGED_SEEDS and (4 * self.counting < self.seed_count or bool(self.missing()))
