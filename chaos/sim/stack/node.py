"""StoreProcess: one process of one broker without its sockets: Raft log, store, subsystems and tables as they ship.

cluster --frames--> SimTransport --> PeerInbox --> RaftNode --> EntryLog --> files
clients --> targets, metadata, offsets --> Appender --> MessageStore --> RaftLog --> ... --> done
"""

from asyncio import events
from collections.abc import Callable, Collection, Sequence
from cProfile import Profile
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from broker.admin.registration import NameserverLinks
from broker.config import BrokerConfig
from broker.log_follower import LogFollower
from broker.timers import Timers
from chaos.sim.errors import SafetyViolation
from chaos.sim.process import ClusterContext, ProcessDiesError, SimProcess
from chaos.sim.stack.accounts import CommittedLog
from chaos.sim.stack.clients import Clients
from chaos.sim.stack.disk import StoreDisk, entry_in
from chaos.sim.stack.log import SimFrame, SimTransport, WatchedLog
from chaos.sim.stack.machinery import Machinery
from chaos.sim.stack.nameservers import GROUP_NAME, nameserver_addresses
from chaos.sim.stack.replacements import Replacements
from chaos.sim.stack.sockets import FIRST_PORT, Sockets
from dledger.config import PeerAddress, RaftConfig
from dledger.core.settings import RaftTiming
from dledger.errors import PeerError
from dledger.log.entry import INDEX_UNIT_SIZE
from dledger.log.entry_log import EntryLog
from dledger.node import RaftNode
from dledger.peers.wire import CopyRequest, CopyResponse
from dledger.raft_log import RaftLog
from ledgermq.message.hosts import Host, encode_host
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.limits import Limits
from node.log_choice import open_raft_store
from store.errors import StoreError
from store.log.flusher import FlushMode
from store.message_store import MessageStore
from store.opening import OpenStore
from store.store_config import StoreConfig
from telemetry.metrics import Histogram

_CHECKED_AFTER_MS = 1_000
_CALLS_MAX = 400_000
"""Most calls and returns of functions in a turn of a broker's loop; on slow machines below the shortest lease."""


