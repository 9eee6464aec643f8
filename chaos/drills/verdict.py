"""The verdict on a record: figures, checks, a table and a JSON object.

pass      every promise was kept
fail      a promise was broken: messages are lost, moved, invented or reordered, or replicas differ
unknown   nothing is proved: a fault had no effect or was not repaired, or too little was acknowledged
"""

import bisect
import dataclasses
import enum
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from chaos.checkers.operations import PROMISES, RunCounts
from chaos.checkers.timing import longest_gap_ms, percentile
from chaos.drills.brownout import brownout_s
from chaos.drills.record import DrillRecord, Injection
from chaos.drills.traffic import body_of
from chaos.fabric.contract import NodeDigest, are_identical
from ledgermq.history import Outcome

_RTO_WINDOW_S = 15.0
_STALL_SPARE_S = 0.1
"""Seconds by which a pause of 1 s may be too long without excusing an election: with a heartbeat it fits into 1.2 s."""
_STALL_SEEN_S = 1.0
"""Seconds after a pause within which samples may show its election; the next pause begins later."""
_LEAST_SHARE = 0.5
"""Least share of acknowledged sends before the first fault; with a smaller one the run proves nothing."""


class DrillVerdict(enum.Enum):
    """The outcome of a run; the value is the exit code."""

    PASS = 0
    FAIL = 1
    UNKNOWN = 2


@dataclass(frozen=True, slots=True)
class Check:
    """One promise: whether it was kept (None: unknown), and the numbers behind that."""

    code: str
    what: str
    holds: bool | None
    numbers: str


@dataclass(frozen=True, slots=True)
class Outage:
    """The cost of one injection.

    Attributes:
        rto_ms: longest time without an acknowledgement, from the fault until 15 s after its repair or the next fault.
        consumer_rto_ms: the same, without a delivery.
        recovery_ms: from the first repair to the first acknowledgement after it; 0 if acknowledgements never stopped.
    """

    injection: Injection
    rto_ms: float
    consumer_rto_ms: float
    recovery_ms: float


