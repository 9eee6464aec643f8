"""The answer to GET_BROKER_RUNTIME_INFO (28): rates, totals and positions, under the names that mqadmin reads.

Counts are plain ints elsewhere; once a second they are sampled here, and a rate is the difference of two samples.

Source: apache/rocketmq `broker/.../processor/AdminBrokerProcessor.java` (prepareRuntimeInfo).
"""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from broker.context import BrokerContext
from broker.counting.oldest import OldestMessage
from ledgermq.wall_clock import wall_clock_ms
from store.cleaning.disk_space import disk_space

SAMPLE_SECONDS = 1.0
_SPANS_SECONDS = (10, 60, 600)
_NO_POOL = (1 << 31) - 1
_VERSION = 479
_VERSION_TEXT = "V5_3_3"
_CAPACITIES = {"send": "10000", "pull": "100000", "litePull": "100000", "query": "20000", "ack": "100000"}


class Totals(NamedTuple):
    """Counts since the start: messages and bytes stored, messages delivered, pulls that found something or nothing."""

    messages_in: int
    bytes_in: int
    messages_out: int
    found: int
    missed: int


class RuntimeInfo:
    """Samples totals and makes the table.

    Args:
        totals: returns the present counts.
        waiting: returns the part of the table about timers and delay levels.
    """

    def __init__(
        self, context: BrokerContext, totals: Callable[[], Totals], waiting: Callable[[], dict[str, str]]
    ) -> None:
        self._config = context.config
        self._totals = totals
        self._counting = context.counting
        self._waiting = waiting
        self._store = context.store
        self._oldest = OldestMessage(context.store)
        self._started_ms = wall_clock_ms()
        self._samples: deque[tuple[float, Totals]] = deque(maxlen=_SPANS_SECONDS[-1] + 1)
        self._day = time.localtime().tm_yday
        self._mornings = (Totals(0, 0, 0, 0, 0), Totals(0, 0, 0, 0, 0))  # those of yesterday's and of today's start

    def sample(self) -> None:
        """Take a sample; call it every `SAMPLE_SECONDS`."""
        totals = self._totals()
        self._samples.append((time.monotonic(), totals))
        day = time.localtime().tm_yday
        if day != self._day:
            self._day = day
            self._mornings = (self._mornings[1], totals)

    def table(self, writable: bool) -> dict[str, str]:
        """Return every key that mqadmin and the dashboard read, as text."""
        return {
            **self._store_part(),
            **self._disk(),
            **self._rates(),
            **self._days(),
            **_queues(),
            **self._constants(writable),
            **self._waiting(),
        }

    def _store_part(self) -> dict[str, str]:
        totals, log, appends = self._totals(), self._store.log, self._counting.calls.appends
        average = totals.bytes_in / totals.messages_in if totals.messages_in else 0.0
        spread = " ".join(f"[{span}]:{count}" for span, count in appends.spread().items())
        return {
            "putMessageTimesTotal": str(totals.messages_in),
            "putMessageSizeTotal": str(totals.bytes_in),
            "putMessageAverageSize": str(average),
            "putMessageFailedTimes": str(appends.failed),
            "putMessageEntireTimeMax": str(appends.max_ms),
            "putMessageDistributeTime": f"{spread} ",
            "getMessageEntireTimeMax": str(self._counting.departures.read_ms_max),
            "putLatency99": f"{appends.percentile_ms(0.99):.2f}",
            "putLatency999": f"{appends.percentile_ms(0.999):.2f}",
            "commitLogMinOffset": str(log.min_offset),
            "commitLogMaxOffset": str(log.confirm_offset),
            "dispatchBehindBytes": str(log.confirm_offset - self._store.dispatched_offset),
            "dispatchMaxBuffer": "0",
        }

    def _disk(self) -> dict[str, str]:
        path, waiting = self._store.log.directory, self._store.log.backlog()
        log, queues = disk_space(path), disk_space(self._config.store.folders.root)
        return {
            "commitLogDiskRatio": str(log.ratio),
            f"commitLogDiskRatio_{path}": str(log.ratio),
            "consumeQueueDiskRatio": str(queues.ratio),
            "commitLogDirCapacity": f"Total : {readable(queues.total)}, Free : {readable(queues.usable)}.",
            "remainHowManyDataToCommit": readable(waiting.uncommitted_bytes),
            "remainHowManyDataToFlush": readable(waiting.unflushed_bytes),
            "remainTransientStoreBufferNumbs": str(
                _NO_POOL if waiting.free_buffer_count is None else waiting.free_buffer_count
            ),
        }

    def _rates(self) -> dict[str, str]:
        sent = self._spans(lambda totals: totals.messages_in)
        given = self._spans(lambda totals: totals.messages_out)
        return {
            "putTps": sent,
            "getTransferredTps": given,
            "getTransferedTps": given,  # spelled so by 4.x tools
            "getFoundTps": self._spans(lambda totals: totals.found),
            "getMissTps": self._spans(lambda totals: totals.missed),
            "getTotalTps": self._spans(lambda totals: totals.found + totals.missed),
        }

    def _spans(self, count: Callable[[Totals], int]) -> str:
        return " ".join(str(self._rate(count, span)) for span in _SPANS_SECONDS)

    def _rate(self, count: Callable[[Totals], int], span: int) -> float:
        if len(self._samples) < 2:
            return 0.0
        newest_time, newest = self._samples[-1]
        oldest_time, oldest = self._samples[max(0, len(self._samples) - 1 - span)]
        return (count(newest) - count(oldest)) / max(newest_time - oldest_time, SAMPLE_SECONDS)

    def _days(self) -> dict[str, str]:
        yesterday, today, now = *self._mornings, self._totals()
        return {
            "msgPutTotalYesterdayMorning": str(yesterday.messages_in),
            "msgPutTotalTodayMorning": str(today.messages_in),
            "msgPutTotalTodayNow": str(now.messages_in),
            "msgGetTotalYesterdayMorning": str(yesterday.messages_out),
            "msgGetTotalTodayMorning": str(today.messages_out),
            "msgGetTotalTodayNow": str(now.messages_out),
        }

    def _constants(self, writable: bool) -> dict[str, str]:
        runtime = wall_clock_ms() - self._started_ms
        minutes, seconds = divmod(runtime // 1000, 60)
        hours, minutes = divmod(minutes, 60)
        days, hours = divmod(hours, 24)
        return {
            "bootTimestamp": str(self._started_ms),
            "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]",
            "brokerActive": "true" if writable else "false",
            "brokerVersion": str(_VERSION),
            "brokerVersionDesc": _VERSION_TEXT,
            "startAcceptSendRequestTimeStamp": "0",
            "earliestMessageTimeStamp": str(self._oldest.stored_ms),
            "pageCacheLockTimeMills": "0",
        }


def _queues() -> dict[str, str]:
    """Return the keys about queues of the Java broker's thread pools, as empty: there are none here."""
    table = {"EndTransactionQueueSize": "0", "EndTransactionThreadPoolQueueCapacity": "100000"}
    for name, capacity in _CAPACITIES.items():
        table[f"{name}ThreadPoolQueueSize"] = "0"
        table[f"{name}ThreadPoolQueueCapacity"] = capacity
        table[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    return table


def readable(size_bytes: int) -> str:
    """Return a size as RocketMQ writes it: 0 B, 1.5 KiB, 12.0 GiB."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
