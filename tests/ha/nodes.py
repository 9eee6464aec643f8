"""A master and its slaves in one process: their logs over real sockets, without stores on them."""

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ha.config import HaGroupConfig, MasterConfig, SlaveConfig
from ha.core.copies import CopyRules
from ha.master import Master
from ha.slave import Slave
from ledgermq.store_progress import Progress
from store.directory.checkpoint import StoreCheckpoint
from store.log.commit_log import CommitLog, CommitLogConfig
from store.log.flusher import FlushMode
from tests.store.support import HOST, Outcomes, eventually, make_draft

FILE_SIZE = 4096
SECRET = b"of-this-group" * 3
LOCAL = (ipaddress.ip_network("127.0.0.1"),)
GROUP = HaGroupConfig(
    cluster="c",
    name="b",
    broker_id=0,
    client_address="m:1",
    inside_address="m.inside:1",
    file_size=FILE_SIZE,
    secrets=(SECRET,),
    heartbeat_s=0.2,
)


class State:
    """The broker's state as a log sees it."""

    def __init__(self, state: bytes = b"state") -> None:
        self.state = state

    def snapshot(self) -> bytes:
        return self.state

    def restore(self, state: bytes) -> None:
        self.state = state


class Node:
    """A log with its part; `outcomes` of what was appended here."""

    def __init__(self, log: CommitLog, part: Master | Slave, state: State) -> None:
        self.log, self.part, self.state = log, part, state
        self.outcomes = Outcomes()

    def put(self, *sizes: int) -> int:
        """Append records with bodies of these sizes; the log's end."""
        self.log.append([make_draft(bytes([size % 251]) * size) for size in sizes], self.outcomes)
        return self.log.max_offset

    def data(self) -> bytes:
        """The log's bytes."""
        return b"".join(bytes(file.view[: file.write_position]) for file in self.log.local.queue.files)


def make_log(directory: Path, part: Master | Slave, flush_mode: FlushMode, checkpoint: StoreCheckpoint) -> CommitLog:
    config = CommitLogConfig(
        directory=directory,
        store_host=HOST,
        file_size_bytes=FILE_SIZE,
        flush_mode=flush_mode,
        flush_interval_ms=3_600_000,
    )
    log = CommitLog(
        config,
        asyncio.get_running_loop(),
        clock=lambda: 1_700_000_000_000,
        part=part,
        on_flushed=lambda _offset, _seconds: part.on_flushed(),
    )
    part.attach(log)
    log.recover(checkpoint, clean=True)
    log.start()
    return log


@contextlib.asynccontextmanager
async def master(
    directory: Path, rules: CopyRules | None = None, flush_mode: FlushMode = FlushMode.ASYNC, **changes: Any
) -> AsyncIterator[Node]:
    """A master that listens; `changes` to its `MasterConfig` or `HaGroupConfig`."""
    of_group: dict[str, Any] = {key: changes.pop(key) for key in list(changes) if hasattr(GROUP, key)}
    group = replace(GROUP, **of_group)
    rules = rules or CopyRules()
    config = MasterConfig(
        group=group, listen_host="127.0.0.1", listen_port=changes.pop("port", 0), rules=rules, limit_s=0.5
    )
    state = State()
    part = Master(replace(config, **changes), asyncio.get_running_loop(), state)
    log = make_log(directory / "master", part, flush_mode, StoreCheckpoint())
    await part.start()
    try:
        yield Node(log, part, state)
    finally:
        await log.close()


@contextlib.asynccontextmanager
async def slave(
    directory: Path,
    port: int,
    folder: str = "slave",
    flush_mode: FlushMode = FlushMode.ASYNC,
    *,
    confirmed: int | None = None,
    speaks_plainly: bool = False,
    **changes: Any,
) -> AsyncIterator[Node]:
    """A slave that dials the master's `port`; `confirmed` is what its last run knew to be confirmed."""
    of_group: dict[str, Any] = {"broker_id": 1, "client_address": "s:1"} | changes
    group = replace(GROUP, **of_group)
    config = SlaveConfig(group=group, master_address=f"127.0.0.1:{port}", speaks_plainly=speaks_plainly)
    state = State(b"")
    part = Slave(config, asyncio.get_running_loop(), state)
    progress = None if confirmed is None else Progress(0, confirmed, 0)
    log = make_log(directory / folder, part, flush_mode, StoreCheckpoint(progress=progress))
    part.start()
    try:
        yield Node(log, part, state)
    finally:
        await log.close()


async def copied(first: Node, second: Node) -> None:
    """Wait until the second has all that the first has, and that it is confirmed on both."""
    end = first.log.max_offset
    await eventually(lambda: second.log.confirm_offset == first.log.confirm_offset == end == second.log.max_offset)
    assert second.data() == first.data()


async def in_sync(node: Node, count: int = 1) -> None:
    """Wait until so many slaves of a master are in sync."""
    await eventually(lambda: sum(replica.in_sync for replica in node.log.replicas()) == count)
