"""The contract between drills and a running cluster.

A fabric carries out verbs on nodes that it names, proves that each had its effect, and can undo all of them.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Verb(enum.StrEnum):
    """What can be done to a cluster. The comment has the words that follow each verb."""

    KILL = "kill"  # NODE: SIGKILL
    STOP = "stop"  # NODE: SIGTERM, and wait for its end
    START = "start"  # NODE, after kill or stop
    PAUSE = "pause"  # NODE: SIGSTOP
    RESUME = "resume"  # NODE: SIGCONT
    WIPE = "wipe"  # NODE: delete what it stored; it must be down
    TRANSFER = "transfer"  # NODE: it becomes leader
    CUT = "cut"  # LINK...: for each `A>B`, nothing that A sends reaches B
    DELAY = "delay"  # MS LINK...: for each `A>B`, what A sends reaches B so many ms later
    UNPLUG = "unplug"  # NODE: its network is gone, for peers, nameservers and clients
    FILL = "fill"  # NODE: no room is left on its disk
    FAIL_DISK = "fail-disk"  # NODE: its disk answers with errors
    REPLACE_DISK = "replace-disk"  # NODE: end it if it still runs, and give it an empty disk
    CUT_POWER = "cut-power"  # NODE...: all end at one moment, and lose what they had not synced
    SLOW = "slow"  # MS NODE: each of its syncs takes so many ms longer
    CLOCK = "clock"  # S NODE: its wall clock is so many seconds ahead; behind where S is negative
    CORRUPT = "corrupt"  # NODE: invert bytes in a full file of its log
    HEAL = "heal"  # [LINK|NODE]...: undo cuts and delays of links, unplugged nodes, full and slow disks, clocks


UNDONE_BY = {"paused": Verb.RESUME, "down": Verb.START}
"""What brings a node back from a state, as in `NodeView.state`."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """One broker as the fabric sees it.

    Attributes:
        role: `master`, `slave`, `down` or `unknown`, by the nameserver's routes.
        state: of its process: `up`, `paused` or `down`.
        in_sync: whether it counts for acknowledgements; None where the mode has no such notion.
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
        epoch: the master's epoch where controllers appoint it; else None.
    """

    nodes: tuple[NodeView, ...]
    nameserver: str
    epoch: int | None = None

    @property
    def leader(self) -> str | None:
        """Name of the first master that the routes show; None: there is none."""
        return next((node.name for node in self.nodes if node.role == "master"), None)

    @property
    def followers(self) -> list[str]:
        """Names of the brokers that are not the leader."""
        return [node.name for node in self.nodes if node.name != self.leader]

    @property
    def is_whole(self) -> bool:
        """Every process runs, every broker has a role, one of them leads (standalone: all), and slaves are in sync."""
        roles = [node.role for node in self.nodes]
        is_up = all(node.state == "up" and node.in_sync is not False for node in self.nodes)
        return is_up and set(roles) <= {"master", "slave"} and "master" in roles


@dataclass(frozen=True, slots=True)
class NodeDigest:
    """The hash of one node's log from `start` to its confirm offset `end`; nodes of one broker name share the log.

    `differs_at`: offset of the first byte that is not that of the first node of the name; None: not looked for.
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
    """Whether all nodes of each broker name have the same bytes up to the same confirm offset.

    No digest, or one of no bytes of a log that has some, proves nothing.
    """
    logs = {(digest.broker, digest.end, digest.sha256) for digest in digests}
    has_bytes = all(digest.start < digest.end or not digest.end for digest in digests)
    return bool(digests) and has_bytes and len(logs) == len({digest.broker for digest in digests})


@dataclass(frozen=True, slots=True)
class Link:
    """A connection that `source` dials and `target` accepts.

    Attributes:
        listen: `host:port` of the proxy, which the dialer is configured with.
        upstream: `host:port` at which the target listens.
        probe: bytes after which the target speaks, and then closes the connection since they are wrong.
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
        verbs: what it can do.
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
        """Return what the cluster looks like now.

        Raises:
            CommandError: the cluster does not answer.
        """

    async def mend(self) -> None:
        """Undo every fault: links whole, processes resumed and started. Undoing twice is no error."""

    async def digests(self) -> Sequence[NodeDigest] | None:
        """Return one digest for each broker, at one confirm offset if those of one log agree on one in time.

        None: the logs of this cluster cannot be read.

        Raises:
            CommandError: a node does not answer, or its log cannot be read.
        """
