"""Measures how long requests took, by request and response code, and how long appends took.

    most requests:  served (time noted) ... answered      one look-up and one search each
    sends:          a batch begins ... is settled         once a batch, for all its senders

A batch's time is from its first message's arrival to the answers, flush and replication included.

Source: apache/rocketmq `remoting/.../metrics/RemotingMetricsManager.java`, `store/.../StoreStatsService.java`.
"""

import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from broker.counting.tallies import Distributions, Key
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode, request_name, response_name
from ledgermq.remoting.codec.command import ONEWAY_FLAG, Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Refusal
from store.replicated_log import AppendReceipt
from telemetry.families import Buckets

Sender = tuple[Connection, Command, object, bytes]
"""A sender that waits for a batch, with its request; the rest of `broker.append.answers.Answer` is not used here."""

LATENCY_BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
SEND_CODES: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
    }
)
STORED_CODES: Final = (
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
)
"""Codes of messages that are stored, though less safely than configured: clients count them as sent."""
_CODES_MAX: Final = 2000

TICKS_A_SECOND: Final = 10_000
"""Times of batches are counted in tenths of a millisecond, so that many share an entry until they are summed up."""
_TICKS_A_MS: Final = TICKS_A_SECOND / 1000

_SPREAD_MS: Final = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_SPREAD_NAMES: Final = (
    "<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s", "1~2s", "2~3s", "3~4s", "4~5s",
    "5~10s", "10s~",
)  # fmt: skip
_FINE_MS: Final = (
    *range(1, 20), *range(20, 100, 5), *range(100, 500, 25), *range(500, 1000, 100), *range(1000, 11_000, 1000)
)  # fmt: skip


class AppendTimes:
    """How long messages took to be stored, from their arrival to the answer.

    Attributes:
        waiting: messages by ticks, not summed up yet.
        failed: messages that were not stored.
        max_ms: the longest time so far.
    """

    def __init__(self) -> None:
        self._spread = [0] * (len(_SPREAD_MS) + 1)
        self._fine = [0] * (len(_FINE_MS) + 1)
        self._sum_ms = 0.0
        self.waiting: dict[int, int] = {}
        self.failed = 0
        self.max_ms = 0

    def settle(self) -> None:
        """Sum up `waiting`."""
        waiting, self.waiting = self.waiting, {}
        for ticks, count in waiting.items():
            self._add(ticks / _TICKS_A_MS, count)

    def _add(self, elapsed_ms: float, count: int) -> None:
        self._spread[bisect_left(_SPREAD_MS, int(elapsed_ms))] += count
        self._fine[bisect_left(_FINE_MS, elapsed_ms)] += count
        self._sum_ms += elapsed_ms * count
        self.max_ms = max(self.max_ms, int(elapsed_ms))

    def spread(self) -> dict[str, int]:
        """Return the number of messages by duration, under RocketMQ's names of the ranges."""
        return dict(zip(_SPREAD_NAMES, self._spread, strict=True))

    def distribution(self) -> tuple[Sequence[int], Sequence[int], float]:
        """Return upper bounds in ms, messages by bound and above all bounds, and the sum of their times in ms."""
        return _FINE_MS, tuple(self._fine), self._sum_ms

    def percentile_ms(self, share: float) -> float:
        """Return an upper bound of the time that this share of the messages took; 0 without messages."""
        total = sum(self._fine)
        if not total:
            return 0.0
        place = bisect_left(list(accumulate(self._fine)), math.ceil(total * share))
        return float(_FINE_MS[min(place, len(_FINE_MS) - 1)])


class CallLatencies:
    """Latencies of all requests.

    Attributes:
        appends: times of appends.
        senders: answered with success, by ticks, not summed up yet.
        by_code: whether senders use more than one request code, so that they must be counted one by one.
    """

    def __init__(self) -> None:
        self.appends = AppendTimes()
        self.by_code = False
        self.senders: dict[int, int] = {}
        self._latencies = Distributions(LATENCY_BOUNDS_MS, _CODES_MAX)

    def settle(self) -> None:
        """Sum up the times that were noted; call it periodically and before reading."""
        senders, self.senders = self.senders, {}
        if senders:
            found = self._latencies.of((RequestCode.SEND_MESSAGE_V2, ResponseCode.SUCCESS, False, "success"))
            for ticks, count in senders.items():
                found.observe(ticks / _TICKS_A_MS, count)
        self.appends.settle()

    def add_senders(self, answers: Sequence[Sender], code: int, ticks: int) -> None:
        """Count the answers to a batch's senders, all with `code`, by request code."""
        for request, count in Counter(answer[1].code for answer in answers).items():
            self._latencies.of((request, code, False, "success")).observe(ticks / _TICKS_A_MS, count)

    def sent(self, command: Command, code: int, since: float) -> None:
        """Count one sender's answer; it has waited since `since` (seconds, monotonic)."""
        elapsed_ms = 1000 * (time.monotonic() - since)
        self._latencies.of((command.code, code, False, "success")).observe(elapsed_ms)

    def answered(self, command: Command, code: int) -> None:
        """Count the answer to a request whose `since` was noted."""
        result = "oneway" if command.flag & ONEWAY_FLAG else "success"
        elapsed_ms = 1000 * (time.monotonic() - command.since)
        self._latencies.of((command.code, code, command.is_held, result)).observe(elapsed_ms)

    def refused(self, command: Command, code: int) -> None:
        """Count a send that was refused before it was put into a batch."""
        self._latencies.of((command.code, code, False, "success")).observe(0)

    def latencies(self) -> Iterator[tuple[Key, Buckets]]:
        """Yield latencies as of the last `settle`, by label values: request, response, whether it was held, result."""
        for key, buckets in self._latencies.items():
            if key:
                request, response, is_held, result = key
                yield (_request(int(request)), _response(int(response)), str(is_held).lower(), result), buckets
            else:
                yield key, buckets


def as_senders_see(outcome: AppendReceipt | Refusal) -> AppendReceipt | Refusal:
    """Return the outcome for senders: for confirmed records on too few replicas, the refusal that says so."""
    if isinstance(outcome, Refusal) or outcome.shortfall is None:
        return outcome
    return outcome.shortfall


def code_of(outcome: AppendReceipt | Refusal) -> int:
    """Return the code with which senders of a batch are answered."""
    seen = as_senders_see(outcome)
    return seen.code if isinstance(seen, Refusal) else ResponseCode.SUCCESS


def _request(code: int) -> str:
    return request_name(code).lower()


def _response(code: int) -> str:
    return response_name(code).lower()
