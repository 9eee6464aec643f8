"""The exporter's `rocketmq_brokeruntime_*`: what GET_BROKER_RUNTIME_INFO tells, as numbers.

Source: apache/rocketmq-exporter `collector/RMQMetricsCollector.java` (collectBrokerRuntimeStats),
`model/BrokerRuntimeStats.java`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from telemetry.families import Family

_PREFIX: Final = "rocketmq_brokeruntime_"
_HELP_PREFIX: Final = "brokerRuntime"
_SPANS: Final = (("600", 2), ("60", 1), ("10", 0))
_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

SPREAD: Final = {
    "0ms": "<=0ms", "0to10ms": "0~10ms", "10to50ms": "10~50ms", "50to100ms": "50~100ms", "100to200ms": "100~200ms",
    "200to500ms": "200~500ms", "500to1s": "500ms~1s", "1to2s": "1~2s", "2to3s": "2~3s", "3to4s": "3~4s",
    "4to5s": "4~5s", "5to10s": "5~10s", "10stomore": "10s~",
}  # fmt: skip
"""By the end of the name, the span in `putMessageDistributeTime`."""

NUMBERS: Final = {
    "msg_put_total_today_now": "msgPutTotalTodayNow",
    "msg_gettotal_today_now": "msgGetTotalTodayNow",
    "dispatch_behind_bytes": "dispatchBehindBytes",
    "put_message_size_total": "putMessageSizeTotal",
    "put_message_average_size": "putMessageAverageSize",
    "query_threadpool_queue_capacity": "queryThreadPoolQueueCapacity",
    "remain_transientstore_buffer_numbs": "remainTransientStoreBufferNumbs",
    "earliest_message_timestamp": "earliestMessageTimeStamp",
    "putmessage_entire_time_max": "putMessageEntireTimeMax",
    "start_accept_sendrequest_time": "startAcceptSendRequestTimeStamp",
    "send_threadpool_queue_size": "sendThreadPoolQueueSize",
    "putmessage_times_total": "putMessageTimesTotal",
    "getmessage_entire_time_max": "getMessageEntireTimeMax",
    "pagecache_lock_time_mills": "pageCacheLockTimeMills",
    "commitlog_disk_ratio": "commitLogDiskRatio",
    "consumequeue_disk_ratio": "consumeQueueDiskRatio",
    "dispatch_maxbuffer": "dispatchMaxBuffer",
    "pull_threadpoolqueue_capacity": "pullThreadPoolQueueCapacity",
    "send_threadpoolqueue_capacity": "sendThreadPoolQueueCapacity",
    "pull_threadpoolqueue_size": "pullThreadPoolQueueSize",
    "query_threadpoolqueue_size": "queryThreadPoolQueueSize",
    "pull_threadpoolqueue_headwait_timemills": "pullThreadPoolQueueHeadWaitTimeMills",
    "query_threadpoolqueue_headwait_timemills": "queryThreadPoolQueueHeadWaitTimeMills",
    "send_threadpoolqueue_headwait_timemills": "sendThreadPoolQueueHeadWaitTimeMills",
    "msg_gettotal_yesterdaymorning": "msgGetTotalYesterdayMorning",
    "msg_puttotal_yesterdaymorning": "msgPutTotalYesterdayMorning",
    "msg_gettotal_todaymorning": "msgGetTotalTodayMorning",
    "msg_puttotal_todaymorning": "msgPutTotalTodayMorning",
    "commitlog_maxoffset": "commitLogMaxOffset",
    "commitlog_minoffset": "commitLogMinOffset",
    "put_latency_99": "putLatency99",
    "put_latency_999": "putLatency999",
}
"""By the end of the name, the key of what is one number. `remain_howmanydata_toflush` is one with a unit."""

RATES: Final = {
    "getfound_tps": "getFoundTps",
    "gettotal_tps": "getTotalTps",
    "gettransfered_tps": "getTransferredTps",
    "getmiss_tps": "getMissTps",
    "put_tps": "putTps",
}
"""By the middle of the name, the key of what is a rate over three spans."""


class RuntimeSeries:
    """Collects them.

    Args:
        table: the answer to GET_BROKER_RUNTIME_INFO.
        address: `host:port` of this broker as clients dial it.
    """

    def __init__(self, table: Callable[[], Mapping[str, str]], cluster: str, address: str) -> None:
        self._table = table
        self._cluster = cluster
        self._address = address

    def collect(self) -> Iterator[Family]:
        """All families."""
        table = self._table()
        labels = (
            ("cluster", self._cluster),
            ("brokerIP", self._address),
            ("brokerHost", ""),
            ("des", table["brokerVersionDesc"]),
            ("boottime", table["bootTimestamp"]),
            ("broker_version", table["brokerVersion"]),
        )
        for name, explanation, value in _values(table):
            yield Family(_PREFIX + name, "gauge", explanation, [(labels, value)])


def _values(table: Mapping[str, str]) -> Iterator[tuple[str, str, float]]:
    """Name without its prefix, explanation, value."""
    spread = dict(item.removeprefix("[").split("]:") for item in table["putMessageDistributeTime"].split())
    for name, span in SPREAD.items():
        yield f"pmdt_{name}", f"PutMessageDistributeTimeMap{name}", int(spread[span])
    for name, key in NUMBERS.items():
        yield name, _HELP_PREFIX + _capital(key), float(table[key])
    for name, key in RATES.items():
        rates = table[key].split()
        for span, place in _SPANS:
            yield f"{name}{span}", f"{_HELP_PREFIX}{_capital(key)}{span}", float(rates[place])
    yield (
        "remain_howmanydata_toflush",
        f"{_HELP_PREFIX}RemainHowManyDataToFlush",
        _bytes(table["remainHowManyDataToFlush"]),
    )
    total, free = (part.partition(" : ")[2].rstrip(".") for part in table["commitLogDirCapacity"].split(", "))
    yield "commitlogdir_capacity_total", f"{_HELP_PREFIX}CommitLogDirCapacityTotal", _bytes(total)
    yield "commitlogdir_capacity_free", f"{_HELP_PREFIX}CommitLogDirCapacityFree", _bytes(free)


def _bytes(text: str) -> float:
    size, unit = text.split()
    return float(size) * _UNITS[unit]


def _capital(key: str) -> str:
    return key[0].upper() + key[1:]
