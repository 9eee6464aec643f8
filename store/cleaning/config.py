"""Settings of the removal of old files.

Source: apache/rocketmq `store/.../config/MessageStoreConfig.java`, `DefaultMessageStore.CleanCommitLogService` (5.3.3).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ledgermq.remoting.config_key import (
    BOOL,
    HOURS_AS_MS,
    NOT_NEGATIVE,
    OURS,
    PATH,
    PERCENT_AS_RATIO,
    POSITIVE,
    RATIO,
    STORE,
    ValueKind,
    key,
)

HOURS_OF_A_DAY = 24


def parse_hours(text: str) -> frozenset[int]:
    """Parse hours of a day, such as `04` or `02;14`.

    Raises:
        ValueError: one of them is no hour of a day.
    """
    hours = [part.strip() for part in text.split(";") if part.strip()]
    if not hours or not all(part.isascii() and part.isdigit() and int(part) < HOURS_OF_A_DAY for part in hours):
        raise ValueError(f"{text!r} is not a list of hours from 00 to 23, separated by semicolons")
    return frozenset(map(int, hours))


HOURS = ValueKind("text", parse_hours, lambda hours: ";".join(f"{hour:02d}" for hour in sorted(hours)))


@dataclass(slots=True, kw_only=True)
class CleaningConfig:
    """Settings of cleaning: when files are deleted, and when messages are refused.

    Ratios are parts of a disk, 0 to 1, within RocketMQ's bounds; 1 is no limit.
    """

    ORIGIN: ClassVar[str] = STORE

    delete_hours: frozenset[int] = key(
        "deleteWhen",
        HOURS,
        frozenset({4}),
        "Hours of the day, divided by semicolons, at which old files are deleted.",
        note="By the local time of the machine.",
    )
    reserved_ms: int = key(
        "fileReservedTime",
        HOURS_AS_MS,
        72 * 3_600_000,
        "Hours for which files are kept.",
        live=True,
        note="Never what is not confirmed, not in the queues yet, or what a Raft member within reach lacks.",
    )
    interval_ms: int = key(
        "cleanResourceInterval", POSITIVE, 10_000, "Time in ms between two looks for files to delete."
    )
    forcibly: bool = key(
        "cleanFileForciblyEnable", BOOL, True, "Delete old files before their time when the disk runs full."
    )
    batch_max: int = key("deleteFileBatchMax", POSITIVE, 10, "Most files deleted in one round.")
    log_pause_ms: int = key(
        "deleteCommitLogFilesInterval", NOT_NEGATIVE, 100, "Pause in ms between two deleted files of the log."
    )
    queue_pause_ms: int = key(
        "deleteConsumeQueueFilesInterval", NOT_NEGATIVE, 100, "Pause in ms between two deleted files of consume queues."
    )
    max_used_ratio: float = key(
        "diskMaxUsedSpaceRatio",
        PERCENT_AS_RATIO,
        0.75,
        "Percentage of a full disk from which old files are deleted.",
        note="Kept within 10 and 95.",
    )
    forcible_ratio: float = key(
        "diskSpaceCleanForciblyRatio",
        PERCENT_AS_RATIO,
        0.85,
        "Percentage of a full disk from which files are deleted before their time.",
        note="Kept within 30 and 85.",
    )
    warning_ratio: float = key(
        "diskSpaceWarningLevelRatio",
        PERCENT_AS_RATIO,
        0.9,
        "Percentage of a full disk from which sends are refused.",
        note="Kept within 35 and 90; topics, groups and consumers' offsets are still taken.",
    )
    replicas_per_disk: int = key("replicasPerDiskPartition", POSITIVE, 1, "Replicas that share a disk.")
    logical_forcible_ratio: float = key(
        "logicalDiskSpaceCleanForciblyThreshold",
        RATIO,
        0.8,
        "Part of a full disk, of several, from which its files are deleted.",
    )
    archive_required: bool = key(
        "archiveRequiredBeforeDelete",
        BOOL,
        False,
        "Delete a file of the log only when archivePath holds it, as its manifest proves.",
        origin=OURS,
        note="Also when the disk runs full: then messages are refused until the archive has the files.",
    )
    archive_path: Path | None = key(
        "archivePath",
        PATH,
        None,
        "Folder with the archive of this log, see archiveRequiredBeforeDelete.",
        origin=OURS,
        note="Written by `ledgermq pipeline archive`; the members of a Raft group may share it.",
    )
    first_delay_ms: int = 60_000
    """Before the first round."""

    def __post_init__(self) -> None:
        """Bring the ratios within their bounds silently, as RocketMQ does; 1 stays: no disk is fuller."""
        self._clamp("max_used_ratio", 0.10, 0.95)
        self._clamp("forcible_ratio", 0.30, 0.85)
        self._clamp("warning_ratio", 0.35, 0.90)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield `(key, sentence)` of each relation between values that does not hold."""
        if self.archive_required and self.archive_path is None:
            yield "archiveRequiredBeforeDelete", "needs archivePath, the folder with the archive"

    def _clamp(self, name: str, low: float, high: float) -> None:
        ratio = getattr(self, name)
        if ratio < 1:
            setattr(self, name, min(max(ratio, low), high))
