"""The language of the transcripts in `testdata/`: a group of whole `RaftNode`s, moved one step at a time.

Nothing happens by itself: messages wait in `network` until they are delivered, flushes and hard states until the disk
is told to go on, time until it elapses. Each command prints what it made happen: messages sent, writes to the log,
roles, commits.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from chaos.sim.clock import SimClock
from chaos.sim.disk import SimDisk, SimHardStates, SimLog
from dledger.core.errors import RaftError
from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    HardState,
    InstallRequest,
    InstallResponse,
    Message,
    TransferRequest,
    VoteRequest,
    VoteResponse,
)
from dledger.core.roles import SoftState
from dledger.core.settings import RaftSettings
from dledger.node import RaftNode
from store.errors import DiskFailedError

STEP_MS = 50


class HandDisk(SimDisk):
    """A disk whose flushes and saves return when `go_on` is called."""

    def __init__(self) -> None:
        super().__init__(SimClock(Random(0)), Random(0), 0)
        self.waiting: list[Callable[[], None]] = []

    def when_flushed(self, done: Callable[[], None]) -> None:
        self.waiting.append(done)

    def go_on(self) -> bool:
        """Let what is under way return; whether anything was."""
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done()
        return bool(waiting)


@dataclass
class Member:
    """One node: its disk, its present life, and what it did since it was last asked."""

    name: str
    disk: HandDisk
    node: RaftNode = field(init=False)
    log: SimLog = field(init=False)


class Script:
    """Interpreter of the commands: `run(name, words, options)` returns what to print."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.network: list[tuple[str, str, Message]] = []
        self.cut: set[tuple[str, str]] = set()
        self.now_ms = 0
        self._lines: list[str] = []
        self._options: dict[str, str] = {}
        self._payload = 100

    def run(self, name: str, words: list[str], options: dict[str, str]) -> str:
        """Carry out one command."""
        self._lines = []
        command = getattr(self, f"do_{name.replace('-', '_')}")
        try:
            command(words, options)
        except RaftError as error:
            self._say(f"{type(error).__name__}: {error}")
        return "\n".join(self._lines) or "ok"

    # -- the group

    def do_group(self, words: list[str], options: dict[str, str]) -> None:
        """`group n1 n2 n3 [flush=async] [prefer=n1] [n1=1:3,2:1]`: log of a node as runs `term:count`."""
        self._options = {"peers": ",".join(words), **options}
        is_new = options.get("new") == "yes"
        for name in words:
            disk = HandDisk()
            runs = [run.split(":") for run in options.get(name, "").split(",") if run]
            for term, count in runs:
                for number in range(int(count)):
                    disk.append(int(term), 10 * int(term) + number)
            last_term = int(runs[-1][0]) if runs else 0
            disk.hard_state = HardState(int(options.get("term", last_term)), "", is_new, is_new)
            self.members[name] = Member(name, disk)
            self._boot(self.members[name])

    def do_restart(self, words: list[str], options: dict[str, str]) -> None:
        """`restart n1 [keeps=4] [wiped=yes] [amnesiac=yes]`: a new process on the disk, or on what is left of it."""
        member = self.members[words[0]]
        self.network = [item for item in self.network if words[0] not in item[:2]]
        if options.get("wiped"):
            member.disk = HandDisk()
        if "keeps" in options:
            member.disk.truncate_after(int(options["keeps"]))
        member.disk.process_died()
        member.disk.amnesiac = "amnesiac" in options
        self._boot(member)

    def _boot(self, member: Member) -> None:
        peers = tuple(self._options["peers"].split(","))
        prefer = self._options.get("prefer")
        settings = RaftSettings(
            node_id=member.name,
            peers=peers,
            priorities={prefer: 1} if prefer else {},
            durable_quorum=self._options.get("flush") != "async",
            span_limit_bytes=int(self._options.get("span", 64)),
            window_bytes=int(self._options.get("window", 1024)),
        )
        port = Port(self, member)
        member.disk.waiting.clear()
        member.log = SimLog(member.disk, lambda index: None, lambda index: None)
        member.node = RaftNode(
            settings,
            log=member.log,
            hard_states=SimHardStates(member.disk),
            transport=port,
            machine=port,
            listener=port,
            jitter=lambda limit: limit * peers.index(member.name) // len(peers),
            now_ms=self.now_ms,
        )

    # -- time, network, disk

    def do_elapse(self, words: list[str], options: dict[str, str]) -> None:
        """`elapse 700 [n1 ...]`: time goes on in ticks of 50 ms, for all nodes or for those named."""
        end_ms = self.now_ms + int(words[0])
        while self.now_ms < end_ms:
            self.now_ms = min(self.now_ms + STEP_MS, end_ms)
            for name in words[1:] or self.members:
                self.members[name].node.on_tick(self.now_ms)

    def do_pass(self, words: list[str], options: dict[str, str]) -> None:
        """`pass 700`: time goes on, and everything is delivered and durable all along; prints no messages."""
        end_ms = self.now_ms + int(words[0])
        while self.now_ms < end_ms:
            self.do_elapse([str(STEP_MS)], {})
            self._settle()
        self._lines = [line for line in self._lines if " -> " not in line]

    def do_stall(self, words: list[str], options: dict[str, str]) -> None:
        """`stall n1 900`: the node stood still for so long, then ticks."""
        self.now_ms += int(words[1])
        self.members[words[0]].node.on_tick(self.now_ms)

    def do_deliver(self, words: list[str], options: dict[str, str]) -> None:
        """`deliver [n1->n2 ...] [first=1]`: hand over what waits now, on all links or on those named; answers wait."""
        for source, target, message in self._take(words, options):
            if (source, target) not in self.cut:
                self.members[target].node.on_message(source, message)

    def do_drop(self, words: list[str], options: dict[str, str]) -> None:
        """`drop n1->n2 ... [first=1]`: what waits on these links is lost."""
        self._take(words, options)

    def _take(self, words: list[str], options: dict[str, str]) -> list[tuple[str, str, Message]]:
        named = [item for item in self.network if not words or f"{item[0]}->{item[1]}" in words]
        taken = named[: int(options.get("first", len(named)))]
        self.network = [item for item in self.network if not any(item is other for other in taken)]
        return taken

    def do_cut(self, words: list[str], options: dict[str, str]) -> None:
        """`cut n1->n2 ...`: nothing arrives on these links any more; nobody is told."""
        self.cut.update((word.split("->")[0], word.split("->")[1]) for word in words)

    def do_isolate(self, words: list[str], options: dict[str, str]) -> None:
        """`isolate n1`: all links of a node are cut, both ways."""
        others = [name for name in self.members if name != words[0]]
        self.cut.update(pair for other in others for pair in ((words[0], other), (other, words[0])))

    def do_heal(self, words: list[str], options: dict[str, str]) -> None:
        """`heal`: no link is cut."""
        self.cut.clear()

    def do_lose(self, words: list[str], options: dict[str, str]) -> None:
        """`lose n1 n2 [...]`: n1's connections to the others break, and both ends know."""
        for other in words[1:]:
            self.network = [item for item in self.network if {item[0], item[1]} != {words[0], other}]
            self.members[words[0]].node.on_peer_lost(other)
            self.members[other].node.on_peer_lost(words[0])

    def do_join(self, words: list[str], options: dict[str, str]) -> None:
        """`join n1 n2 [...]`: n1's connections to the others stand again."""
        for other in words[1:]:
            self.members[words[0]].node.on_peer_joined(other)
            self.members[other].node.on_peer_joined(words[0])

    def do_disk(self, words: list[str], options: dict[str, str]) -> None:
        """`disk n1 [...]`: saves and flushes under way on these nodes return."""
        for name in words:
            self.members[name].disk.go_on()

    def do_settle(self, words: list[str], options: dict[str, str]) -> None:
        """`settle [quiet]`: deliver and flush until nothing is under way; quiet: print no messages."""
        self._settle()
        if words:
            self._lines = [line for line in self._lines if " -> " not in line]

    def _settle(self) -> None:
        for _ in range(1000):
            busy = [member.disk.go_on() for member in self.members.values()]
            if not self.network and not any(busy):
                return
            self.do_deliver([], {})
        raise AssertionError("the group does not come to rest")

    # -- what people and faults do

    def do_propose(self, words: list[str], options: dict[str, str]) -> None:
        """`propose n1 3`: so many entries, in one turn."""
        member = self.members[words[0]]
        first_index, term = member.node.propose(int(words[1]))
        for _ in range(int(words[1])):
            self._payload += 1
            member.log.write(term, self._payload)
        self._say(f"{words[0]} proposes {first_index}..{member.log.last_index} of term {term}")
        member.node.proposed()

    def do_transfer(self, words: list[str], options: dict[str, str]) -> None:
        """`transfer n1 [n2]`: hand leadership over."""
        chosen = self.members[words[0]].node.transfer(words[1] if len(words) > 1 else None)
        self._say(f"{words[0]} hands over to {chosen}")

    def do_read(self, words: list[str], options: dict[str, str]) -> None:
        """`read n1`: ask for a read index."""
        name = words[0]
        self.members[name].node.read_index(lambda index: self._say(f"{name} read index {index}"))

    def do_stalled(self, words: list[str], options: dict[str, str]) -> None:
        """`stalled n1 [over=yes]`: the watchdog says that a flush does not return, or that it does again."""
        self.members[words[0]].node.on_disk_stalled(is_stalled="over" not in options)

    def do_fail(self, words: list[str], options: dict[str, str]) -> None:
        """`fail n1`: the disk fails for good."""
        disk = self.members[words[0]].disk
        disk.has_failed = True
        self.members[words[0]].node.on_disk_failed(OSError("disk failed"))

    def do_roomless(self, words: list[str], options: dict[str, str]) -> None:
        """`roomless n1 [over=yes]`: the store has no room for messages, or has some again."""
        self.members[words[0]].node.on_fitness(is_fit="over" in options)

    def do_full(self, words: list[str], options: dict[str, str]) -> None:
        """`full n1 [over=yes]`: no room on the disk for an entry."""
        self.members[words[0]].disk.is_full = "over" not in options

    def do_trim(self, words: list[str], options: dict[str, str]) -> None:
        """`trim n1 4`: the entries before 4 are deleted."""
        self.members[words[0]].disk.trim(int(words[1]))
        self.members[words[0]].node.on_trimmed()

    def do_allow_missing(self, words: list[str], options: dict[str, str]) -> None:
        """`allow-missing n1`: an operator's word."""
        self.members[words[0]].node.allow_missing()

    def do_state(self, words: list[str], options: dict[str, str]) -> None:
        """`state [n1 ...]`: what the nodes are."""
        for name in words or self.members:
            self._say(self._state(self.members[name]))

    def do_peers(self, words: list[str], options: dict[str, str]) -> None:
        """`peers n1`: how the leader n1 sees the others, and on how many members its last entry lies."""
        node = self.members[words[0]].node
        for peer in node.status().peers:
            doubt = " recovering" if peer.recovering else ""
            self._say(f"{peer.peer_id} {peer.state} received={peer.received_index} durable={peer.durable_index}{doubt}")
        self._say("copies of the last entry: received={} durable={}".format(*node.copies(node.status().last_index)))

    # -- printing

    def _say(self, line: str) -> None:
        self._lines.append(line)

    def said(self, line: str) -> None:
        """A port has something to tell."""
        self._say(line)

    def _state(self, member: Member) -> str:
        status, state = member.node.status(), member.node.raft.state
        soft = status.soft
        runs = " ".join(f"{run.term}@{run.first_index}" for run in member.log.term_runs)
        marks = [
            f"leader={soft.leader_id or '-'}",
            *(["recovering"] if soft.recovering else []),
            *(["writable"] if soft.writable else []),
            *(["lease"] if status.has_lease else []),
            *([f"may_miss_after={soft.may_miss_after}"] if soft.may_miss_after is not None else []),
            *([f"waits_for={','.join(status.waits_for)}"] if status.waits_for else []),
        ]
        log = f"log={status.first_index}..{status.last_index} [{runs}]"
        ends = f"durable={status.durable_index} commit={status.commit_index}"
        vote = f" vote={state.voted_for}" if state.voted_for else ""
        return f"{member.name} {soft.role} term={soft.term}{vote} {log} {ends} {' '.join(marks)}"


