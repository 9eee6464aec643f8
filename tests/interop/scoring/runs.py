"""What is run: on which cluster, with which client, which cases; and what the real broker's counterpart is.

| cluster of ours | counterpart | its own groups |
|---|---|---|
| standalone | single | all but acl, tls, and of cluster what needs replicas |
| raft | dledger | all but acl, tls |
| standalone-acl, raft-acl | single-acl | acl, and a choice of others with every request signed |
| standalone-tls, raft-tls | single-tls | tls, and a choice of others on TLS |
| standalone-tls-enforcing | none: what fails is owed | tls, and what needs no frames made by hand |
| sync, async | single | send, consume, cluster, admin, admin5; master, two slaves (async: one) that die and return |
| controller | dledger | the same, on three brokers and three controllers |
| two-brokers | two-brokers | what needs two broker names, or a node to kill and no replica |
"""

import dataclasses
import fnmatch

CLIENTS = ("5.3.3", "4.9.8")
WITH_ACL = "acl,send,pull,lite,query,requestreply,transaction,trace"
WITH_TLS = "tls,send,pull,lite,query,requestreply,transaction,trace"
TLS_ONLY = "tls,requestreply,transaction,trace"
TWO_BROKERS = "cluster/nodes,cluster/latency-fault-tolerance"
ORDINARY = "-acl,-tls"
ELECTED = "send,consume,cluster,admin,admin5"
APPOINTED = ELECTED + ",-cluster/master-dies"

COUNTERPARTS = {
    "standalone": "single",
    "raft": "dledger",
    "standalone-acl": "single-acl",
    "raft-acl": "single-acl",
    "standalone-tls": "single-tls",
    "raft-tls": "single-tls",
    "standalone-tls-enforcing": "none",
    "sync": "single",
    "async": "single",
    "controller": "dledger",
    "two-brokers": "two-brokers",
}
_CASES = {
    "acl": WITH_ACL,
    "tls": WITH_TLS,
    "enforcing": TLS_ONLY,
    "brokers": TWO_BROKERS,
    "sync": APPOINTED,
    "async": APPOINTED,
    "controller": ELECTED,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One start of a cluster and one run of the suite on it."""

    cluster: str
    client: str
    cases: str

    @property
    def title(self) -> str:
        return f"{self.cluster}, client {self.client}"

    @property
    def column(self) -> str:
        """Of `real.tsv`."""
        return f"{COUNTERPARTS[self.cluster]}/{self.client}"


def cases_for(cluster: str) -> str:
    """The patterns of all that a cluster, ours or real, is there for."""
    return _CASES.get(cluster.rpartition("-")[2], ORDINARY)


def selects(patterns: str, case: str) -> bool:
    """Whether `--cases PATTERNS` runs this case, as the suite decides it: `*` is anything, a leading `-` excludes."""
    wanted: list[str] = []
    excluded: list[str] = []
    for pattern in patterns.split(","):
        glob = pattern.removeprefix("-")
        (excluded if pattern.startswith("-") else wanted).append(glob if "/" in glob else glob + "/*")
    if any(fnmatch.fnmatchcase(case, glob) for glob in excluded):
        return False
    return not wanted or any(fnmatch.fnmatchcase(case, glob) for glob in wanted)


def usual() -> list[Run]:
    """`make interop`: every group, both modes, both client versions; ACL and TLS on one broker."""
    clusters = [
        ("standalone", CLIENTS),
        ("raft", CLIENTS),
        ("standalone-acl", CLIENTS[:1]),
        ("standalone-tls", CLIENTS[:1]),
    ]
    clusters.append(("two-brokers", CLIENTS[:1]))
    return [Run(cluster, client, cases_for(cluster)) for cluster, clients in clusters for client in clients]


def with_slaves() -> list[Run]:
    """`make interop-slaves`: clusters of masters and slaves with both client versions."""
    clusters = ("sync", "async", "controller")
    return [Run(cluster, client, cases_for(cluster)) for cluster in clusters for client in CLIENTS]


def whole() -> list[Run]:
    """`make interop-all`: every cluster with both client versions."""
    return [Run(cluster, client, cases_for(cluster)) for cluster in COUNTERPARTS for client in CLIENTS]


def recorded() -> list[Run]:
    """What `real.tsv` is made of: every counterpart, under the name of one of ours."""
    first = {counterpart: cluster for cluster, counterpart in reversed(COUNTERPARTS.items())}
    del first["none"]
    return [Run(cluster, client, cases_for(cluster)) for cluster in first.values() for client in CLIENTS]
