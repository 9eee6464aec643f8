"""The one place where a broker's log is chosen: everything else knows `store.replicated_log` only."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from broker.identity import BrokerIdentity
from dledger.config import RaftConfig
from dledger.log.identity import directory_of
from dledger.log.raft_files import open_files
from dledger.raft_log import RaftLog
from ha.elected.controllers import Controllers
from ha.elected.files import IdentityFiles
from ha.elected.member import ElectedMember
from ha.master import Master
from ha.slave import Slave
from ledgermq.remoting.client import RemotingClient
from node.node_config import LogMode, NodeConfig
from node.store_settings import (
    commit_log_config,
    group_config,
    master_config,
    member_config,
    raft_config,
    store_config,
)
from store.directory.store_directory import StoreDirectory
from store.files.disk import require_first_file
from store.log.commit_log import CommitLog
from store.log.commit_log_config import CommitLogConfig
from store.message_store import MessageStore
from store.opening import OpenStore, open_classic_store, open_store
from store.queues.queue_table import QueueTable
from store.replicated_log import StateMachine
from store.store_config import StoreConfig

_SMALLER_FILES: Final = "a smaller mappedFileSizeCommitLog makes smaller files"


class StoreFollower(StateMachine, Protocol):
    """The user of a store, which is called from the store's opening on."""

    def load(self) -> object:
        """Read the tables on disk. Called when the directory is locked, before anything in it is changed."""

    def prepare(self, store: MessageStore) -> None:
        """Add the listeners that must see every record that the store dispatches.

        Called between its recovery and its start.
        """

    def topic_attributes(self, topic: str) -> Mapping[str, str]:
        """Return the attributes of a topic, as far as they are known; empty for others.

        Called from the recovery on, in its thread.
        """

    def needed_records(self, queues: QueueTable, log_end: int) -> Iterable[tuple[int, int]]:
        """Return physical offset and size of the records that `prepare` reads. Called in the thread of the recovery."""

    def on_flushed(self, flushed_offset: int, seconds: float) -> None:
        """Note that one sync of the log is done."""


@dataclass(frozen=True, slots=True)
class ChosenLog:
    """A store on the log that the configuration asks for.

    Attributes:
        store: open.
        ha_port: where this node listens to slaves; None where it does not.
        follow: tells a slave where its master listens to slaves, and where it serves clients, see `Slave.follow`; None
            at others.
        is_copying: whether this slave is connected to its master.
        tables_at: `host:port` of a master to be asked for tables, see `Slave`; empty where there is none.
        ask_controllers: makes an elected replica ask the controllers for their decision; None at others.
    """

    store: OpenStore
    ha_port: int | None = None
    follow: Callable[[str, str], bool] | None = None
    is_copying: Callable[[], bool] = bool
    tables_at: Callable[[], str] = str
    ask_controllers: Callable[[], None] | None = None


async def open_store_of(
    config: NodeConfig, store_host: bytes, client_address: str, follower: StoreFollower, client: RemotingClient
) -> ChosenLog:
    """Recover and start the store that `config` asks for.

    Args:
        config: whose `mode` decides.
        client: of which an elected replica asks the controllers; not owned.
        store_host: encoded address that records carry.
        client_address: `host:port` that peers give to clients when this node leads.
        follower: prepared before the store starts.

    Raises:
        StoreError, DLedgerError, OSError: the directory is locked, not ours, or the disk or a port refuses.
        SecretFileError: the file of the peers' secret cannot be used.
    """
    settings = store_config(config, follower.topic_attributes)
    if config.mode is LogMode.RAFT:
        raft_settings = raft_config(config, store_host, client_address)
        needed_bytes = raft_settings.data_file_size_bytes + raft_settings.index_file_size_bytes
        data = directory_of(raft_settings.store_dir, raft_settings.self_id) / "data"
        require_first_file(data, needed_bytes, _SMALLER_FILES)
        return ChosenLog(await open_raft_store(settings, raft_settings, follower))
    log_settings = commit_log_config(config, store_host)
    log_settings.require_first_file(_SMALLER_FILES)
    loop = asyncio.get_running_loop()
    if config.mode is LogMode.MASTER:
        master = Master(master_config(config, client_address), loop, follower)
        opened = await _open_classic_store(settings, log_settings, follower, master)
        await _started(opened, master.start())
        return ChosenLog(opened, ha_port=master.port)
    if config.mode is LogMode.SLAVE:
        slave = Slave(config.ha.slave_config(group_config(config, client_address)), loop, follower)
        opened = await _open_classic_store(settings, log_settings, follower, slave)
        slave.start()
        return ChosenLog(
            opened, follow=slave.follow, is_copying=lambda: slave.is_streaming, tables_at=lambda: slave.tables_at
        )
    if config.mode is LogMode.ELECTED:
        return await _open_elected_store(config, settings, log_settings, client_address, follower, client)
    return ChosenLog(await _open_classic_store(settings, log_settings, follower, None))


