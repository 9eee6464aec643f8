"""The catalogue of drills: what each breaks, in which modes, and its steps for a given cluster. No I/O.

A drill is a function from a view of the cluster and the length of the fault to steps, and an entry in `CATALOGUE`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chaos.fabric.contract import ClusterView, NodeView, Verb

_REPLICATED = frozenset({"raft", "sync", "async", "controller"})
_ALL = _REPLICATED | {"standalone"}
_WITH_LINKS = frozenset({"raft", "sync", "async"})
_RAFT = frozenset({"raft"})
_CONTROLLER = frozenset({"controller"})
_ELECTED = frozenset({"raft", "controller"})
_SLOW_MS = "100"
_SLOW_SYNC_MS = "200"
_JUMP_S = "3600"
_SMALL_FILES = ("mappedFileSizeCommitLog=524288", "maxMessageSize=65536")
_SYNCED = "flushDiskType=SYNC_FLUSH"
_FLAP_S = 0.5
_PATIENT = ("raftElectionTimeout=1200",)


@dataclass(frozen=True, slots=True)
class Step:
    """One verb of a drill.

    Attributes:
        after_s: seconds after the step before it.
        words: arguments of the verb, see `Verb`.
        when_whole: wait first until every node is back and in sync.
    """

    after_s: float
    verb: Verb
    words: tuple[str, ...]
    when_whole: bool = False

    @property
    def is_fault(self) -> bool:
        """Whether the step breaks something; other steps repair."""
        return self.verb not in (Verb.START, Verb.RESUME, Verb.HEAL, Verb.REPLACE_DISK)


_OF_CONTAINERS = frozenset(
    {
        Verb.KILL, Verb.STOP, Verb.START, Verb.PAUSE, Verb.RESUME, Verb.CUT, Verb.DELAY, Verb.UNPLUG, Verb.HEAL,
        Verb.WIPE, Verb.TRANSFER,
    }
)  # fmt: skip
_EXAMPLE = ClusterView(
    tuple(NodeView(f"n{number}", "", "slave" if number else "master", "up") for number in range(3)), "namesrv"
)

Plan = Callable[[ClusterView, float], Sequence[Step]]
"""Returns the steps for a cluster with a leader and a fault of so many seconds; a later step repairs each fault."""


@dataclass(frozen=True, slots=True)
class Drill:
    """One entry of the catalogue.

    Attributes:
        modes: modes of replication in which the drill makes sense.
        hold_s: default length of the fault in seconds.
        family: `kill`, `pause`, `network`, `move`, `disk` or `clock`; gives the colour in reports.
        spares_sends_in: modes in which the change is planned, and no send may fail.
        proves: what the drill shows, for the documents.
        equipment: options of `cluster up` that the fault needs.
        settings: properties of the brokers, `KEY=VALUE`.
        keeps_leader: whether an election would have no reason.
        in_namespaces: further modes of the fabric of namespaces, where any two nodes can be cut from each other.
        delays: whether it delays messages, which Toxiproxy can and namespaces cannot.
    """

    name: str
    summary: str
    proves: str
    modes: frozenset[str]
    family: str
    hold_s: float
    plan: Plan
    spares_sends_in: frozenset[str] = frozenset()
    equipment: frozenset[str] = frozenset()
    settings: tuple[str, ...] = ()
    keeps_leader: bool = False
    in_namespaces: frozenset[str] = frozenset()
    delays: bool = False

    def modes_on(self, fabric: str) -> frozenset[str]:
        """Return the modes that allow the drill on a fabric: `processes`, `namespaces` or `compose`."""
        if fabric == "compose":
            verbs = {step.verb for step in self.plan(_EXAMPLE, self.hold_s)}
            if not verbs <= _OF_CONTAINERS or self.settings:
                return frozenset()
            return self.modes & (_RAFT if self.equipment else _REPLICATED)  # only the profile `chaos` has Toxiproxy
        if self.name == "unplug-leader":
            return frozenset()
        if fabric != "namespaces":
            return self.modes
        return frozenset() if self.delays else self.modes | self.in_namespaces


def _leader(view: ClusterView) -> str:
    assert view.leader is not None, "the caller waits for a leader"
    return view.leader


def _ways(one: str, others: Sequence[str]) -> tuple[str, ...]:
    """Return the links between a node and others, both ways."""
    return tuple(link for other in others for link in (f"{one}>{other}", f"{other}>{one}"))


def _cut(links: tuple[str, ...], hold_s: float) -> Sequence[Step]:
    return [Step(0.0, Verb.CUT, links), Step(hold_s, Verb.HEAL, links)]


def _down(verb: Verb, nodes: Sequence[str], hold_s: float) -> list[Step]:
    """Return the steps that take nodes down and start them again."""
    down = [Step(0.0, verb, (node,)) for node in nodes]
    return [*down, *(Step(0.0 if number else hold_s, Verb.START, (node,)) for number, node in enumerate(nodes))]


def _kill_leader(view: ClusterView, hold_s: float) -> Sequence[Step]:
    return _down(Verb.KILL, [_leader(view)], hold_s)


def _pause_leader(view: ClusterView, hold_s: float) -> Sequence[Step]:
    leader = (_leader(view),)
    return [Step(0.0, Verb.PAUSE, leader), Step(hold_s, Verb.RESUME, leader)]


def _stalls(view: ClusterView, hold_s: float) -> Sequence[Step]:
    return _stalled(view.followers, hold_s)


def _stall_each(view: ClusterView, hold_s: float) -> Sequence[Step]:
    return _stalled([*view.followers, _leader(view)], hold_s)


def _stalled(nodes: Sequence[str], hold_s: float) -> Sequence[Step]:
    return [step for node in nodes for step in (Step(hold_s, Verb.PAUSE, (node,)), Step(hold_s, Verb.RESUME, (node,)))]


def _isolate_leader(view: ClusterView, hold_s: float) -> Sequence[Step]:
    return _cut(_ways(_leader(view), view.followers), hold_s)


def _unplug_leader(view: ClusterView, hold_s: float) -> Sequence[Step]:
    leader = (_leader(view),)
    return [Step(0.0, Verb.UNPLUG, leader), Step(hold_s, Verb.HEAL, leader)]


def _minority(view: ClusterView, hold_s: float) -> Sequence[Step]:
    return _down(Verb.KILL, view.followers[: max(1, (len(view.nodes) - 1) // 2)], hold_s)


def _majority_lost(view: ClusterView, hold_s: float) -> Sequence[Step]:
    return _down(Verb.KILL, [_leader(view), *view.followers[: len(view.nodes) // 2]], hold_s)


def _one_way(view: ClusterView, hold_s: float) -> Sequence[Step]:
    return _cut(tuple(f"{_leader(view)}>{follower}" for follower in view.followers), hold_s)


def _bridge(view: ClusterView, hold_s: float) -> Sequence[Step]:
    """Cut the group into two halves that see each other through one node; of three, cut leader and one follower."""
    others = view.followers
    half = max(1, (len(view.nodes) - 1) // 2)
    left, right = [_leader(view), *others[1:half]], others[half:] if len(others) > half + 1 else others[:1]
    return _cut(tuple(link for one in left for link in _ways(one, right)), hold_s)


def _flapping(view: ClusterView, hold_s: float) -> Sequence[Step]:
    links = _ways(_leader(view), view.followers[:1])
    rounds = max(1, round(hold_s / (2 * _FLAP_S)))
    return [Step(_FLAP_S, Verb.CUT, links), Step(_FLAP_S, Verb.HEAL, links)] * rounds


def _slow_link(view: ClusterView, hold_s: float) -> Sequence[Step]:
    links = _ways(_leader(view), view.followers[:1])
    return [Step(0.0, Verb.DELAY, (_SLOW_MS, *links)), Step(hold_s, Verb.HEAL, links)]


def _rolling_restart(view: ClusterView, hold_s: float) -> Sequence[Step]:
    """Restart the followers and then the leader, each when all are back."""
    order = [*view.followers, _leader(view)]
    return [
        step
        for node in order
        for step in (Step(0.0, Verb.STOP, (node,), when_whole=True), Step(hold_s, Verb.START, (node,)))
    ]


def _nameserver_down(view: ClusterView, hold_s: float) -> Sequence[Step]:
    return _down(Verb.KILL, [view.nameserver], hold_s)


def _transfer(view: ClusterView, hold_s: float) -> Sequence[Step]:
    """Hand leadership to a follower, and back."""
    leader, follower = _leader(view), view.followers[0]
    back = Step(hold_s, Verb.TRANSFER, (leader,), when_whole=True)
    return [Step(0.0, Verb.TRANSFER, (follower,)), back]


def _wiped_node(view: ClusterView, hold_s: float) -> Sequence[Step]:
    node = (view.followers[0],)
    return [Step(0.0, Verb.KILL, node), Step(0.0, Verb.WIPE, node), Step(hold_s, Verb.START, node)]


def _slow_disk(view: ClusterView, hold_s: float) -> Sequence[Step]:
    leader = _leader(view)
    return [Step(0.0, Verb.SLOW, (_SLOW_SYNC_MS, leader)), Step(hold_s, Verb.HEAL, (leader,))]


def _disk_full(view: ClusterView, hold_s: float) -> Sequence[Step]:
    leader = (_leader(view),)
    return [Step(0.0, Verb.FILL, leader), Step(hold_s, Verb.HEAL, leader)]


def _corrupt_file(view: ClusterView, hold_s: float) -> Sequence[Step]:
    node = (view.followers[0],)
    return [Step(hold_s, Verb.KILL, node), Step(0.0, Verb.CORRUPT, node), Step(hold_s, Verb.START, node)]


def _lose_disk(view: ClusterView, hold_s: float) -> Sequence[Step]:
    leader = (_leader(view),)
    return [
        Step(0.0, Verb.FAIL_DISK, leader),
        Step(hold_s, Verb.REPLACE_DISK, leader),
        Step(0.0, Verb.START, leader),
    ]


def _clock_jump(view: ClusterView, hold_s: float) -> Sequence[Step]:
    """Set the clock an hour ahead, an hour behind, and right again."""
    leader = _leader(view)
    return [
        Step(0.0, Verb.CLOCK, (_JUMP_S, leader)),
        Step(hold_s / 2, Verb.CLOCK, (f"-{_JUMP_S}", leader)),
        Step(hold_s / 2, Verb.HEAL, (leader,)),
    ]


def _power_cut(view: ClusterView, hold_s: float) -> Sequence[Step]:
    nodes = [node.name for node in view.nodes]
    return [
        Step(0.0, Verb.CUT_POWER, tuple(nodes)),
        *(Step(0.0 if number else hold_s, Verb.START, (node,)) for number, node in enumerate(nodes)),
    ]


_LINKS, _DISKS, _SHIM = (frozenset({option}) for option in ("--links", "--disks", "--shim"))

_DRILLS = (
    Drill(
        "kill-leader", "SIGKILL the leader or master, and start it again",
        "another node serves at once, and nothing acknowledged is lost", _ALL, "kill", 2.0, _kill_leader,
    ),
    Drill(
        "pause-leader", "SIGSTOP the leader or master, and resume it",
        "a leader that wakes up acknowledges nothing that the group does not have", _ALL, "pause", 3.0, _pause_leader,
    ),
    Drill(
        "stalls", "SIGSTOP each follower or slave in turn for a second",
        "a follower that wakes up late disturbs no leader", _REPLICATED, "pause", 1.0, _stalls, keeps_leader=True,
    ),
    Drill(
        "stall-each", "SIGSTOP each broker in turn for a second, the leader too, where an election takes more",
        "with raftElectionTimeout=1200 no stall of a second costs an election or a send",
        _RAFT, "pause", 1.0, _stall_each, _RAFT, settings=_PATIENT, keeps_leader=True,
    ),
    Drill(
        "isolate-leader", "cut the leader from all other brokers; clients still reach it",
        "the old side stops acknowledging, the new side serves",
        _WITH_LINKS, "network", 4.0, _isolate_leader, equipment=_LINKS, in_namespaces=_CONTROLLER,
    ),
    Drill(
        "unplug-leader", "disconnect the leader's container from its network, clients and nameservers included",
        "a leader that nobody reaches is replaced, and finds its way back", _REPLICATED, "network", 4.0, _unplug_leader,
    ),
    Drill(
        "minority", "SIGKILL as many followers as the group can spare (at least one)",
        "no send waits for a follower that is gone, or the mode says so", _REPLICATED, "kill", 3.0, _minority,
    ),
    Drill(
        "majority-lost", "SIGKILL a majority, the leader among them, and start it again",
        "nothing is acknowledged without a majority, and service comes back by itself",
        _RAFT, "kill", 3.0, _majority_lost,
    ),
    Drill(
        "one-way", "drop what the leader sends to the other brokers, not what they send",
        "half a connection does not keep a leader that cannot replicate",
        _WITH_LINKS, "network", 4.0, _one_way, equipment=_LINKS, in_namespaces=_CONTROLLER,
    ),
    Drill(
        "bridge", "cut two halves that still see each other through one node",
        "a partial partition ends in one stable leader",
        _RAFT, "network", 4.0, _bridge, equipment=_LINKS,
    ),
    Drill(
        "flapping", "cut and heal one link of the leader every half second",
        "a bad link causes no series of elections",
        _WITH_LINKS, "network", 4.0, _flapping, equipment=_LINKS, in_namespaces=_CONTROLLER,
    ),
    Drill(
        "slow-link", f"delay one link of the leader by {_SLOW_MS} ms each way",
        "one slow follower slows nobody where a majority is fast",
        _WITH_LINKS, "network", 4.0, _slow_link, equipment=_LINKS, delays=True,
    ),
    Drill(
        "rolling-restart", "stop and start every broker in order, followers first",
        "an upgrade loses nothing, and fails no send where another node takes over",
        _ALL, "kill", 0.5, _rolling_restart, _ELECTED,
    ),
    Drill(
        "nameserver-down", "SIGKILL the nameserver, and start it again",
        "clients that are connected notice nothing", _ALL, "kill", 3.0, _nameserver_down,
    ),
    Drill(
        "transfer", "hand leadership to a follower, and back",
        "a planned change of leader fails no send", _ELECTED, "move", 1.0, _transfer, _ELECTED,
    ),
    Drill(
        "wiped-node", "SIGKILL a follower, delete its data, and start it again",
        "a lost disk is copied again and endangers nothing", _REPLICATED, "kill", 1.0, _wiped_node,
    ),
    Drill(
        "slow-disk", f"each sync of the leader or master takes {_SLOW_SYNC_MS} ms longer",
        "a slow disk costs time, and neither an election without end nor a message",
        _ALL, "disk", 4.0, _slow_disk, equipment=_SHIM,
    ),
    Drill(
        "disk-full", "leave no room on the disk of the leader or master, and give it back",
        "sends are refused or served elsewhere, and all goes on by itself when there is room",
        _ALL, "disk", 8.0, _disk_full, equipment=_DISKS, settings=_SMALL_FILES,
    ),
    Drill(
        "corrupt-file", "invert bytes in a full log file of a follower that is down, and start it",
        "damage is found, never served, and mended from a peer",
        _RAFT, "disk", 2.0, _corrupt_file, settings=_SMALL_FILES,
    ),
    Drill(
        "lose-disk", "the leader's disk answers with errors; then it gets an empty one",
        "a node whose disk fails acknowledges nothing more, and another one serves",
        _ELECTED, "disk", 3.0, _lose_disk, equipment=_DISKS,
    ),
    Drill(
        "clock-jump", "the leader's or master's wall clock jumps an hour ahead, and an hour behind",
        "no timeout and no election hangs on the wall clock", _ALL, "clock", 4.0, _clock_jump, equipment=_SHIM,
    ),
    Drill(
        "power-cut", "all brokers end at one moment without what they had not synced, and start again",
        "what was acknowledged had been synced (flushDiskType=SYNC_FLUSH)",
        _ALL, "kill", 1.0, _power_cut, equipment=_DISKS, settings=(_SYNCED,),
    ),
)  # fmt: skip

CATALOGUE = {drill.name: drill for drill in _DRILLS}
"""The drills by name."""
