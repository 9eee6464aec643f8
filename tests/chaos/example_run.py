"""A finished drill made by hand, for the tests of verdicts and reports."""

from chaos.checkers.operations import Delivery, judge
from chaos.drills.catalogue import CATALOGUE, Step
from chaos.drills.record import DrillRecord, Event, Injection, Sample
from chaos.drills.verdict import DrillResult
from chaos.fabric.contract import ClusterView, NodeDigest, NodeView, Verb

Q = "broker-a/0"
EQUAL = (NodeDigest("n0", 100, "aa"), NodeDigest("n1", 100, "aa"))


def run_of(*, gap_s: float = 0.5, trouble: str = "", lose: bool = False) -> DrillResult:
    """Ten messages a second for 4 s; at 1 s a node is killed, and nothing is acknowledged for `gap_s`."""
    record = DrillRecord(0.0)
    for number in range(40):
        invoked_s = number / 10
        send = record.invoked(invoked_s)
        record.acknowledged(send, invoked_s + (gap_s if 1.0 <= invoked_s < 1.0 + gap_s else 0.01), Q, number, 1)
        if not (lose and number == 7):
            record.delivered(Delivery(number, invoked_s + 0.02, Q, number))
    record.acks.sort(key=lambda send: send.completed_s)
    injection = Injection(CATALOGUE["kill-leader"], 1.0, "n0", 2.0, "n1", trouble=trouble)
    for at_s, verb in ((1.0, Verb.KILL), (2.0, Verb.START)):
        injection.events.append(Event(at_s, at_s, Step(0.0, verb, ("n0",)), "seen"))
    record.injections.append(injection)
    for half in range(8):
        leader = "n0" if half < 3 else "n1"
        nodes = tuple(NodeView(n, "h:1", "master" if n == leader else "slave", "up") for n in ("n0", "n1"))
        record.samples.append(Sample(half / 2, ClusterView(nodes, "namesrv"), 1 if leader == "n0" else 2))
    findings = judge(record.sends, record.deliveries, frozenset())
    return DrillResult("kill-leader", "raft", "ledgermq drill kill-leader", record, findings, EQUAL, 5.0)
