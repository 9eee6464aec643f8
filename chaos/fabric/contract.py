"""The contract between drills and a running cluster.

A fabric carries out verbs on named nodes, proves that each had its effect, and can undo all of them.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Verb(enum.StrEnum):
    """The actions on a cluster. The comments have the arguments of each verb."""

    KILL = "kill"  # NODE: SIGKILL
    STOP = "stop"  # NODE: SIGTERM, and wait for its end
    START = "start"  # NODE, after kill or stop
    PAUSE = "pause"  # NODE: SIGSTOP
    RESUME = "resume"  # NODE: SIGCONT
    WIPE = "wipe"  # NODE: delete what it stored; it must be down
    TRANSFER = "transfer"  # NODE: let it become leader
    CUT = "cut"  # LINK...: for each `A>B`, drop what A sends to B
    DELAY = "delay"  # MS LINK...: for each `A>B`, delay what A sends to B by so many ms
    UNPLUG = "unplug"  # NODE: cut it off from peers, nameservers and clients
    FILL = "fill"  # NODE: fill its disk
    FAIL_DISK = "fail-disk"  # NODE: let its disk answer with errors
    REPLACE_DISK = "replace-disk"  # NODE: end it, if it runs, and give it an empty disk
    CUT_POWER = "cut-power"  # NODE...: end all at one moment; what they had not synced is lost
    SLOW = "slow"  # MS NODE: let each of its syncs take so many ms longer
    CLOCK = "clock"  # S NODE: set its wall clock so many seconds ahead; behind if S is negative
    CORRUPT = "corrupt"  # NODE: invert bytes in a full file of its log
    HEAL = "heal"  # [LINK|NODE]...: undo cuts and delays of links, unplugged nodes, full and slow disks, clocks


UNDONE_BY = {"paused": Verb.RESUME, "down": Verb.START}
"""The verb that brings a node back from a state, by `NodeView.state`."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """One broker as the fabric sees it.

    Attributes:
        role: `master`, `slave`, `down` or `unknown`, by the nameserver's routes.
        state: of its process: `up`, `paused` or `down`.
        in_sync: whether it counts for acknowledgements; None in modes without an in-sync set.
    """

    name: str
    address: str
    role: str
    state: str
    in_sync: bool | None = None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster at one moment.

    Attributes:
        nodes: the brokers, in the order of their names.
        nameserver: name of the nameserver.
        epoch: the master's epoch where controllers elect it; else None.
    """

    nodes: tuple[NodeView, ...]
    nameserver: str
    epoch: int | None = None

    @property
    def leader(self) -> str | None:
        """Name of the first master in the routes; None without one."""
        return next((node.name for node in self.nodes if node.role == "master"), None)

    @property
    def followers(self) -> list[str]:
        """Names of the brokers that are not the leader."""
        return [node.name for node in self.nodes if node.name != self.leader]

    @property
    def is_whole(self) -> bool:
        """Whether every process runs, every broker has a role, one leads (standalone: all), and slaves are in sync."""
        roles = [node.role for node in self.nodes]
        is_up = all(node.state == "up" and node.in_sync is not False for node in self.nodes)
        return is_up and set(roles) <= {"master", "slave"} and "master" in roles


@dataclass(frozen=True, slots=True)
class NodeDigest:
    """The hash of one node's log from `start` to its confirm offset `end`; nodes of one broker name share the log.

    `differs_at`: offset of the first byte that differs from the first node of the name; None: not looked for.
    """

    name: str
    end: int
    sha256: str
    start: int = 0
    broker: str = ""
    differs_at: int | None = None

    def __str__(self) -> str:
        differs = "" if self.differs_at is None else f", differs at {self.differs_at:,}"
        return f"{self.name} {self.end:,} B {self.sha256[:12]}{differs}"


def are_identical(digests: Sequence[NodeDigest]) -> bool:
    """Return whether all nodes of each broker name have the same bytes up to the same confirm offset.

    Without digests, or with one of no bytes of a log that has some, the answer is no.
    """
    logs = {(digest.broker, digest.end, digest.sha256) for digest in digests}
    has_bytes = all(digest.start < digest.end or not digest.end for digest in digests)
    return bool(digests) and has_bytes and len(logs) == len({digest.broker for digest in digests})


@dataclass(frozen=True, slots=True)
class Link:
    """A connection that `source` dials and `target` accepts.

    Attributes:
        listen: `host:port` of the proxy, which the dialer's configuration has.
        upstream: `host:port` at which the target listens.
        probe: invalid bytes to which the target answers something before it closes the connection.
    """

    source: str
    target: str
    listen: str
    upstream: str
    probe: bytes

    @property
    def name(self) -> str:
        return f"{self.source}-{self.target}"


class Fabric(Protocol):
    """A running cluster that drills can break.

    Attributes:
        namesrv: `host:port` of its nameservers, separated by `;`, for clients.
        mode: as in `ClusterView`.
        verbs: the verbs that it can carry out.
    """

    namesrv: str
    mode: str
    verbs: frozenset[Verb]

    async def act(self, verb: Verb, *words: str) -> str:
        """Carry out a verb.

        Returns:
            The proof that it had its effect, as text for people.

        Raises:
            CommandError: it failed, or had no effect.
        """

    async def inspect(self) -> ClusterView:
        """Return the present state of the cluster.

        Raises:
            CommandError: the cluster does not answer.
        """

    async def mend(self) -> None:
        """Undo every fault: heal links, resume and start processes. Undoing twice is no error."""

    async def digests(self) -> Sequence[NodeDigest] | None:
        """Return one digest for each broker, at one confirm offset if those of one log agree on one in time.

        None if the logs of this cluster cannot be read.

        Raises:
            CommandError: a node does not answer, or its log cannot be read.
        """
