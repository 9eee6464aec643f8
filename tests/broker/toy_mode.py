"""A mode of replication of a few lines: a master and a slave in memory, a message is acknowledged when both have it."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from ledgermq.message.draft import RecordDraft, singles_of
from ledgermq.message.record import check_record
from ledgermq.remoting.refusal import Cause, LeaderHint, Refusal
from store.errors import RecordUnavailableError
from store.files.log_span import LogSpan, Read
from store.recovery.batch_fields import RecordSource
from store.replicated_log import (
    AppendReceipt,
    DiskBacklog,
    Done,
    Generation,
    LogListener,
    LogRole,
    LogState,
    Readiness,
    Replica,
)
from telemetry.families import Family


class ToyLog:
    """A master while it has `peer` as its copy; else that one's slave."""

    def __init__(self, directory: Path, address: str, host: bytes) -> None:
        self.directory, self.address, self.host = directory, address, host
        self.min_offset = self.max_offset = self.confirm_offset = 0
        self.peer: ToyLog | None = None
        self.is_linked, self.is_closed = True, False
        self.epochs: list[Generation] = []
        self.data = memoryview(bytearray(1 << 20))
        self.listeners: list[LogListener] = []
        self.waiting: list[tuple[int, Done]] = []
        self.master: ToyLog | None = None
        self.loop = asyncio.get_running_loop()

    @property
    def state(self) -> LogState:
        epoch = self.epochs[-1].number if self.epochs else 0
        if self.peer is not None and not self.is_closed:
            return LogState(LogRole.MASTER, epoch, LeaderHint(self.address, self.address), None)
        hint = LeaderHint(self.master.address, self.master.address) if self.master else None
        return LogState(LogRole.SLAVE, epoch, hint, Refusal(Cause.NOT_LEADER, "a slave", leader_hint=hint))

    @property
    def flushed_offset(self) -> int:
        return self.confirm_offset

    def add_listener(self, listener: LogListener) -> None:
        self.listeners.append(listener)

    def append(self, drafts: Sequence[RecordDraft], done: Done) -> None:
        if (refusal := self.state.refusal) is not None:
            raise refusal
        for draft in singles_of(drafts):
            draft.physical_offset, draft.store_timestamp = self.max_offset, 1_700_000_000_000
            end = self.max_offset + draft.size
            self.data[self.max_offset : end] = b"".join(draft.pieces(self.host))
            self.max_offset = end
        self.waiting.append((self.max_offset, done))
        self.loop.call_soon(self.send)

    def send(self) -> None:
        """What the copy lacks goes there; what both have is confirmed, here first."""
        if (peer := self.peer) is None or not self.is_linked:
            return
        peer.data[peer.max_offset : self.max_offset] = self.data[peer.max_offset : self.max_offset]
        peer.max_offset = self.max_offset
        for log in (self, peer):
            log.confirm_offset = self.max_offset
            for listener in log.listeners:
                listener.on_confirmed(self.max_offset)
        while self.waiting:
            self.waiting.pop(0)[1](AppendReceipt(self.epochs[-1].number, 2, 2))

    def lead(self, peer: "ToyLog") -> None:
        """Take over from `peer`, which drops what only it has, and then copies this log."""
        peer.peer, peer.master, self.peer, self.master = None, self, peer, None
        for _, done in peer.waiting:
            done(Refusal(Cause.LEADER_CHANGED, "another master"))
        peer.waiting.clear()
        self.epochs.append(Generation(len(self.epochs) + 1, self.max_offset))
        peer.epochs = [*self.epochs]
        for listener in peer.listeners:
            listener.on_role_change(peer.state)
        if peer.max_offset > self.max_offset:
            peer.max_offset = self.max_offset
            for listener in peer.listeners:
                listener.on_truncated(self.max_offset)
        for listener in self.listeners:
            listener.on_role_change(self.state)

    def transfer(self, target: str | None) -> str:
        if self.peer is None or self.peer.is_closed:
            raise Refusal(Cause.BUSY, "there is no other node")
        self.loop.call_soon(self.peer.lead, self)
        return self.peer.address

    def read(self, physical_offset: int, size_bytes: int) -> memoryview:
        if not 0 <= physical_offset <= self.confirm_offset - size_bytes:
            raise RecordUnavailableError(physical_offset, size_bytes, 0, self.confirm_offset)
        return self.data[physical_offset : physical_offset + size_bytes].toreadonly()

    def reader(self) -> Read:
        return self.read

    def span(self, physical_offset: int) -> LogSpan | None:
        return None

    def walk(self, start_offset: int, end_offset: int) -> Iterator[tuple[int, memoryview]]:
        while start_offset < end_offset:
            size = check_record(self.data, start_offset, end_offset, check_crc=False)
            yield start_offset, self.data[start_offset : start_offset + size]
            start_offset += size

    def batches(self) -> RecordSource | None:
        return None

    def sealed_files(self) -> Sequence[tuple[Path, int]]:
        return ()

    def trim(self, before: int) -> int:
        return 0

    def set_reads_ahead(self, reads_ahead: bool) -> None: ...

    def backlog(self) -> DiskBacklog:
        return DiskBacklog(0, self.max_offset - self.confirm_offset, None)

    def readiness(self) -> Readiness:
        return Readiness(True, "in memory")

    def generations(self) -> Sequence[Generation]:
        return self.epochs

    def replicas(self) -> Sequence[Replica]:
        return [Replica(peer.address, peer.max_offset, peer.max_offset, True)] if (peer := self.peer) else ()

    def metrics(self) -> Iterator[Family]:
        yield Family("toy_copies", "gauge", "Copies.", [((), 2 if self.peer else 1)])

    async def close(self) -> None:
        self.is_closed = True
