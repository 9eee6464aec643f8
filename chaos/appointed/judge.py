"""Checks acknowledgements and reads of a simulated group against what is on the disks.

SEND_OK promises that the batch is on as many copies as the rules want, and that each later master has it. Bytes below
a node's confirm offset may have been read: no node may confirm other bytes there, and each later master has them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from chaos.appointed.node import AppointedNode, LogDisk
from chaos.sim.seeds import SeedOutcome
from ha.core.copies import ALONE, CopyRules
from ha.master import Master
from store.files.mapped_file_queue import MappedFileQueue
from store.replicated_log import AppendReceipt


@dataclass(slots=True)
class PlacedRecord:
    """A client's record: its physical offset, and its bytes in the log."""

    offset: int
    content: bytes


@dataclass
class AppointedSeen(SeedOutcome[bytes]):
    """What was observed in a run so far; records are acknowledged with SEND_OK.

    Attributes:
        answers: number of answers by `SEND_OK` or the name of the refusal's cause.
    """

    answers: Counter[str] = field(default_factory=Counter)


class AppointedJudge:
    """Checks the invariants; the simulation calls it at each event.

    Attributes:
        disks: by node, all disks that it ever had, the present one last; a copy on a lost disk still counts.
        trimmed_to: physical offset below which retention has deleted the log.
    """

    def __init__(self, rules: CopyRules, disks: dict[str, list[LogDisk]]) -> None:
        self.seen = AppointedSeen()
        self.disks = disks
        self.trimmed_to = 0
        self._rules = rules
        self._read = bytearray()

    def broken(self, now_s: float, text: str) -> None:
        """Add a violation."""
        self.seen.violations.append(f"{now_s:.3f}: {text}")

    def acknowledged(
        self, node: AppointedNode, records: Sequence[PlacedRecord], receipt: AppendReceipt, now_s: float
    ) -> None:
        """Check an acknowledged batch: enough copies hold it, and as many as the receipt says."""
        assert isinstance(node.part, Master)
        in_sync = node.part._copies.in_sync_count
        rules = self._rules
        wanted = max(min(rules.wanted, in_sync), rules.least) if rules.is_adaptive else rules.wanted
        told = receipt.durable_copies if rules.counts_durable else receipt.copies
        others = [disks for name, disks in self.disks.items() if name != node.name]
        for record in records:
            copies = ALONE + sum(self._holds(disks, record, durable=rules.counts_durable) for disks in others)
            if copies < wanted:
                self.broken(now_s, f"{node.name} answers SEND_OK at {record.offset}: {copies} of {wanted} copies")
            elif told > copies:
                self.broken(now_s, f"{node.name} tells of {told} copies at {record.offset}, and {copies} are there")
            if self.seen.acked.setdefault(record.offset, record.content) != record.content:
                self.broken(now_s, f"offset {record.offset} is acknowledged twice, with two records")

    def _holds(self, disks: Sequence[LogDisk], record: PlacedRecord, *, durable: bool) -> bool:
        size = len(record.content)
        return any(
            (disk.durable_at if durable else disk.bytes_at)(record.offset, size) == record.content for disk in disks
        )

    def begins(self, node: AppointedNode, now_s: float) -> None:
        """Check that a new master's disk has every acknowledged record, and all that was read."""
        self.seen.leader_count += 1
        disk = self.disks[node.name][-1]
        lost = [
            offset
            for offset, content in self.seen.acked.items()
            if offset >= self.trimmed_to and disk.bytes_at(offset, len(content)) != content
        ]
        if lost:
            self.broken(now_s, f"{node.name} begins as master without {len(lost)} acknowledged records, from {lost[0]}")
        if node.log.max_offset < len(self._read):
            self.broken(now_s, f"{node.name} begins as master at {node.log.max_offset}, {len(self._read)} was read")

    def look(self, node: AppointedNode, now_s: float) -> None:
        """Compare the newly confirmed bytes of a node with what readers of any node saw there before."""
        queue, end = node.log.local.queue, node.log.confirm_offset
        start = max(min(node.checked, end), queue.min_offset)
        for position, content in _pieces(queue, start, end):
            known = self._read[position : position + len(content)]
            if content[: len(known)] != known:
                self.broken(now_s, f"readers of {node.name} see other bytes in [{position}, {position + len(content)})")
                return
            if position <= len(self._read):
                self._read[position : position + len(content)] = content
        node.checked = end

    def differs(self, one: AppointedNode, other: AppointedNode) -> bool:
        """Return whether two logs end at different offsets, or differ where both have bytes."""
        first, second = one.log.local.queue, other.log.local.queue
        start = max(first.min_offset, second.min_offset)
        ours, theirs = (
            b"".join(content for _, content in _pieces(queue, start, queue.max_offset)) for queue in (first, second)
        )
        return ours != theirs


def _pieces(queue: MappedFileQueue, start: int, end: int) -> Sequence[tuple[int, bytes]]:
    """Return the bytes `[start, end)` of a log as (offset, bytes), one item for each file."""
    found = []
    while start < end:
        stop = min(end, start - start % queue.file_size + queue.file_size)
        found.append((start, bytes(queue.slice(start, stop - start))))
        start = stop
    return found
