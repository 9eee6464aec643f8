"""Fixtures of the Raft room: golden directories put back on disk, logs opened on a directory."""

import asyncio
import importlib.util
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pytest
import uvloop

from dledger.config import RaftConfig, parse_peers
from dledger.core.settings import RaftTiming
from dledger.log.commit_checkpoint import load_checkpoint
from dledger.log.entry_log import EntryLog
from dledger.log.opening import OpenedLog, open_log
from dledger.log.raft_files import open_files
from dledger.raft_log import RaftLog
from ledgermq.message.draft import RecordDraft
from ledgermq.message.record import decode_record
from ledgermq.remoting.refusal import Refusal
from store.replicated_log import AppendReceipt, LogState
from tests.limits import WAIT_S
from tests.ports import free_ports


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that nodes run on."""
    return {"uvloop": uvloop.new_event_loop}


GOLDEN = Path(__file__).parents[1] / "golden"


def _load_golden_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden", GOLDEN / "golden.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class GoldenLog:
    """One directory that Java wrote, put back on disk, with what its manifests say."""

    directory: Path
    data_file_size: int
    index_file_size: int
    records: bool
    entries: list[dict[str, Any]]
    ledger: dict[str, Any]


@pytest.fixture
def golden_log(tmp_path: Path) -> Callable[..., GoldenLog]:
    """`golden_log("dead/n1", ops)`: restore the tree, damage it, say where its Raft directory is."""
    golden = _load_golden_module()

    def restore(base: str, ops: Sequence[dict[str, Any]] = ()) -> GoldenLog:
        tree = GOLDEN / "store-dledger" / base
        golden.restore_tree(tree, tmp_path)
        golden.apply_ops(tmp_path, ops)
        plain = base.startswith("plain")
        entries = [json.loads(line) for line in (tree / "entries.jsonl").read_text().splitlines()]
        return GoldenLog(
            directory=tmp_path if plain else tmp_path / f"dledger-{base.split('/')[1]}",
            data_file_size=8192 if plain else 32768,
            index_file_size=640 if plain else 167772160,
            records=not plain,
            entries=entries,
            ledger=json.loads((tree / "ledger.json").read_text()),
        )

    return restore


@pytest.fixture
def restore_golden() -> Callable[[str, Path], None]:
    """`restore_golden("dead/n1", directory)`: a store that Java wrote, put back on disk."""
    golden = _load_golden_module()
    return lambda base, target: golden.restore_tree(GOLDEN / "store-dledger" / base, target)


def open_golden(log: GoldenLog, *, intact: bool = True) -> OpenedLog:
    return open_log(
        log.directory,
        data_file_size=log.data_file_size,
        index_file_size=log.index_file_size,
        allocator=None,
        checkpoint=load_checkpoint(log.directory),
        intact=intact,
        records=log.records,
    )


@pytest.fixture
def open_java_log() -> Callable[..., OpenedLog]:
    return open_golden


def make_draft(body: bytes, *, topic: bytes = b"Topic", queue_offset: int = 0, sys_flag: int = 0) -> RecordDraft:
    """A draft of a plain message with IPv4 hosts."""
    born = 1_700_000_000_000, bytes([127, 0, 0, 1, 0, 0, 0, 9])
    draft = RecordDraft().fill(topic, 0, body, born=born, sys_flag=sys_flag)
    draft.queue_offset = queue_offset
    return draft


@pytest.fixture
def draft() -> Callable[..., RecordDraft]:
    return make_draft


class ManualFlusher:
    """Keeps flush requests until the test completes them."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, Callable[[int], None]]] = []

    def request(self, offset: int, done: Callable[[int], None]) -> None:
        self.waiting.append((offset, done))

    def finish(self) -> None:
        waiting, self.waiting = self.waiting, []
        flushed = max((offset for offset, _ in waiting), default=0)
        for _, done in waiting:
            done(flushed)


STORE_HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])


class LogOpener(Protocol):
    def __call__(
        self, name: str = ..., *, file_size: int = ..., intact: bool = ..., term_max: int | None = ...
    ) -> EntryLog: ...


def open_entry_log(
    directory: Path, *, file_size: int = 4096, intact: bool = True, term_max: int | None = None
) -> EntryLog:
    """The entry log of a directory, with small files and a flusher that the test drives."""
    opened = open_log(
        directory,
        data_file_size=file_size,
        index_file_size=320,
        allocator=None,
        checkpoint=load_checkpoint(directory),
        intact=intact,
        term_max=term_max,
    )
    log = EntryLog(
        directory, opened, store_host=STORE_HOST, term_start=lambda term: make_draft(b"term %d" % term, sys_flag=0xC)
    )
    log.attach(ManualFlusher())
    return log


@pytest.fixture
def entry_log(tmp_path: Path) -> LogOpener:
    """`entry_log("a")`: open the log in a directory of that name, as often as wanted."""

    def opener(
        name: str = "log", *, file_size: int = 4096, intact: bool = True, term_max: int | None = None
    ) -> EntryLog:
        return open_entry_log(tmp_path / name, file_size=file_size, intact=intact, term_max=term_max)

    return opener


class MemoryMachine:
    """A state machine of one value."""

    def __init__(self) -> None:
        self.state = b""

    def snapshot(self) -> bytes:
        return self.state

    def restore(self, state: bytes) -> None:
        self.state = state


class Recorder:
    """A log listener that records its calls."""

    def __init__(self) -> None:
        self.confirmed: list[int] = []
        self.states: list[LogState] = []
        self.truncated: list[int] = []

    def on_confirmed(self, confirm_offset: int) -> None:
        self.confirmed.append(confirm_offset)

    def on_role_change(self, state: LogState) -> None:
        self.states.append(state)

    def on_truncated(self, max_offset: int) -> None:
        self.truncated.append(max_offset)