class StoreProcess(SimProcess, Machinery):
    """One process of a broker.

    Attributes:
        files: the node's disk.
        clients: send requests to this broker while it leads.
    """

    node: RaftNode
    log: WatchedLog
    transport: SimTransport
    _links: NameserverLinks | None = None

    def __init__(
        self,
        cluster: ClusterContext,
        replaced: Replacements,
        accounts: CommittedLog,
        name: str,
        number: int,
        files: StoreDisk,
        sockets: Sockets | None,
    ) -> None:
        super().__init__(cluster, name, number, files)
        self._accounts = accounts
        self._sockets = sockets
        Machinery.__init__(self, cluster.clock, replaced, files, cluster.clock_rates[name])
        self._follower = LogFollower(
            _broker_config(cluster, name, files.root), _host(name), self, Timers(self.loop.as_loop), Histogram([1])
        )
        files.begins()
        files.in_process = lambda: replaced.running(self)
        try:
            with replaced.running(self):
                self._open: OpenStore = self.loop.run_now(self._start())
        except BaseException:
            self.end()
            raise
        self.clients = Clients(cluster, accounts, self)
        if sockets is not None:
            self.loop.dial = lambda factory, port: sockets.dial(self, factory, port)
            self._run("opens", lambda: self.parts.passing.open(None, (), trusts_all=True))

    async def _start(self) -> OpenStore:
        config = _broker_config(self._cluster, self.name, self.files.root).store
        opened = await open_raft_store(
            replace(config, topic_attributes=self._follower.topic_attributes),
            _raft_config(self._cluster, self.name, self.files.root),
            self._follower,
        )
        opened.cleaner.holds.append(self._follower.needed_of_log)
        return opened

    @property
    def store(self) -> MessageStore:
        """The message store."""
        return self._open.store

    @property
    def parts(self) -> Any:
        """The broker's subsystems."""
        return self._follower.parts

    @property
    def raft_log(self) -> RaftLog:
        """The replicated log."""
        log = self._open.store.log
        assert isinstance(log, RaftLog)
        return log

    @property
    def begin_of_log(self) -> int:
        return self.raft_log.min_offset

    @property
    def end_of_log(self) -> int:
        return self.raft_log.max_offset

    @property
    def is_writable(self) -> bool:
        return super().is_writable and self.store.is_writable

    def announce_soon(self, changed: Collection[str] | None = None) -> None:
        """Register at the nameservers soon, if there are any."""
        if self._links is not None:
            self._links.announce_soon(changed)

    async def announce(self) -> None:
        """Register at the nameservers; return when those that answer know, or after a second."""
        if self._links is not None:
            await self._links.announce()

    def _register(self) -> None:
        config = _broker_config(self._cluster, self.name, self.files.root)
        parts, client = self.parts, RemotingClient()
        self._links = NameserverLinks(config, _address(self.name), parts.context.role, client, parts.admin.describe)
        self._links.start()

    # -- sockets

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended."""
        return self.is_dead

    @property
    def boot_id(self) -> int:
        """Number of the present boot of its machine."""
        return self.files.boot

    def has(self, what: str, event: Callable[[], None]) -> None:
        """Run an event in this process: now, after its pause, or never."""
        self._run(what, event)

    def accept(self) -> Connection:
        """Return the protocol for the server's end of a client's connection."""
        return Connection(self.parts.handler, Limits(), lambda _: None, lambda _connection, _reason: None)

    # -- events

    def perform(self, event: Callable[[], None]) -> None:
        """Run an event in this process.

        Raises:
            ProcessDiesError: it died meanwhile.
        """
        replaced = self._replaced
        before, replaced.current = replaced.current, self
        events._set_running_loop(self.loop.as_loop)
        try:
            if self._cluster.clock.now_us < self._accounts.counted_until_us:
                self._check_turn(event)
            else:
                event()
        finally:
            events._set_running_loop(None)
            replaced.current = before
            self.note_reached()
        if self.files.is_dead:
            raise ProcessDiesError
        if self.loop.errors:
            raise self.loop.errors.pop(0)

    def _check_turn(self, event: Callable[[], None]) -> None:
        """Run an event; after a huge request count the turn's function calls, since work takes no simulated time."""
        counter = count()
        profile = Profile(counter.__next__)  # the profiler asks for the time at each call and return
        profile.enable()
        try:
            event()
        finally:
            profile.disable()
        calls = next(counter)
        if calls > _CALLS_MAX:
            raise SafetyViolation("R26", f"{self.name} was held by {calls} calls and returns in one turn of its loop")

    def note_reached(self) -> None:
        """Note how far this disk may be: dispatched up to the confirm offset, or ahead by installed tables."""
        files, accounts, log = self.files, self._accounts, self.raft_log
        files.reached_offset = max(files.reached_offset, log.confirm_offset, self.parts.context.state.applied_offset)
        accounts.reached_offset = max(accounts.reached_offset, files.reached_offset)
        accounts.deleted_to = max(accounts.deleted_to, log.min_offset)
        if files.rotten:
            for _ in range(files.repaired()):
                self.mark("damaged entry repaired")

    def _run(self, what: str, event: Callable[[], None]) -> None:
        self._cluster.run(self, what, event)

    # -- what happens to it

    def start(self) -> None:
        """Do nothing: the log's timers run since it was opened."""

    def start_flushing(self) -> None:
        """Do nothing: the log's flusher has a timer of its own."""
        timers = Timers(self.loop.as_loop)
        if self._cluster.plan.nameservers:
            self._run("registers", self._register)
        timers.every(0.2, self._follower.saver.save_soon)
        for subsystem in self.parts.subsystems:
            for seconds, action in subsystem.periodic():
                timers.every(seconds, action)

    def end(self) -> None:
        super().end()
        if self._sockets is not None:
            self._sockets.ended(self)
        self.files.learn_durable_index()
        self.files.is_dead = True
        with self._replaced.running(self):
            self.loop.stop()

    def receive(self, peer: str, message: Any) -> None:
        try:
            found = self.transport.message_of(peer, message)
            if isinstance(found, CopyRequest | CopyResponse):
                self.transport.hand_over(peer, found)
                return
            self._cluster.observer.receives(self.name, peer, found)
            self.transport.hand_over(peer, found)
            self.note_heard(peer, found)
        except PeerError:
            self.mark("connection closed for a protocol error")
            self._cluster.network.break_link(self.name, peer)

    def lose(self, peer: str) -> None:
        self.note_lost(peer)
        self.transport.lost(peer)

    def join(self, peer: str) -> None:
        other = self._cluster.hello_of(peer)
        if other is not None:
            self.transport.joined(peer, other)

    def transfer(self, target: str | None) -> None:
        self.clients.transfer(target)

    def propose(self, count: int) -> None:
        self.clients.act(count)

    def trim(self) -> None:
        files = self.raft_log.sealed_files()
        count = self._cluster.jitter(1 + len(files))
        self.loop.create_task(self._clean(files[:count]))

    def trim_all(self) -> None:
        """Delete every sealed file that no member needs."""
        self.loop.create_task(self._clean(self.raft_log.sealed_files()[-1:]))

    def use_topic(self, name: str) -> None:
        self.clients.use_topic(name)

    def remove_topic(self, name: str) -> None:
        if self.parts.context.role.writable:
            self.parts.context.metadata.remove_topics([name])

    def has_topic(self, name: str) -> bool:
        return name in self.parts.context.state.topics

    def has_messages(self, topic: str) -> bool:
        queue = self.store.queues.find(topic, 0)
        return queue is not None and queue.max_offset > 0

    async def _clean(self, files: Sequence[tuple[Path, int]]) -> None:
        cleaner = self._open.cleaner
        try:
            await cleaner._trim(files)
            await cleaner.clean_queues()
        except (OSError, StoreError):
            self.mark("cleaning tried again later")

    def check_boot(self) -> None:
        self._check_queues()
        # before what an earlier process had dispatched, the tables on disk may be newer than their recorded offset
        is_level = self.store.dispatched_offset >= self.files.reached_offset
        if is_level and not self.raft.state.recovering:
            self._check("R19", self._fault_of_tables())

    def why_not_well(self) -> str:
        log = self.raft_log
        if self.store.dispatched_offset != log.confirm_offset or log.confirm_offset != log.max_offset:
            return f"has dispatched {self.store.dispatched_offset} of {log.confirm_offset}, placed {log.max_offset}"
        if held := self.parts.passing.pass_on.held:
            return f"holds {held} requests"
        if log.flushed_offset < log.max_offset:
            return f"has synced {log.flushed_offset} of {log.max_offset}"  # a slow flush may still run
        peers = [raft.state.terms.first_index for name, raft in self._cluster.rafts().items() if name != self.name]
        if damaged := [index for index in self.files.rotten if index >= min(peers, default=0)]:
            return f"has not repaired {damaged}, which others have"
        return ""

    def check_end(self) -> None:
        self._check_queues()
        self._check("R19", self._fault_of_tables())

    def _check_queues(self) -> None:
        if self.files.rotten:
            return  # damaged entries are not served before their repair
        removed_to = max(self.parts.context.state.applied_offset, self.files.reached_offset, self.files.removed_to)
        self._check("R20", self._accounts.fault_of_queues(self.store, removed_to))

    def _check(self, code: str, fault: str | None) -> None:
        if fault is not None:
            raise SafetyViolation(code, f"{self.name}: {fault}")

    def _fault_of_tables(self) -> str | None:
        state = self.parts.context.state
        end = max(self.store.dispatched_offset, state.applied_offset)
        return self._accounts.fault_of_tables(state.topics, state.offsets, end)

    # -- events of the log (`chaos.sim.stack.log.LogOwner`)

    def mark(self, what: str) -> None:
        self._cluster.mark(what)

    def opened(self, log: EntryLog) -> None:
        assert isinstance(log, WatchedLog)
        self.log, files = log, self.files
        if files.hard_state is not None and files.hard_state.recovering:
            files.forget_rotten_tail(log.last_index)
        chain = files.chain_at(log.first_index - 1)
        kept = max(files.first_index, log.first_index)
        owed = -1 if files.amnesiac or log.is_install_unfinished else files.durable_index
        old = {index: files.chain_at(index) for index in range(kept, min(files.last_index, owed) + 1)}
        if chain is None:
            chain = self._cluster.observer.committed_chain(log.first_index - 1)
        files.log = log
        files.reset(log.first_index, log.prev_term, chain)
        for index in range(log.first_index, log.last_index + 1):
            files.append(log.term_at(index), files.rotten.get(index) or entry_in(log, index))
            if index in old:
                self._expect_found(index, old[index] == files.chain_at(index))
            self._cluster.observer.appended(self.name, index)
        self._expect_found(log.last_index + 1, log.last_index >= owed)
        self._cluster.observer.is_lossy |= log.is_install_unfinished

    def _expect_found(self, index: int, is_found: bool) -> None:
        if not is_found:
            raise SafetyViolation("R21", f"{self.name} started without the entry {index}, which was durable")

    def grown(self, log: EntryLog, term: int) -> None:
        for index in range(self.files.last_index + 1, log.last_index + 1):
            self.files.append(term, entry_in(log, index))
            self._cluster.observer.appended(self.name, index)

    def truncates(self, last_index: int) -> None:
        self._cluster.observer.truncates(self.name, self.raft, last_index)
        self.files.truncates_after(last_index)

    def was_reset(self, first_index: int, prev_term: int) -> None:
        self.files.reset(first_index, prev_term, self._cluster.observer.committed_chain(first_index - 1))
        self.files.removed_to = self._accounts.reached_offset

    def node_made(self, node: RaftNode) -> None:
        self.node = node
        self._cluster.observer.booted(self.name, self.raft)

    def transport_made(self, transport: SimTransport) -> None:
        self.transport = transport

    def ticks(self) -> None:
        self.ticked_us = self._cluster.clock.now_us

    def says(self, what: str, detail: Any) -> None:
        match what:
            case "commits":
                self._cluster.observer.after(self.name, self.raft)
            case "role":
                self.note_role(detail)
                if detail.writable:
                    self._accounts.reign_count += 1
                    self.call_in(0, "check", self.check_boot)
            case "truncated":
                self.mark("follower truncated")
            case "reset":
                self.mark("log reset by install")
            case "failed":
                self.note_failed(detail)

    def transmit(self, peer_id: str, frame: SimFrame) -> None:
        self._cluster.network.send(self.name, peer_id, frame)

    def overflows(self, peer_id: str) -> None:
        self.mark("connection closed for what waits")
        self._cluster.network.break_link(self.name, peer_id)

    def meets(self, other: SimProcess) -> bool:
        assert isinstance(other, StoreProcess)
        return self.transport.takes(other.transport.hello) and other.transport.takes(self.transport.hello)


