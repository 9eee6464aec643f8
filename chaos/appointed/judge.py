"""What was promised to senders and shown to readers, compared with what is on the disks.

A promise is SEND_OK: the batch is on as many slaves as are wanted, now, and on each later master. What any node has
confirmed may have been read: no node ever confirms other bytes there, and each later master has them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from chaos.appointed.node import AppointedNode, LogDisk
from ha.core.copies import ALONE, CopyRules
from ha.master import Master
from store.files.mapped_file_queue import MappedFileQueue
from store.replicated_log import AppendReceipt


@dataclass(slots=True)
class PlacedRecord:
    """A record of a client: where it was placed, and its bytes in the log."""

    offset: int
    content: bytes


@dataclass
class AppointedSeen:
    """What the run has shown so far.

    Attributes:
        acked: by offset, each record that was answered SEND_OK.
        answers: how often each kind of answer was given.
        masters: how often a node began as master.
        violations: rules that were broken; empty in a good run.
        strikes: number, time in s and kind of each fault.
        met: how many of them were kills and pauses of a master, and partitions.
    """

    acked: dict[int, bytes] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)
    masters: int = 0
    violations: list[str] = field(default_factory=list)
    strikes: list[tuple[int, float, str]] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)

    @property
    def acked_count(self) -> int:
        """Records acknowledged."""
        return len(self.acked)

    @property
    def leader_count(self) -> int:
        """How often a master began."""
        return self.masters


class AppointedJudge:
    """Looks at what happens.

    Attributes:
        disks: by node, all that it ever had, the present one last: a copy on one that was lost was a copy.
        trimmed_to: what lies before was deleted on purpose.
    """

    def __init__(self, rules: CopyRules, disks: dict[str, list[LogDisk]]) -> None:
        self.seen = AppointedSeen()
        self.disks = disks
        self.trimmed_to = 0
        self._rules = rules
        self._read = bytearray()

    def broken(self, now_s: float, text: str) -> None:
        """A rule is broken."""
        self.seen.violations.append(f"{now_s:.3f}: {text}")

    def acknowledged(
        self, node: AppointedNode, records: Sequence[PlacedRecord], receipt: AppendReceipt, now_s: float
    ) -> None:
        """A master answers SEND_OK."""
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
        """A master begins with what is on its disk."""
        self.seen.masters += 1
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
        """Compare what readers of a node see with what any reader saw before."""
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
        """Whether two logs have different ends, or other bytes where both have some."""
        first, second = one.log.local.queue, other.log.local.queue
        start = max(first.min_offset, second.min_offset)
        ours, theirs = (
            b"".join(content for _, content in _pieces(queue, start, queue.max_offset)) for queue in (first, second)
        )
        return ours != theirs


def _pieces(queue: MappedFileQueue, start: int, end: int) -> Sequence[tuple[int, bytes]]:
    """The bytes of a log, file by file, each with its offset."""
    found = []
    while start < end:
        stop = min(end, start - start % queue.file_size + queue.file_size)
        found.append((start, bytes(queue.slice(start, stop - start))))
        start = stop
    return found
