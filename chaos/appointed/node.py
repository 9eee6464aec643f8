"""One broker's log, with the master's or a slave's part. All but disk, sockets and clock is the product's code.

clients --append--> CommitLog --part--> ha.Master ~~sockets~~> ha.Slave --part--> CommitLog
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from chaos.sim.process import ProcessDiesError
from chaos.sim.stack.disk import StoreDisk
from chaos.sim.stack.machinery import Machinery
from chaos.sim.stack.sockets import FIRST_PORT
from ha.config import HaGroupConfig, MasterConfig, SlaveConfig
from ha.master import Master
from ha.slave import Slave
from ledgermq.message.draft import RecordDraft
from ledgermq.message.hosts import Host, encode_host
from ledgermq.store_progress import Progress
from store.directory.checkpoint import StoreCheckpoint
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue
from store.log.commit_log import CommitLog, CommitLogConfig
from store.log.flusher import FlushMode
from store.replicated_log import AppendReceipt, Done

FILE_BYTES: Final = 4096
LOG: Final = "commitlog"
_HOST: Final = encode_host(Host("127.0.0.1", 1))
_TOPIC: Final = b"T"
_CHECKPOINT_S: Final = 0.3


class LogDisk(StoreDisk):
    """The disk of a broker with a classic log; it outlives the broker's processes.

    Attributes:
        number: counts the disks of this node, from 0.
        queue: the log's files, as the running process has them open.
        dispatched: dispatched offset in the last checkpoint, which a power cut does not take.
    """

    number = 0
    queue: MappedFileQueue | None = None
    dispatched: int | None = None

    def newest_files(self) -> Sequence[MappedFile]:
        return [] if self.queue is None else self.queue.files[-3:]

    def process_died(self) -> None:
        super().process_died()
        self.queue = None

    def bytes_at(self, offset: int, size: int) -> bytes:
        """Return the bytes at `offset` in the log's files; fewer than `size`, or none, where they end before."""
        path = self.root / LOG / f"{offset - offset % FILE_BYTES:020d}"
        try:
            with path.open("rb") as file:
                file.seek(offset % FILE_BYTES)
                return file.read(size)
        except FileNotFoundError:
            return b""

    def durable_at(self, offset: int, size: int) -> bytes:
        """Return those of these bytes that survive any power cut."""
        content = self.shadow.durable_file(f"{LOG}/{offset - offset % FILE_BYTES:020d}") or b""
        return content[offset % FILE_BYTES :][:size]


class _State:
    """A stand-in for the broker's tables, which a master sends to slaves."""

    def snapshot(self) -> bytes:
        return b"tables"

    def restore(self, state: bytes) -> None:
        assert state == b"tables"


