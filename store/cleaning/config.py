"""What an operator says about old files.

Source: apache/rocketmq `store/.../config/MessageStoreConfig.java`, `DefaultMessageStore.CleanCommitLogService` (5.3.3).
"""

from dataclasses import dataclass

HOURS_OF_A_DAY = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningConfig:
    """When files go. Ratios are parts of a disk, 0 to 1, within the bounds that RocketMQ gives them; 1 is no limit.

    Attributes:
        delete_hours: deleteWhen; hours of the local day at which files past their time go.
        reserved_ms: fileReservedTime; how long after its last change a file is kept.
        max_used_ratio: diskMaxUsedSpaceRatio (0.10 to 0.95); above it, files past their time go at any hour.
        forcible_ratio: diskSpaceCleanForciblyRatio (0.30 to 0.85); above it, files go whatever their age.
        warning_ratio: diskSpaceWarningLevelRatio (0.35 to 0.90); above it, messages are refused, too.
        forcibly: cleanFileForciblyEnable; without it no file goes before its time.
        batch_max: deleteFileBatchMax; files of the log that one round takes at most.
        interval_ms: cleanResourceInterval; between two rounds.
        first_delay_ms: before the first one.
        log_pause_ms, queue_pause_ms: after each file of the log, and each queue that lost files.
        replicas_per_disk: replicasPerDiskPartition; stores that share one disk.
        logical_forcible_ratio: logicalDiskSpaceCleanForciblyThreshold; of this store's share of a shared disk.
    """

    delete_hours: frozenset[int] = frozenset({4})
    reserved_ms: int = 72 * 3_600_000
    max_used_ratio: float = 0.75
    forcible_ratio: float = 0.85
    warning_ratio: float = 0.90
    forcibly: bool = True
    batch_max: int = 10
    interval_ms: int = 10_000
    first_delay_ms: int = 60_000
    log_pause_ms: int = 100
    queue_pause_ms: int = 100
    replicas_per_disk: int = 1
    logical_forcible_ratio: float = 0.80

    def __post_init__(self) -> None:
        """Take the ratios into their bounds, as RocketMQ does without a word; except 1, which no disk is above."""
        self._clamp("max_used_ratio", 0.10, 0.95)
        self._clamp("forcible_ratio", 0.30, 0.85)
        self._clamp("warning_ratio", 0.35, 0.90)

    def _clamp(self, name: str, low: float, high: float) -> None:
        ratio = getattr(self, name)
        if ratio < 1:
            object.__setattr__(self, name, min(max(ratio, low), high))


def parse_hours(text: str) -> frozenset[int]:
    """Hours of `deleteWhen`, such as `04` or `02;14`.

    Raises:
        ValueError: one of them is no hour of a day.
    """
    hours = [part.strip() for part in text.split(";") if part.strip()]
    if not hours or not all(part.isascii() and part.isdigit() and int(part) < HOURS_OF_A_DAY for part in hours):
        raise ValueError(f"{text!r} is not hours from 00 to 23, divided by semicolons")
    return frozenset(map(int, hours))