class Port:
    """Transport, state machine and listener of one node: all of them only tell the script."""

    def __init__(self, script: Script, member: Member) -> None:
        self._script = script
        self._member = member
        self._soft: SoftState | None = None

    def send(self, peer_id: str, message: Message) -> None:
        self._script.network.append((self._member.name, peer_id, message))
        self._script.said(f"{self._member.name} -> {peer_id} {describe(message)}")

    def snapshot(self) -> bytes:
        return b"state"

    def restore(self, state: bytes) -> None:
        self._script.said(f"{self._member.name} restores {state!r}")

    def on_commit(self, commit_index: int) -> None:
        self._script.said(f"{self._member.name} commits {commit_index}")

    def on_role(self, state: SoftState) -> None:
        words = [f"{self._member.name} is {state.role} of term {state.term}"]
        words += [f"under {state.leader_id}"] if state.leader_id not in (None, self._member.name) else []
        words += ["writable"] if state.writable else []
        words += ["recovering"] if state.recovering else []
        words += [f"may_miss_after={state.may_miss_after}"] if state.may_miss_after is not None else []
        self._script.said(", ".join(words))

    def on_truncated(self, last_index: int) -> None:
        self._script.said(f"{self._member.name} truncates after {last_index}")

    def on_reset(self, first_index: int, start_position: int) -> None:
        self._script.said(f"{self._member.name} starts its log anew at {first_index}, byte {start_position}")

    def on_failed(self, error: Exception) -> None:
        kind = "disk failed" if isinstance(error, OSError | DiskFailedError) else f"{type(error).__name__}: {error}"
        self._script.said(f"{self._member.name} leaves the group: {kind}")


