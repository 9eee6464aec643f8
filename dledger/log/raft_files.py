"""Opens all files of a Raft node in a safe order, and finds out whether the node may have forgotten something.

lock -> identity (whose is it?) -> running marker (how did it end?) -> checkpoint -> entries and index -> marker set
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from dledger.config import RaftConfig
from dledger.core.messages import NO_TERM
from dledger.log.commit_checkpoint import CommitCheckpoint, load_checkpoint
from dledger.log.hard_state import read_hard_state, settle_hard_state
from dledger.log.identity import KnownPeers, MemberIdentity, PreviousStop, RunningMarker, make_directory, open_identity
from dledger.log.membership import note_members
from dledger.log.opening import OpenedLog, open_log
from dledger.log.start_file import save_start
from store.directory.lock_file import LockFile
from store.errors import StoreFormatError
from store.files.allocator import FileAllocator

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class RaftFiles:
    """The open files of one node. `doubt`: why it may have forgotten what it acknowledged; None when it has not."""

    identity: MemberIdentity
    known_peers: KnownPeers
    marker: RunningMarker
    checkpoint: CommitCheckpoint
    opened: OpenedLog
    allocator: FileAllocator
    doubt: str | None
    _lock: LockFile

    def close(self, *, is_clean: bool) -> None:
        """Close all files. `is_clean`: everything that was acknowledged is durable."""
        self.opened.data.close()
        self.opened.units.close()
        self.allocator.close()
        if is_clean:
            self.marker.clear()
        self._lock.release()


def open_files(config: RaftConfig, boot: str | None = None) -> RaftFiles:
    """Open the node's directory. Blocks on the disk.

    Raises:
        WrongDirectoryError: it belongs to another node, group or cluster, or has a newer format.
        StoreLockedError: another process has it open.
        StoreFormatError: files of an unknown format, or of a wrong length.
        DiskFullError, DiskFailedError: the disk is full or failed.
    """
    directory = make_directory(config.store_dir, config.self_id)
    lock = LockFile(directory)
    allocator = FileAllocator(wait_s=None)  # nothing runs on the loop yet
    try:
        identity, is_new = open_identity(directory, config.cluster, config.group, config.self_id)
        hard_state = read_hard_state(directory)  # a damaged one is refused before anything is changed
        marker = RunningMarker(directory, boot)
        checkpoint = _checkpoint(directory)
        opened = open_log(
            directory,
            data_file_size=config.data_file_size_bytes,
            index_file_size=config.index_file_size_bytes,
            allocator=allocator,
            checkpoint=checkpoint,
            intact=marker.previous_stop is not PreviousStop.MACHINE_CRASH,
            term_max=None if hard_state is None else hard_state.term,
        )
        is_foreign = is_new or checkpoint.is_written_by_java
        doubt = _doubt(marker, opened, is_foreign=is_foreign and opened.found.last_index >= opened.start.first_index)
        doubt = note_members(directory, [peer.node_id for peer in config.peers]) or doubt
        _report(opened, marker, doubt)
        last_term = opened.term_runs[-1].term if opened.term_runs else NO_TERM
        # before the files that prove the doubt are replaced
        settle_hard_state(directory, last_term=last_term, doubt=doubt)
        if opened.install_unfinished:
            save_start(directory, opened.start)
        marker.set(config.flush_mode)
        allocator.wait_s = config.timing.election_min_ms / 4000  # a longer wait on the loop would delay heartbeats
        return RaftFiles(identity, KnownPeers(directory), marker, checkpoint, opened, allocator, doubt, lock)
    except BaseException:
        allocator.close()
        lock.release()
        raise


def _checkpoint(directory: Path) -> CommitCheckpoint:
    try:
        return load_checkpoint(directory)
    except StoreFormatError as error:
        _log.warning("%s; the committed index will be learned from the leader", error)
        return CommitCheckpoint()


def _doubt(marker: RunningMarker, opened: OpenedLog, *, is_foreign: bool) -> str | None:
    if opened.install_unfinished:
        return "a leader's state was being installed and was not finished"
    lost = opened.found.lost
    if lost is not None:
        return f"entries {lost[0]} to {lost[1]}, which this node may have acknowledged, are not in the log"
    if marker.was_async and marker.previous_stop is PreviousStop.MACHINE_CRASH:
        return "the machine crashed while entries were acknowledged before they were flushed"
    if marker.was_async and marker.previous_stop is PreviousStop.DISK_FAILURE:
        return "the disk failed while entries were acknowledged before they were flushed"
    if is_foreign:
        return "the log was written by Java's DLedger, which acknowledges before it flushes"
    return None


def _report(opened: OpenedLog, marker: RunningMarker, doubt: str | None) -> None:
    found = opened.found
    _log.info(
        "opened entries %d to %d, which end at position %d; previous stop: %s",
        opened.start.first_index,
        found.last_index,
        found.end_position,
        marker.previous_stop.value,
    )
    if found.cut is not None:
        _log.warning("the unreadable end of the log was cut off: %s", found.cut)
    for damage in found.damages:
        _log.error("a damaged entry waits for a copy from a peer: %s", damage)
    if doubt is not None:
        _log.error(
            "this node neither votes nor counts towards a majority until a leader has brought it up to date: %s", doubt
        )
