"""Offsets of a queue, as its leader knows them: first, end, at a time, and committed by a group.

    first_offset <= committed <= end_offset        a queue holds the messages [first_offset, end_offset)

Source: apache/rocketmq `remoting/.../protocol/header/GetMaxOffsetRequestHeader.java` and its siblings (14, 15, 29-31).
"""

from collections.abc import Mapping

from ledgermq.client.core.calls import Calls
from ledgermq.client.errors import UndecodableError
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.route import MessageQueue

FOUND_OR_NOT = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})


class QueueOffsets:
    """Asks leaders for offsets; every method raises LedgerMQError when the leader does not answer in time."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def first(self, queue: MessageQueue) -> int:
        """Return offset of the oldest message kept; equals `end` in an empty queue."""
        return await self._ask(queue, RequestCode.GET_MIN_OFFSET, {})

    async def end(self, queue: MessageQueue) -> int:
        """Return one past the offset of the newest message."""
        return await self._ask(queue, RequestCode.GET_MAX_OFFSET, {"committed": "true"})

    async def at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return offset of the first message stored at or after that time (Unix ms); near `end` when there is none."""
        return await self._ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": str(timestamp_ms)})

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return the offset that the group has committed, which it reads next; None when it has committed none."""
        ext = {"consumerGroup": group, "setZeroIfNotFound": "false", **_of(queue)}
        code = RequestCode.QUERY_CONSUMER_OFFSET
        answered = await self._calls.at_leader(queue.topic, queue.broker, code, ext, accepted=FOUND_OR_NOT)
        if answered.response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return _offset(answered.target.address, answered.response.ext)

    async def commit(self, group: str, queue: MessageQueue, offset: int, *, deadline_s: float | None = None) -> None:
        """Commit an offset for the group; returns when the leader has stored it."""
        ext = {"consumerGroup": group, "commitOffset": str(offset), **_of(queue)}
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        await self._calls.at_leader(queue.topic, queue.broker, code, ext, deadline_s=deadline_s)

    async def _ask(self, queue: MessageQueue, code: int, ext: dict[str, str]) -> int:
        answered = await self._calls.at_leader(queue.topic, queue.broker, code, _of(queue) | ext)
        return _offset(answered.target.address, answered.response.ext)


def _of(queue: MessageQueue) -> dict[str, str]:
    return {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker}


def _offset(address: str, ext: Mapping[str, str]) -> int:
    try:
        return int(ext["offset"])
    except (KeyError, ValueError) as error:
        raise UndecodableError(f"{address}: answer to a query of an offset is {dict(ext)!r}") from error