def describe(message: Message) -> str:
    """A message in one line."""
    match message:
        case VoteRequest():
            kind = "pre_vote " * message.pre_vote + "transfer " * message.transfer + "salvage " * message.salvage
            return f"VoteRequest {kind}term={message.term} last={message.last_term}/{message.last_index}"
        case VoteResponse():
            kind = "pre_vote " * message.pre_vote
            doubt = " recovering" * message.recovering
            return f"VoteResponse {kind}term={message.term} {message.cause.name.lower()}{doubt}"
        case AppendRequest(span=None):
            return f"AppendRequest term={message.term} prev={_prev(message)} commit={message.commit_index}"
        case AppendRequest(span=span) if span is not None:
            what = f"{span.first_index}..{span.last_index}@{span.term}"
            return f"AppendRequest term={message.term} prev={_prev(message)} [{what}] commit={message.commit_index}"
        case AppendResponse(accepted=True):
            ends = f"received={message.received_index} durable={message.durable_index}"
            return f"AppendResponse term={message.term} {ends}" + " recovering" * message.recovering
        case AppendResponse():
            runs = " ".join(f"{run.term}@{run.first_index}" for run in message.term_runs)
            reject = f"reject prev={message.prev_index} last={message.received_index} runs=[{runs}]"
            return f"AppendResponse term={message.term} {reject}" + " recovering" * message.recovering
        case InstallRequest():
            start = f"first={message.first_index} position={message.start_position} prev_term={message.prev_term}"
            return f"InstallRequest term={message.term} {start}"
        case InstallResponse():
            return f"InstallResponse term={message.term} accepted={message.accepted} last={message.last_index}"
        case TransferRequest():
            return f"TransferRequest term={message.term}"
    raise AssertionError(message)


def _prev(message: AppendRequest) -> str:
    return f"{message.prev_term}/{message.prev_index}"