class AppointedNode(Machinery):
    """One process of a broker, from its start to its end.

    Args:
        world: where it lives.
        master: name of the appointed master; if it is this node's own, the node is the master.

    Raises:
        ProcessDiesError: it died before it was up.
    """

    def __init__(self, world: Any, name: str, disk: LogDisk, master: str) -> None:
        self.name = name
        self.master = master
        self.paused_until_us = 0
        self.backlog: list[Callable[[], None]] = []
        self.checked = 0  # end of the confirmed bytes that the judge has compared
        self._world = world
        self._disk = disk
        self._rate = world.rates[name]
        super().__init__(world.clock, world.replaced, disk, self._rate)
        self.loop.dial = lambda factory, port: world.sockets.dial(self, factory, port)
        disk.begins()
        disk.in_process = lambda: world.replaced.running(self)
        try:
            with world.replaced.running(self):
                self.loop.run_now(self._start())
        except BaseException:
            self.end()
            raise

    async def _start(self) -> None:
        plan, loop = self._world.plan, self.loop.as_loop
        self.part: Master | Slave
        if self.is_master:
            self.part = Master(_master_config(plan, self.name), loop, _State())
        else:
            address = f"127.0.0.1:{FIRST_PORT + int(self.master[1:])}"
            group = _group(plan, self.name, 1 + int(self.name[1:]))
            self.part = Slave(SlaveConfig(group=group, master_address=address), loop, _State())
        config = CommitLogConfig(
            directory=self._disk.root / LOG,
            store_host=_HOST,
            file_size_bytes=FILE_BYTES,
            flush_mode=FlushMode.SYNC if plan.syncs else FlushMode.ASYNC,
            flush_interval_ms=50,
            flush_least_pages=1,
        )
        self.log = log = CommitLog(config, loop, part=self.part, on_flushed=lambda *_: self.part.on_flushed())
        self.part.attach(log)
        dispatched = self._disk.dispatched
        progress = None if dispatched is None else Progress(0, dispatched, 0)
        log.recover(StoreCheckpoint(progress=progress), clean=False)
        self._disk.queue = log.local.queue
        log.start()
        if isinstance(self.part, Master):
            await self.part.start()
        else:
            self.part.start()
        self._checkpoint()

    @property
    def is_master(self) -> bool:
        """Whether this node is the appointed master."""
        return self.master == self.name

    @property
    def diverged(self) -> bool:
        """Whether this slave reports that its log is not a prefix of the master's."""
        return isinstance(self.part, Slave) and self.part._has_diverged

    def _checkpoint(self) -> None:
        """Store the dispatched offset, which is confirmed and durable, as a store's checkpoint does."""
        self._disk.dispatched = min(self.log.confirm_offset, self.log.flushed_offset)
        self.loop.call_later(_CHECKPOINT_S, self._checkpoint)

    def put(self, bodies: Sequence[bytes], done: Done) -> list[RecordDraft]:
        """Append a batch, as the broker does for its clients; raises `Refusal`."""
        drafts = [_draft(body) for body in bodies]
        self.log.append(drafts, done)
        return drafts

    # -- what the simulation asks of a process

    def now_us(self) -> int:
        return int(self._world.clock.now_us * self._rate)

    def _run(self, what: str, event: Callable[[], None]) -> None:
        self._world.run(self, what, event)

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended."""
        return self.loop.is_stopped

    @property
    def boot_id(self) -> int:
        """Number of the present boot of its machine."""
        return self._disk.boot

    def has(self, what: str, event: Callable[[], None]) -> None:
        """Run an event in this process: now, after its pause, or never if it has ended."""
        self._run(what, event)

    def accept(self) -> Any:
        """Return the protocol for the master's end of a slave's connection."""
        assert self.loop.accept is not None, f"{self.name} does not listen"
        return self.loop.accept()

    def perform(self, event: Callable[[], None]) -> None:
        """Run an event in this process.

        Raises:
            ProcessDiesError: it died meanwhile.
        """
        with self._world.replaced.running(self), self.loop.running():
            event()
        if self._disk.is_dead:
            raise ProcessDiesError
        if self.loop.errors:
            raise self.loop.errors.pop(0)

    def end(self) -> None:
        """End the process: close its connections and stop its loop."""
        self._world.sockets.ended(self)
        self._disk.is_dead = True
        self.backlog.clear()
        with self._world.replaced.running(self):
            self.loop.stop()


def promised(outcome: object) -> AppendReceipt | None:
    """Return the receipt if the outcome is SEND_OK, else None."""
    return outcome if isinstance(outcome, AppendReceipt) and outcome.shortfall is None else None


def _draft(body: bytes) -> RecordDraft:
    draft = RecordDraft().fill(_TOPIC, 0, body, born=(1_700_000_000_000, _HOST))
    draft.queue_offset = 0
    return draft


def _group(plan: Any, name: str, broker_id: int) -> HaGroupConfig:
    return HaGroupConfig(
        cluster="sim",
        name="sim",
        broker_id=broker_id,
        client_address=f"127.0.0.1:{FIRST_PORT + int(name[1:])}",
        file_size=FILE_BYTES,
        heartbeat_s=plan.heartbeat_s,
        idle_limit_s=4 * plan.heartbeat_s,
    )


def _master_config(plan: Any, name: str) -> MasterConfig:
    return MasterConfig(
        group=_group(plan, name, 0),
        listen_host="127.0.0.1",
        listen_port=FIRST_PORT + int(name[1:]),
        rules=plan.rules,
        limit_s=plan.limit_s,
        batch_bytes=plan.batch_bytes,
        window_bytes=plan.window_bytes,
    )