@dataclass(frozen=True, slots=True)
class DrillResult:
    """The result of a finished run of one or more drills.

    Attributes:
        drill: name of the drill, or of the campaign.
        repeat: the command that repeats the run.
        seconds: length of the whole run, including the start of the cluster.
        workload: name of the workload.
    """

    drill: str
    mode: str
    repeat: str
    record: DrillRecord
    findings: RunCounts
    digests: Sequence[NodeDigest] | None
    seconds: float
    workload: str = "steady"

    @property
    def logs_identical(self) -> bool | None:
        """Whether all nodes that share a log have the same bytes up to the same confirm offset; None: unknown."""
        return None if self.digests is None else are_identical(self.digests)

    def checks(self) -> list[Check]:
        """Return each promise with its outcome."""
        checks = [
            Check(code, what, self._holds(name), self._numbers(getattr(self.findings, name), name))
            for code, name, what in PROMISES
            if name not in self._not_judged()
        ]
        if self.digests is not None:
            ends = ", ".join(str(digest) for digest in self.digests)
            checks.append(Check("L14", "the logs of all nodes are identical", are_identical(self.digests), ends))
        if (failed := self._failed_in_planned_changes()) is not None:
            holds = None if failed and self._failed_before() else failed == 0
            checks.append(Check("S1", "no send failed during a planned change", holds, f"{failed:,}"))
        if self.record.injections and all(one.drill.keeps_leader for one in self.record.injections):
            checks.append(_without_election(self.record))
        return checks

    def troubles(self) -> list[str]:
        """Return why the run proves nothing; empty if it does prove something."""
        record = self.record
        troubles = [f"{one.drill.name}: {one.trouble}" for one in record.injections if one.trouble]
        troubles += record.troubles
        if not record.injections:
            troubles.append("no fault was injected")
        if self._failed_in_planned_changes() and (count := self._failed_before()):
            troubles.append(f"{count:,} sends had failed before the planned change: nobody knows which it has failed")
        before = [send for send in record.sends if send.invoked_s < self._first_s]
        acked = sum(send.outcome is Outcome.OK for send in before)
        if not before or acked < _LEAST_SHARE * len(before):
            troubles.append(f"only {acked} of {len(before)} sends before the first fault were acknowledged")
        after_s = max((one.end_s for one in record.injections), default=record.began_s)
        if not any(send.completed_s > after_s for send in record.acks):
            troubles.append("nothing was acknowledged after the last repair")
        return troubles

    @property
    def verdict(self) -> DrillVerdict:
        """The verdict; a broken promise counts even if the run proves nothing else."""
        if any(check.holds is False for check in self.checks()):
            return DrillVerdict.FAIL
        return DrillVerdict.UNKNOWN if self.troubles() else DrillVerdict.PASS

    def outages(self) -> list[Outage]:
        """Return the cost of each injection, in order."""
        acks, deliveries = self.record.ack_times_s(), self.record.delivery_times_s()
        injections = self.record.injections
        nexts = [one.begin_s for one in injections[1:]] + [float("inf")]
        return [_outage(one, acks, deliveries, next_s) for one, next_s in zip(injections, nexts, strict=True)]

    def figures(self) -> dict[str, object]:
        """Return the JSON object."""
        f, record, outages = self.findings, self.record, self.outages()
        steady = [send for send in record.acks if send.invoked_s >= record.steady_s]
        latencies = [1000 * (send.completed_s - send.invoked_s) for send in steady]
        sending_s = record.acks[-1].completed_s - record.sends[0].invoked_s if record.acks else 0.0
        killed = next((one.events[0].step.words[0] for one in record.injections if one.events), "nobody")
        sent_sha256, received_sha256 = _hashes(record)
        return {
            "drill": self.drill,
            "mode": self.mode,
            "workload": self.workload,
            "passed": self.verdict is DrillVerdict.PASS,
            "verdict": self.verdict.name.lower(),
            "troubles": self.troubles(),
            "sent": f.sent,
            "acked": f.acked,
            "failed": f.failed,
            "unknown": f.unknown,
            "consumed": f.delivered,
            "lost": f.lost,
            "undelivered": f.undelivered,
            "duplicates": f.duplicates,
            "stored_twice": f.stored_twice,
            "out_of_order": f.reordered + f.disordered + f.late_in_key,
            "misplaced": f.misplaced,
            "phantom": f.phantom,
            "aborted": f.aborted,
            "overstored": f.overstored,
            "holes": f.holes,
            "early": f.early,
            "repeated": f.repeated,
            "commits": f.commits,
            "input_bytes": sum(len(body_of(send.number)) for send in record.sends),
            "messages_per_second": round(f.acked / sending_s, 1) if sending_s else 0.0,
            "send_p50_ms": round(percentile(latencies, 50), 3),
            "send_p99_ms": round(percentile(latencies, 99), 3),
            "rto_ms": round(max((outage.rto_ms for outage in outages), default=0.0), 1),
            "consumer_rto_ms": round(max((outage.consumer_rto_ms for outage in outages), default=0.0), 1),
            "delivery_ms": round(_longest_wait_ms(record), 1),
            "recovery_ms": round(max((outage.recovery_ms for outage in outages), default=0.0), 1),
            "brownout_s": brownout_s(record),
            "rpo": f.lost,
            "elections": _elections(record),
            "logs_identical": self.logs_identical,
            "input_sha256_equal": sent_sha256 == received_sha256,
            "seconds": round(self.seconds, 2),
            "input_sha256": sent_sha256,
            "killed": killed,
            "leader_after": record.injections[-1].leader_after if record.injections else None,
            "faults": [_fault(outage, record.began_s) for outage in outages],
            "logs": [dataclasses.asdict(digest) for digest in self.digests or ()],
        }

    def table(self) -> str:
        """Return the figures and the checks as a table."""
        f, figures = self.findings, self.figures()
        rows = [
            ("verdict", f"{self.verdict.name}: {self.drill}, mode {self.mode}, workload {self.workload}"),
            ("messages", f"{f.sent:,} sent, {f.acked:,} acknowledged, {f.failed:,} refused, {f.unknown:,} unknown"),
            ("rate", f"{figures['messages_per_second']} acknowledgements/s"),
            ("send", f"p50 {figures['send_p50_ms']} ms, p99 {figures['send_p99_ms']} ms"),
            ("RTO", f"{figures['rto_ms']} ms without an acknowledgement"),
            ("", f"{figures['consumer_rto_ms']} ms without a delivery"),
            ("", f"{figures['delivery_ms']} ms at most from an acknowledgement to the delivery"),
            ("brownout", f"{figures['brownout_s']} s of sends with less than 90 % acknowledged, or p99 tenfold"),
            ("repair", f"{figures['recovery_ms']} ms from the repair to the next acknowledgement"),
            ("RPO", f"{f.lost:,} acknowledged messages lost"),
            ("duplicates", f"{f.stored_twice:,} stored twice by a retry, {f.redelivered:,} delivered again"),
            ("reorders", f"{f.reordered + f.disordered + f.late_in_key:,}"),
            ("leader", f"{self._leaders()}; {figures['elections']} changes of the term since the first fault"),
            ("time", f"{figures['seconds']} s in all"),
        ]
        lines = [f"  {name:11} {text}" for name, text in rows]
        words = {True: "ok  ", False: "FAIL", None: "?   "}
        lines += [f"  {words[one.holds]} {one.code:4} {one.what}: {one.numbers}" for one in self.checks()]
        lines += [f"  unknown: {trouble}" for trouble in self.troubles()]
        return "\n".join(lines)

    def _not_judged(self) -> set[str]:
        """Return the findings that a fault excuses: a clock that jumps ends delays early."""
        jumped = any(one.drill.family == "clock" for one in self.record.injections)
        return {"early"} if jumped and self.workload == "delayed" else set()

    def _holds(self, anomaly: str) -> bool | None:
        if getattr(self.findings, anomaly):
            return False
        return None if anomaly == "lost" and self.record.unread_count else True

    @property
    def _first_s(self) -> float:
        return min((one.begin_s for one in self.record.injections), default=self.record.began_s)

    def _failed_before(self) -> int:
        """Count sends that failed before the first fault, as on a machine that is too busy for the run."""
        sends = self.record.sends
        return sum(
            bool(send.completed_s) and send.completed_s < self._first_s
            for send in sends
            if send.outcome is not Outcome.OK
        )

    def _failed_in_planned_changes(self) -> int | None:
        """Count failed sends that overlap a planned change; None if no change was planned."""
        planned = [one for one in self.record.injections if self.mode in one.drill.spares_sends_in]
        failed = [
            (send.invoked_s, send.completed_s or float("inf"))
            for send in self.record.sends
            if send.outcome is not Outcome.OK
        ]
        hit = [any(begin <= one.end_s and end >= one.begin_s for one in planned) for begin, end in failed]
        return sum(hit) if planned else None

    def _leaders(self) -> str:
        names = [name or "nobody" for one in self.record.injections for name in (one.leader_before, one.leader_after)]
        return " -> ".join(name for number, name in enumerate(names) if number == 0 or names[number - 1] != name)

    def _numbers(self, count: int, anomaly: str) -> str:
        examples = self.findings.examples.get(anomaly)
        unread = self.record.unread_count if anomaly == "lost" else 0
        return (
            f"{count:,}"
            + (f" ({'; '.join(examples)})" if examples else "")
            + (f", {unread:,} undelivered ones could not be looked for" if unread else "")
        )


