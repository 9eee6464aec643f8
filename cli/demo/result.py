"""The result of the demo: figures, checks, a table and a JSON object."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from chaos.checkers.operations import RunCounts
from chaos.checkers.timing import percentile
from chaos.fabric.contract import NodeDigest, are_identical


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of the stream as the producer measured them.

    Attributes:
        sending_s: from the first send to the last acknowledgement, the failover included.
        latencies_ms: from send to acknowledgement, of each message's last attempt; any order.
        rto_ms: longest time between two acknowledgements around the kill.
    """

    sending_s: float
    latencies_ms: Sequence[float]
    rto_ms: float


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of a finished run."""

    lines: int
    findings: RunCounts
    timing: Timing
    digests: Sequence[NodeDigest]
    input_sha256: str
    output_sha256: str
    input_bytes: int
    seconds: float
    killed: str
    leader_after: str

    @property
    def logs_identical(self) -> bool:
        """Whether all nodes have the same bytes up to the same confirm offset."""
        return are_identical(self.digests)

    @property
    def out_of_order(self) -> int:
        """Number of lines stored or first delivered after a later one of their queue."""
        return self.findings.reordered + self.findings.disordered + self.findings.late_in_key

    @property
    def checks(self) -> list[tuple[str, bool, str]]:
        """`(condition, whether it holds, the numbers behind it)` for each check."""
        f = self.findings
        ends = ", ".join(f"{digest.name} {digest.end:,} B {digest.sha256[:12]}" for digest in self.digests)
        return [
            ("every message was acknowledged", f.acked == self.lines, f"{f.acked:,} of {self.lines:,}"),
            ("every acknowledged message was consumed", f.lost == 0, f"{f.lost:,} lost{_example(f, 'lost')}"),
            (
                "each queue was consumed in order",
                self.out_of_order == 0,
                f"{self.out_of_order:,} late{_example(f, 'disordered')}{_example(f, 'late_in_key')}",
            ),
            ("each message is at the offset that its answer named", f.misplaced == 0, f"{f.misplaced:,} elsewhere"),
            ("no message was stored more often than it was tried", f.overstored == 0, f"{f.overstored:,} were"),
            (
                "the input was received byte for byte",
                self.input_sha256 == self.output_sha256 and f.phantom == 0,
                f"{self.output_sha256[:16]}, {f.phantom:,} messages of other bytes",
            ),
            ("the logs of all nodes are identical", self.logs_identical, ends),
        ]

    @property
    def passed(self) -> bool:
        return all(holds for _, holds, _ in self.checks)

    def figures(self) -> dict[str, object]:
        """Return the JSON object."""
        f, t = self.findings, self.timing
        return {
            "passed": self.passed,
            "sent": self.lines,
            "acked": f.acked,
            "consumed": f.delivered,
            "lost": f.lost,
            "duplicates": f.duplicates,
            "stored_twice": f.stored_twice,
            "out_of_order": self.out_of_order,
            "misplaced": f.misplaced,
            "input_bytes": self.input_bytes,
            "messages_per_second": round(f.acked / t.sending_s, 1) if t.sending_s else 0.0,
            "send_p50_ms": round(percentile(t.latencies_ms, 50), 3),
            "send_p99_ms": round(percentile(t.latencies_ms, 99), 3),
            "rto_ms": round(t.rto_ms, 1),
            "logs_identical": self.logs_identical,
            "input_sha256_equal": self.input_sha256 == self.output_sha256,
            "seconds": round(self.seconds, 2),
            "input_sha256": self.input_sha256,
            "killed": self.killed,
            "leader_after": self.leader_after,
            "logs": [dataclasses.asdict(digest) for digest in self.digests],
        }

    def table(self) -> str:
        """Return the figures and the checks as a table."""
        f = self.figures()
        rows = [
            ("messages", f"{f['sent']:,} sent, {f['acked']:,} acknowledged, {f['consumed']:,} consumed"),
            ("input", f"{self.input_bytes / 1e6:.1f} MB, sha256 {self.input_sha256[:16]}"),
            ("rate", f"{f['messages_per_second']:,.0f} messages/s, the failover included"),
            ("send", f"p50 {f['send_p50_ms']} ms, p99 {f['send_p99_ms']} ms"),
            (
                "failover",
                f"{self.killed} killed; {f['rto_ms']} ms without an acknowledgement; then {self.leader_after}",
            ),
            ("duplicates", f"{f['duplicates']:,} ({f['stored_twice']:,} by a retry after a lost answer)"),
            ("time", f"{f['seconds']} s in all"),
        ]
        lines = [f"  {name:11} {text}" for name, text in rows]
        lines += [f"  {'ok  ' if holds else 'FAIL'} {what}: {numbers}" for what, holds, numbers in self.checks]
        return "\n".join(lines)


def _example(findings: RunCounts, anomaly: str) -> str:
    examples = findings.examples.get(anomaly)
    return f" ({'; '.join(examples)})" if examples else ""