async def until(condition: Callable[[], Any], what: str, limit_s: float = WAIT_S) -> None:
    """Wait for a condition, with a limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        await asyncio.sleep(0.005)


class RaftCluster:
    """Raft logs of one group in this process, over loopback."""

    def __init__(self, root: Path, size: int, **settings: Any) -> None:
        ports = free_ports(size)
        self.root = root
        self.peers = ";".join(f"n{i}-127.0.0.1:{port}" for i, port in enumerate(ports))
        self.settings = settings
        self.logs: dict[str, RaftLog] = {}
        self.machines: dict[str, MemoryMachine] = {}
        self.recorders: dict[str, Recorder] = {}

    def config(self, node_id: str, **changes: Any) -> RaftConfig:
        values: dict[str, Any] = {
            "cluster": "C", "group": "G", "self_id": node_id, "peers": parse_peers(self.peers),
            "store_dir": self.root / node_id, "client_address": f"{node_id}.clients:10911", "store_host": STORE_HOST,
            "inside_address": f"{node_id}.inside:10911",
            "data_file_size_bytes": 16384, "index_file_size_bytes": 3200,
            "timing": RaftTiming(heartbeat_ms=50, election_min_ms=400, election_max_ms=800),
            "checkpoint_interval_ms": 100,
        }  # fmt: skip
        return RaftConfig(**{**values, **self.settings, **changes})

    async def start(self, *node_ids: str, boot: str | None = None, **changes: Any) -> None:
        for node_id in node_ids or [peer.node_id for peer in parse_peers(self.peers)]:
            config = self.config(node_id, **changes)
            files = open_files(config, boot)
            machine, recorder = MemoryMachine(), Recorder()
            log = RaftLog(config, files, asyncio.get_running_loop(), machine=machine)
            log.add_listener(recorder)
            self.logs[node_id], self.machines[node_id], self.recorders[node_id] = log, machine, recorder
            await log.start()

    async def stop(self, *node_ids: str) -> None:
        for node_id in node_ids or list(self.logs):
            await self.logs.pop(node_id).close()

    async def kill(self, node_id: str) -> None:
        """As SIGKILL: connections close, nothing more is written, no marker is cleared."""
        log = self.logs.pop(node_id)
        log._timers.stop()
        transport = log._transport
        transport.is_closing = True
        assert transport._server is not None
        transport._server.close()
        for link in transport.links.values():
            link._is_closing = True
            assert link._task is not None
            link._task.cancel()
        for _ in range(3):
            for connection in list(transport.live):
                connection.abort()
            await asyncio.sleep(0.002)
        log._flusher.abandon()
        log._hard_states.close()
        log._files.allocator._executor.shutdown()
        log._files._lock.release()

    def deafen(self, *node_ids: str) -> None:
        """Drop everything that arrives at these nodes, while their connections stand: the leader gets no answers."""
        for node_id in node_ids:
            transport: Any = self.logs[node_id]._transport
            transport.deliver = lambda peer_id, code, body: None

    def leader(self) -> str | None:
        """Return the id of the node whose log is writable; None if there is none."""
        return next((node_id for node_id, log in self.logs.items() if log.state.writable), None)

    async def elected(self) -> str:
        await until(self.leader, "a writable leader")
        leader = self.leader()
        assert leader is not None
        return leader

    async def sound(self, *node_ids: str) -> None:
        """No log (of these) is recovering any more. All of a new group are: until then, one that dies may be needed."""
        names = node_ids or tuple(self.logs)
        await until(
            lambda: not any(self.logs[name].status().soft.recovering for name in names), f"sound: {', '.join(names)}"
        )

    async def append(self, node_id: str, *bodies: bytes) -> AppendReceipt | Refusal:
        """Append one batch; return the argument of its `done`."""
        answer: asyncio.Future[AppendReceipt | Refusal] = asyncio.get_running_loop().create_future()
        self.logs[node_id].append([make_draft(body) for body in bodies], answer.set_result)
        assert not answer.done(), "done was called inside append"
        return await asyncio.wait_for(answer, WAIT_S)

    def bodies(self, node_id: str) -> list[bytes]:
        """Bodies of the confirmed messages, in the log's order."""
        log = self.logs[node_id]
        walked = log.walk(log.min_offset, log.confirm_offset)
        records = [decode_record(bytes(record)) for _, record in walked]
        return [record.body for record in records if record.topic == "Topic"]

    def data(self, node_id: str) -> dict[str, bytes]:
        """The data files up to the confirm offset."""
        confirm = self.logs[node_id].confirm_offset
        folder = self.root / node_id / f"dledger-{node_id}" / "data"
        files = {path.name: path.read_bytes()[: max(confirm - int(path.name), 0)] for path in folder.iterdir()}
        return {name: data for name, data in files.items() if data}

    async def caught_up(self, *node_ids: str) -> None:
        """Wait until all (of these) logs have confirmed everything that the leader has."""
        leader = await self.elected()
        names = node_ids or tuple(self.logs)
        await until(
            lambda: len({self.logs[name].confirm_offset for name in (*names, leader)}) == 1,
            f"equal confirm offsets of {', '.join(names)}",
        )


@pytest.fixture
async def raft_cluster(tmp_path: Path) -> AsyncIterator[Callable[..., RaftCluster]]:
    """`raft_cluster(3)`: a group whose nodes are started by the test; what still runs is stopped at the end."""
    clusters: list[RaftCluster] = []

    def make(size: int = 3, **settings: Any) -> RaftCluster:
        clusters.append(RaftCluster(tmp_path, size, **settings))
        return clusters[-1]

    yield make
    for cluster in clusters:
        await cluster.stop()
