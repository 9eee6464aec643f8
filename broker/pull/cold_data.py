"""Limits reads of cold data, and serves the requests 2001 to 2004 about them.

A record is cold when more than a part of the machine's memory lies between it and the log's end, so that it is probably
only on the disk. With `coldDataFlowControlEnable` the cold bytes that each group reads are counted in periods of five
seconds. A group above its threshold, or any reader of cold data once all groups together are above theirs, must wait:
push consumers get code 2 and come again, pull consumers get an answer of one message some seconds later.

Source: apache/rocketmq `broker/.../coldctr/ColdDataCgCtrService.java`, `ColdDataPullRequestHoldService.java` (5.3.3),
without its adaptive strategies, and without checking which pages are in memory.
"""

import logging
import struct
from dataclasses import dataclass

from broker.context import BrokerContext
from broker.groups.clients import ClientTable
from broker.pull.held_pulls import HeldPull
from broker.state.names import SYSTEM_GROUPS
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import I64_MAX, integer
from ledgermq.remoting.codec.java_json import dumps
from ledgermq.remoting.codec.properties_text import parse_properties
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.wall_clock import wall_clock_ms
from store.queues.cold_limits import MEMORY_BYTES
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_reader import GetResult

log = logging.getLogger(__name__)

PERIOD_SECONDS = 5.0
_FORGET_SECONDS = 60.0
_HOLD_SECONDS = 3.0
_HELD_MAX = 10_000
_PUSH = "CONSUME_PASSIVELY"
_DIGITS_MAX = 40
_NORMAL, _RANDOM = 0, 1
"""The modes, with the values of madvise."""
_PHYSICAL_OFFSET, _AT = struct.Struct(">q").unpack_from, 28


@dataclass(slots=True)
class ColdBytes:
    """Cold bytes that one group has read in this period, its begin, and the time of the last such read."""

    count: int
    since_ms: int
    last_ms: int


class ColdReads:
    """Counts and limits reads of cold data."""

    def __init__(self, context: BrokerContext, clients: ClientTable) -> None:
        self._config = context.config
        self._clients = clients
        self._log = context.store.log
        self._clock = context.loop.time
        self._groups: dict[str, ColdBytes] = {}
        self._thresholds: dict[str, int] = {}
        self._all_bytes = 0
        self._held: list[tuple[float, HeldPull]] = []

    # ---- of pulls

    def check(self, group: str, queue: ConsumeQueue, offset: int) -> bool:
        """Return whether a read is cold and its group above the threshold: a pull consumer must wait then.

        Raises:
            Refusal: BUSY, the same for a push consumer.
        """
        if not self._config.cold_data_control or not self._is_limited(group) or not self._is_cold_unit(queue, offset):
            return False
        members = self._clients.consumer_group(group)
        if members is not None and members.consume_type == _PUSH:
            raise Refusal(Cause.BUSY, "This consumer group is reading cold data. It has been flow control")
        return True

    def count(self, group: str, result: GetResult) -> None:
        """Count the cold bytes of a finished read."""
        if not self._config.cold_data_control:
            return
        border = self._border
        cold = sum(len(record) for record in result.records if _PHYSICAL_OFFSET(record, _AT)[0] < border)
        if cold:
            now = wall_clock_ms()
            self._all_bytes += cold
            found = self._groups.setdefault(group, ColdBytes(0, now, now))
            found.count += cold
            found.last_ms = now

    def is_behind(self, result: GetResult) -> bool:
        """Return whether the last record of a read is probably not in memory, by its distance from the log's end."""
        distance: int = self._log.max_offset - _PHYSICAL_OFFSET(result.records[-1], _AT)[0]
        return distance > self._config.store.cold_limits.memory_bytes

    def hold(self, pull: HeldPull) -> bool:
        """Answer a pull later; return False if too many wait already."""
        if len(self._held) >= _HELD_MAX:
            return False
        self._held.append((self._clock() + _HOLD_SECONDS, pull))
        return True

    def end_period(self) -> None:
        """Reset the counts and answer the pulls that waited. Call it every `PERIOD_SECONDS`."""
        old = wall_clock_ms() - int(_FORGET_SECONDS * 1000)
        self._groups = {name: read for name, read in self._groups.items() if read.last_ms > old}
        for read in self._groups.values():
            read.count = 0
        self._all_bytes = 0
        now = self._clock()
        due = [pull for until, pull in self._held if until <= now]
        self._held = [held for held in self._held if held[0] > now]
        for pull in due:
            if not pull.is_gone:
                pull.give_up()

    @property
    def _border(self) -> int:
        """Return the physical offset below which records are cold."""
        return self._log.max_offset - MEMORY_BYTES * self._config.hot_memory_percent // 100

    def _is_cold_unit(self, queue: ConsumeQueue, offset: int) -> bool:
        unit = queue.unit(offset) if queue.min_offset <= offset < queue.max_offset else None
        return unit is not None and unit[0] < self._border

    def _is_limited(self, group: str) -> bool:
        read = self._groups.get(group)
        if read is None or group in SYSTEM_GROUPS:
            return False
        threshold = self._thresholds.get(group, self._config.cold_group_threshold_bytes)
        return read.count >= threshold or self._all_bytes >= self._config.cold_global_threshold_bytes

    # ---- requests

    def set_thresholds(self, connection: Connection, command: Command) -> None:
        """2001: set the cold bytes that groups may read in a period, until the process ends."""
        for group, value in parse_properties(_text(command)).items():
            if not (value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX and int(value) <= I64_MAX):
                raise Refusal(
                    Cause.INVALID_PARAMETER, f"the threshold of {group[:100]} is {value[:40]!r}, not a number"
                )
            self._thresholds[group] = int(value)
        connection.respond(command, ResponseCode.SUCCESS)

    def remove_threshold(self, connection: Connection, command: Command) -> None:
        """2002: give the group in the body the default threshold again."""
        self._thresholds.pop(_text(command), None)
        connection.respond(command, ResponseCode.SUCCESS)

    def show(self, connection: Connection, command: Command) -> None:
        """2003: answer the cold bytes that each group has read, and its threshold."""
        groups = {
            name: {"coldAcc": read.count, "createTimeMills": read.since_ms, "lastColdReadTimeMills": read.last_ms}
            for name, read in self._groups.items()
        }
        body = {
            "cgColdReadThreshold": self._config.cold_group_threshold_bytes,
            "configTable": self._thresholds,
            "globalAcc": self._all_bytes,
            "globalColdReadThreshold": self._config.cold_global_threshold_bytes,
            "runtimeTable": groups,
        }
        connection.respond(command, ResponseCode.SUCCESS, body=dumps(body))

    def set_read_ahead(self, connection: Connection, command: Command) -> None:
        """2004: set whether the kernel reads ahead in the log's files: 0 it does, 1 it does not."""
        mode = integer(command.ext, "READ_AHEAD_MODE")
        if mode not in (_NORMAL, _RANDOM):
            raise Refusal(Cause.INVALID_PARAMETER, "set commitlog readahead mode param value error")
        self._log.set_reads_ahead(mode == _NORMAL)
        log.info("%s sets the log's read-ahead to %d", connection.address, mode)
        remark = f"set commitlog readahead mode success, mode: {mode}"
        connection.respond(command, ResponseCode.SUCCESS, remark=remark)


def _text(command: Command) -> str:
    try:
        return bytes(command.body).decode()
    except UnicodeDecodeError as error:
        raise Refusal(Cause.INVALID_PARAMETER, f"the body is not UTF-8 at byte {error.start}") from error
