"""The one place where a broker's log is chosen: everything else knows the seam only."""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from broker.config import BrokerConfig, LogMode
from broker.store_settings import commit_log_config, raft_config, store_config
from dledger.config import RaftConfig
from dledger.core.errors import RaftError
from dledger.log.raft_files import open_files
from dledger.node_status import NodeStatus
from dledger.raft_log import RaftLog
from ledgermq.remoting.refusal import Cause, Refusal
from store.directory.store_directory import StoreDirectory
from store.log.commit_log import CommitLog
from store.message_store import MessageStore
from store.opening import OpenStore, StoreConfig, open_classic_store, open_store
from store.replicated_log import ReplicatedLog

_RETRY_AFTER_MS = 200


class Follower(Protocol):
    """Who stands on the store, told from the start."""

    def prepare(self, store: MessageStore) -> None:
        """The store is recovered and about to start: add listeners that must see every record it dispatches."""

    def topic_attributes(self, topic: str) -> Mapping[str, str]:
        """Of a topic, as far as known; empty for others. Asked from the recovery of the store on, in its thread."""

    def on_flushed(self, flushed_offset: int, seconds: float) -> None:
        """One sync of the log is done."""

    def snapshot(self) -> bytes:
        """What the log's state records have built so far."""

    def restore(self, state: bytes) -> None:
        """Replace that by a leader's; durable on return."""


async def open_store_of(config: BrokerConfig, store_host: bytes, client_address: str, follower: Follower) -> OpenStore:
    """Recover and start the store that `config` asks for.

    Args:
        config: whose `mode` decides.
        store_host: encoded address that records carry.
        client_address: `host:port` that peers give to clients when this node leads.
        follower: prepared before the store starts.

    Raises:
        StoreError, DLedgerError, OSError: the directory is locked, not ours, or the disk or a port refuses.
    """
    settings = store_config(config, follower.topic_attributes)
    if config.mode is LogMode.RAFT:
        return await _open_raft_store(settings, raft_config(config, store_host, client_address), follower)
    return await open_classic_store(
        settings,
        commit_log_config(config, store_host),
        make_log=lambda log_config, loop: CommitLog(log_config, loop, on_flushed=follower.on_flushed),
        prepare=follower.prepare,
    )


async def _open_raft_store(settings: StoreConfig, raft_settings: RaftConfig, follower: Follower) -> OpenStore:
    """Recover the Raft log, put the store on it, then join the group."""
    directory = StoreDirectory(settings.root, "raft")
    raft_log: RaftLog | None = None
    try:
        files = await asyncio.to_thread(open_files, raft_settings)
        loop = asyncio.get_running_loop()
        raft_log = RaftLog(raft_settings, files, loop, machine=follower, on_flushed=follower.on_flushed)
        opened = await open_store(
            settings,
            directory,
            raft_log,
            flushed_offset=_flushed_offset(raft_log),
            batches=raft_log.batches(),
            prepare=follower.prepare,
        )
    except BaseException:
        if raft_log is not None:
            await raft_log.close()
        directory.close(clean=directory.was_clean)
        raise
    try:
        await raft_log.start()
    except BaseException:
        await opened.close()
        raise
    return opened


def group_status(replicated_log: ReplicatedLog) -> NodeStatus | None:
    """How a Raft group stands, as this member sees it; None where there is none."""
    return replicated_log.status() if isinstance(replicated_log, RaftLog) else None


def readiness(replicated_log: ReplicatedLog) -> tuple[bool, str] | None:
    """What the log itself says of its health; None for one that says nothing."""
    return replicated_log.readiness() if isinstance(replicated_log, RaftLog) else None


class Backlog(NamedTuple):
    """How far a log's disk is behind: bytes not in its files, bytes not durable, and free write buffers (or None)."""

    uncommitted_bytes: int
    unflushed_bytes: int
    free_buffer_count: int | None


def backlog(replicated_log: ReplicatedLog) -> Backlog:
    """The present one."""
    match replicated_log:
        case CommitLog() as log:
            committed = log.committed_offset
            return Backlog(log.max_offset - committed, committed - log.flushed_offset, log.free_buffer_count)
        case RaftLog() as log:
            return Backlog(0, log.max_offset - log.flushed_offset, None)
        case _:
            return Backlog(0, 0, None)


def term_starts(replicated_log: ReplicatedLog) -> list[tuple[int, int]]:
    """`(term, physical offset of its first entry)` of every term in the log; none where nothing is elected."""
    return replicated_log.term_starts() if isinstance(replicated_log, RaftLog) else []


def set_read_ahead(replicated_log: ReplicatedLog, reads_ahead: bool) -> None:
    """Have the system read ahead in the log's files, or not.

    Raises:
        Refusal: NOT_SUPPORTED, reading ahead in a Raft log: a store into a fresh page would wait for it.
    """
    if isinstance(replicated_log, CommitLog):
        replicated_log.set_reads_ahead(reads_ahead)
    elif reads_ahead:
        raise Refusal(Cause.NOT_SUPPORTED, "the system never reads ahead in the files of a Raft log")


def hand_over(replicated_log: ReplicatedLog, target: str | None) -> str:
    """Let another member lead: the one with id `target`, or whoever holds most. Returns who was chosen.

    Raises:
        Refusal: NOT_SUPPORTED for a log that has no other members, BUSY when that one cannot take over now.
    """
    if not isinstance(replicated_log, RaftLog):
        raise Refusal(Cause.NOT_SUPPORTED, "this broker stands alone: there is nobody to hand leadership to")
    try:
        return replicated_log.transfer(target)
    except RaftError as error:
        raise Refusal(Cause.BUSY, str(error), retry_after_ms=_RETRY_AFTER_MS) from error


def _flushed_offset(raft_log: RaftLog) -> Callable[[], int]:
    return lambda: min(raft_log.flushed_offset, raft_log.confirm_offset)