def _host(name: str) -> bytes:
    return encode_host(Host("127.0.0.1", FIRST_PORT + int(name[1:])))


def _address(name: str) -> str:
    return f"127.0.0.1:{FIRST_PORT + int(name[1:])}"


class _Config(BrokerConfig):
    """The configuration of brokers that delete files only when the simulation says so."""

    @property
    def file_reserved_ms(self) -> int:
        return 72 * 3_600_000


def _broker_config(cluster: ClusterContext, name: str, root: Path) -> BrokerConfig:
    config = _Config(
        cluster_name="sim",
        broker_name=GROUP_NAME,
        auto_create_topic=False,
        recall_enable=True,
        namesrv_addrs=nameserver_addresses(cluster.plan.nameservers),
        timer_log_file_size_bytes=1 << 20,
        store=StoreConfig(root=root, queue_file_size_bytes=800, checkpoint_interval_ms=cluster.plan.checkpoint_ms),
    )
    config.node_id, config.follower_id = name, int(name[1:]) + 1
    if cluster.plan.transactors:
        config.transaction_timeout_ms, config.transaction_check_interval_ms = _CHECKED_AFTER_MS, _CHECKED_AFTER_MS // 2
        config.transaction_check_max, config.transaction_op_interval_ms = 1000, 200
    return config


def _raft_config(cluster: ClusterContext, name: str, root: Path) -> RaftConfig:
    plan, peers = cluster.plan, cluster.peers_of[name]
    return RaftConfig(
        cluster="sim",
        group="sim",
        self_id=name,
        peers=tuple(PeerAddress(peer, "127.0.0.1", 20_000 + int(peer[1:])) for peer in peers),
        store_dir=root,
        client_address=_address(name),
        store_host=_host(name),
        flush_mode=FlushMode.SYNC if plan.durable_quorum else FlushMode.ASYNC,
        flush_interval_ms=50,
        data_file_size_bytes=4096,
        index_file_size_bytes=16 * INDEX_UNIT_SIZE,
        timing=RaftTiming(
            heartbeat_ms=plan.heartbeat_ms, election_min_ms=plan.election_min_ms, election_max_ms=plan.election_max_ms
        ),
        preferred_leader=next((peer for peer in plan.priorities if peer in peers), None),
        span_limit_bytes=1024 * max(1, plan.span_limit_bytes // 128),
        peer_window_bytes=1024 * max(1, plan.window_bytes // 128),
        disk_stall_ms=plan.election_max_ms,
        checkpoint_interval_ms=plan.election_min_ms,
    )
