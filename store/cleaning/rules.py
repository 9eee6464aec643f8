"""The rules of cleaning: one verdict for each round. Pure: time, hour and disks come in.

    used     max_used_ratio        forcible_ratio          warning_ratio
    --------------|----------------------|-----------------------|----------->
    by the hour   | past their time      | oldest files, even    | ... and no message is taken, until the
    only          | at any hour          | before their time     | use is at forcible_ratio or below again

Source: apache/rocketmq `store/.../DefaultMessageStore.java` (CleanCommitLogService, 5.3.3).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from store.cleaning.config import CleaningConfig
from store.cleaning.disk_space import StoreSpace


@dataclass(frozen=True, slots=True)
class CleaningDecision:
    """The decisions of one round.

    Attributes:
        deletes: delete files past their time.
        at_once: delete the oldest ones too, whatever their age.
        refuses: refuse messages; None: do as before.
    """

    deletes: bool
    at_once: bool
    refuses: bool | None


@dataclass(frozen=True, slots=True)
class AgedFile:
    """A file of the log that is not written any more: its end offset, and the time of its last change (ms)."""

    end_offset: int
    modified_ms: int


def judge(config: CleaningConfig, space: StoreSpace, hour: int, *, by_hand: bool) -> CleaningDecision:
    """Return the decision for disks that are as full as these, at this hour of the local day.

    `by_hand`: an administrator has asked to delete files past their time now.
    """
    fullest = max(space.log.ratio, space.queues.ratio)
    at_once = fullest > config.forcible_ratio
    refuses = True if fullest > config.warning_ratio else None if at_once else False
    if config.replicas_per_disk > 1:
        share = space.store_bytes * config.replicas_per_disk / max(space.log.total, 1)
        is_tight = share > min(config.max_used_ratio, config.logical_forcible_ratio)
        at_once = at_once or share > config.logical_forcible_ratio
    else:
        is_tight = fullest > config.max_used_ratio
    deletes = is_tight or at_once or by_hand or hour in config.delete_hours
    return CleaningDecision(deletes, at_once and config.forcibly, refuses)


def expired(config: CleaningConfig, verdict: CleaningDecision, files: Sequence[AgedFile], now_ms: int) -> list[int]:
    """Return the end offsets of the files to delete in this round: the oldest ones, up to the first that stays."""
    ends: list[int] = []
    for file in files if verdict.deletes else ():
        is_past = now_ms >= file.modified_ms + config.reserved_ms
        if not (is_past or verdict.at_once) or len(ends) == config.batch_max:
            break
        ends.append(file.end_offset)
    return ends
