"""Decides which units of the consume queues can be trusted after a stop.

a clean stop, or a kill    the bounds of all queues are as saved (`queue_ends`); hardly any file is looked at
our checkpoint             units of records below the trusted offset, if the sum of the max offsets agrees
neither (RocketMQ's store, the leading valid units of each queue; the last part of the log is dispatched over them
or no checkpoint)
"""

import logging
from pathlib import Path

from ledgermq.store_progress import Progress
from store.directory.boot import boot_id
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_ends import QueueEnds, merge_ends, read_ends
from store.queues.queue_table import QueueTable
from store.replicated_log import LogRole, ReplicatedLog

log = logging.getLogger(__name__)


def believed_ends(root: Path, queues: QueueTable, progress: Progress | None, log_: ReplicatedLog) -> QueueEnds | None:
    """Return the bounds of the queues as saved last; None if each queue has to be looked at.

    Without `progress` another program may have changed the queues. A master or slave may cut its log below what was
    dispatched before the process ended, and would leave units of the records behind the cut.
    """
    if progress is None or queues.has_kinds:
        return None
    parts = read_ends(root)
    if parts and log_.state.role is LogRole.ALONE and parts[-1].dispatched_offset > log_.confirm_offset:
        return None  # not by a kill: the end of the log was lost, or the directory is a copy
    while parts and parts[-1].dispatched_offset > log_.confirm_offset:  # a Raft node knows less of what is committed
        parts.pop()
    ends = merge_ends(parts)
    if ends is None or ends.log_min_offset != log_.min_offset:
        return None
    if ends.boot:
        return ends if ends.boot == boot_id() and not may_be_cut(log_) else None
    agrees = (
        ends.dispatched_offset == progress.dispatched_offset <= progress.flushed_offset
        and ends.unit_count == progress.unit_count
    )
    return ends if agrees else None


def may_be_cut(log_: ReplicatedLog) -> bool:
    """Return whether the log may be cut below what is dispatched, when it meets that of another node."""
    return log_.state.role in {LogRole.MASTER, LogRole.SLAVE}


def cut_to_trusted(
    log_: ReplicatedLog, queues: QueueTable, progress: Progress | None, end: int, walk_bytes: int
) -> int:
    """Cut every queue to the units that can be trusted; return the physical offset at which dispatching starts.

    A record of the log begins there. Without a checkpoint it lies about `walk_bytes` before `end`, the log's confirm
    offset.
    """
    min_offset = log_.min_offset
    if progress is not None and progress.dispatched_offset >= min_offset:
        for queue in queues:
            queue.recover(progress.dispatched_offset, scan=False)
        count = sum(queue.max_offset for queue in queues)
        # the log above the flushed offset may have been cut and written anew, so units of records there may be wrong
        trusted = max(min(progress.dispatched_offset, progress.flushed_offset, end), min_offset)
        if trusted < progress.dispatched_offset:
            for queue in queues:
                queue.recover(trusted, scan=False)
        if count == progress.unit_count and progress.removed_offset < trusted:
            queues.removed_offset = progress.removed_offset
            return trusted
        log.warning(
            "the queues have %d units, the checkpoint says %d, some removed at %d, the log is trusted to %d: they"
            " are all checked against the log",
            count,
            progress.unit_count,
            progress.removed_offset,
            trusted,
        )
        return min_offset
    for queue in queues:
        queue.recover(end, scan=True)
    return _untrusted_start(queues, min_offset, end - walk_bytes)


def _untrusted_start(queues: QueueTable, min_offset: int, wanted: int) -> int:
    """Return the first record start at or behind `wanted` that some queue knows; else the start of the log."""
    if wanted <= min_offset:
        return min_offset
    return min((start for queue in queues if (start := first_at(queue, wanted)) is not None), default=min_offset)


def first_at(queue: ConsumeQueue, wanted: int) -> int | None:
    """Return the physical offset of the queue's first record at or behind `wanted`; None without one."""
    unit = queue.unit(queue.bisect(lambda unit: unit[0] < wanted))
    return unit[0] if unit is not None else None