def _outage(one: Injection, acks: Sequence[float], deliveries: Sequence[float], next_s: float) -> Outage:
    repaired_s = next((event.begin_s for event in one.events if not event.step.is_fault), one.end_s)
    last_before = max((at_s for at_s in acks if at_s <= repaired_s), default=0.0)
    next_after = min((at_s for at_s in acks if at_s > repaired_s), default=repaired_s)
    rto_ms, consumer_rto_ms = (_longest_gap_ms(times_s, one, next_s) for times_s in (acks, deliveries))
    stood_still = last_before < repaired_s - 1.0
    recovery_ms = 1000 * (next_after - repaired_s) if stood_still else 0.0
    return Outage(one, rto_ms, consumer_rto_ms, recovery_ms)


def _longest_gap_ms(times_s: Sequence[float], one: Injection, next_s: float) -> float:
    """Return the longest gap until the next fault at `next_s`; a gap that contains that time is the next fault's."""
    last_before = bisect.bisect_right(times_s, next_s) - 1
    is_over = last_before >= 0 and times_s[last_before] > one.begin_s
    end_s = times_s[last_before] if is_over else next_s
    return longest_gap_ms(times_s, one.begin_s, min(end_s, one.end_s + _RTO_WINDOW_S))


def _without_election(record: DrillRecord) -> Check:
    """Check that each election had a reason, or followed a pause that took longer than the drill wanted."""
    stalls = [(stall, one.hold_s) for one in record.injections for stall in one.stalls()]
    long = [(begin_s, end_s) for (begin_s, end_s), hold_s in stalls if end_s - begin_s > hold_s + _STALL_SPARE_S]
    changes = _changes_of_term(record)
    excused = sum(rise for at_s, rise in changes if any(begin <= at_s <= end + _STALL_SEEN_S for begin, end in long))
    count = sum(rise for _, rise in changes) - excused
    numbers = f"{count:,}"
    if stalls:
        longest_s = max(end_s - begin_s for (begin_s, end_s), _ in stalls)
        numbers += f" in {len(stalls):,} stalls, the longest of {longest_s:.2f} s"
    if long:
        numbers += f"; {len(long):,} were too long by more than {_STALL_SPARE_S:g} s"
        numbers += f", {excused:,} elections after them do not count"
    return Check("E1", "no election without a reason", count == 0, numbers)