async def _open_elected_store(
    config: NodeConfig,
    settings: StoreConfig,
    log_settings: CommitLogConfig,
    client_address: str,
    follower: StoreFollower,
    client: RemotingClient,
) -> ChosenLog:
    """Open the store of an elected replica; one without a broker id first waits until a controller gives it one."""
    broker, identity = config.broker, BrokerIdentity(config.broker)
    settings.folders.root.mkdir(parents=True, exist_ok=True)
    controllers = Controllers(config.elected.controllers, client, identity.cluster, identity.name)
    replica = await controllers.enrol(IdentityFiles(settings.folders.root), client_address)
    broker.follower_id = replica.broker_id
    member_settings = member_config(config, client_address, replica.broker_id)
    member = ElectedMember(member_settings, asyncio.get_running_loop(), follower, controllers)
    opened = await _open_classic_store(settings, log_settings, follower, member)
    member.watch_room(opened.store.why_full)
    await _started(opened, member.start())
    return ChosenLog(
        opened,
        ha_port=member.master.port,
        follow=member.follow,
        tables_at=lambda: member.slave.tables_at,
        ask_controllers=member.ask_controllers,
    )


async def _open_classic_store(
    settings: StoreConfig,
    log_settings: CommitLogConfig,
    follower: StoreFollower,
    part: Master | Slave | ElectedMember | None,
) -> OpenStore:
    """Recover the classic log and the store on it."""

    def on_flushed(flushed_offset: int, seconds: float) -> None:
        follower.on_flushed(flushed_offset, seconds)
        if part is not None:
            part.on_flushed()

    def make_log(log_config: CommitLogConfig, loop: asyncio.AbstractEventLoop) -> CommitLog:
        log = CommitLog(log_config, loop, on_flushed=on_flushed, part=part)
        if part is not None:
            part.attach(log)
        return log

    return await open_classic_store(
        settings, log_settings, make_log=make_log, load=follower.load, prepare=follower.prepare
    )


async def _started(opened: OpenStore, start: Awaitable[None]) -> None:
    """Wait until what stands on an open store has started; close the store if that fails."""
    try:
        await start
    except BaseException:
        await opened.close()
        raise


async def open_raft_store(settings: StoreConfig, raft_settings: RaftConfig, follower: StoreFollower) -> OpenStore:
    """Recover the Raft log, put the store on it, then join the group."""
    directory = StoreDirectory(settings.folders.root, "raft")
    directory.check(follower.load)
    raft_log: RaftLog | None = None
    try:
        files = await asyncio.to_thread(open_files, raft_settings)
        loop = asyncio.get_running_loop()
        raft_log = RaftLog(raft_settings, files, loop, machine=follower, on_flushed=follower.on_flushed)
        opened = await open_store(
            settings,
            directory,
            raft_log,
            prepare=follower.prepare,
            needed=follower.needed_records,
        )
        raft_log.watch_room(opened.store.why_full)
    except BaseException as error:
        if raft_log is not None:
            await raft_log.close()
        directory.close_after(error)
        raise
    await _started(opened, raft_log.start())
    return opened