def _changes_of_term(record: DrillRecord) -> list[tuple[float, int]]:
    """Return when, since the first fault, the term or the master's epoch was seen to rise, and by how much."""
    first_s = min((one.begin_s for one in record.injections), default=float("inf"))
    changes = []
    highest: int | None = None
    for sample in record.samples:
        if sample.term is None:
            continue
        if sample.at_s > first_s and highest is not None and sample.term > highest:
            changes.append((sample.at_s, sample.term - highest))
        highest = sample.term if highest is None or sample.at_s <= first_s else max(highest, sample.term)
    return changes


def _elections(record: DrillRecord) -> int:
    """Return by how much the term or the master's epoch rose since the first fault; 0 where there is none."""
    return sum(rise for _, rise in _changes_of_term(record))


def _longest_wait_ms(record: DrillRecord) -> float:
    """Return the longest time from an acknowledgement, or the end of a delay, to the first delivery of its message."""
    first: dict[int, float] = {}
    for delivery in record.deliveries:
        if delivery.number is not None:
            first.setdefault(delivery.number, delivery.at_s)
    waits = (first[send.number] - max(send.completed_s, send.due_s) for send in record.acks if send.number in first)
    return 1000 * max(0.0, max(waits, default=0.0))


def _fault(outage: Outage, began_s: float) -> dict[str, object]:
    one = outage.injection
    return {
        "drill": one.drill.name,
        "begin_s": round(one.begin_s - began_s, 3),
        "end_s": round(one.end_s - began_s, 3),
        "rto_ms": round(outage.rto_ms, 1),
        "consumer_rto_ms": round(outage.consumer_rto_ms, 1),
        "recovery_ms": round(outage.recovery_ms, 1),
        "leader_before": one.leader_before,
        "leader_after": one.leader_after,
        "steps": [
            {
                "at_s": round(event.begin_s - began_s, 3),
                "verb": event.step.verb.value,
                "words": event.step.words,
                "proof": event.proof,
            }
            for event in one.events
        ],
    }


def _hashes(record: DrillRecord) -> tuple[str, str]:
    """Return SHA-256 hashes of the bodies of all acknowledged messages, and of those of them that were delivered."""
    sent, received = hashlib.sha256(), hashlib.sha256()
    delivered = {delivery.number for delivery in record.deliveries}
    for send in record.sends:
        if send.outcome is Outcome.OK:
            sent.update(body_of(send.number))
            if send.number in delivered:
                received.update(body_of(send.number))
    return sent.hexdigest(), received.hexdigest()
