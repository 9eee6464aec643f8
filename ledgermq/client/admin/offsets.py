"""Administration of offsets: where queues begin and end, how far groups have come, and sending them elsewhere."""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from ledgermq.client.admin.base import AdminBase, by_queue
from ledgermq.client.admin.results import QueueProgress, parse_queue_key
from ledgermq.client.core.answers import read_body
from ledgermq.client.core.checks import check_count, check_group, check_kind, check_queue, unix_ms
from ledgermq.client.errors import InvalidArgumentError, ServerError
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.route import MessageQueue

Where = Literal["first", "last"] | datetime
"""The oldest message kept, messages sent from now on, or the first message stored at or after a time."""


class OffsetAdmin(AdminBase):
    """Administration of offsets."""

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return offset of the oldest message kept in a queue."""
        check_queue(queue)
        return await self._offsets.first(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return one past the offset of the newest message of a queue."""
        check_queue(queue)
        return await self._offsets.end(queue)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return offset of the first message stored at or after a time (Unix ms)."""
        check_queue(queue)
        check_count(least=0, timestamp_ms=timestamp_ms)
        return await self._offsets.at_time(queue, timestamp_ms)

    async def progress(self, group: str, topic: str) -> tuple[QueueProgress, ...]:
        """Return the progress of a group in each queue of a topic."""
        check_group(group)
        queues = (await self.route(topic)).read_queues
        return tuple(await asyncio.gather(*(self._progress(group, queue) for queue in queues)))

    async def group_progress(self, group: str) -> tuple[QueueProgress, ...]:
        """Return the progress of a group in every queue in which it has committed an offset, sorted."""
        check_group(group)
        brokers = await self._broker_names(None)
        code, what = RequestCode.GET_CONSUME_STATS, f"progress of {group}"
        return by_queue(await self._read_at_leaders(brokers, code, {"consumerGroup": group}, what, _parse_progress))

    async def set_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commit an offset for a group; the next commit of a member that reads the queue now replaces it."""
        check_group(group)
        check_queue(queue)
        check_count(least=0, offset=offset)
        await self._offsets.commit(group, queue, offset)

    async def reset_offsets(self, group: str, topic: str, to: Where) -> dict[MessageQueue, int]:
        """Let a group continue at another position of a topic; connected members move there.

        Until a member has read from there, brokers answer with the new offset, whatever is committed.

        Returns:
            The new offsets.
        """
        check_group(group)
        timestamp = str(_timestamp_ms(to))
        ext = {"group": group, "topic": topic, "timestamp": timestamp, "isForce": "true", "queueId": "-1"}
        table: dict[MessageQueue, int] = {}
        for broker in (await self.route(topic)).brokers:
            try:
                answer = await self._at_leader(broker, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext, ServerError)
            except ServerError as error:
                if error.code not in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR):
                    raise
                table |= await self._move(group, topic, broker, to)  # no member is connected
            else:
                table |= read_body(broker, "offsets after a reset", answer.body, _parse_offsets)
        return table

    async def clone_offsets(self, source: str, target: str, topic: str) -> dict[MessageQueue, int]:
        """Let the group `target`, which must exist, continue at the offsets of `source` in a topic.

        Returns:
            The offsets that were copied; queues in which `source` has committed none are left unchanged.

        Raises:
            GroupNotFoundError: a broker does not know `target`.
        """
        check_kind(str, source=source, target=target)
        check_group(target)
        table = {one.queue: one.committed for one in await self.progress(source, topic) if one.committed is not None}
        await asyncio.gather(*(self._offsets.commit(target, queue, offset) for queue, offset in table.items()))
        return table

    # -- internals

    async def _progress(self, group: str, queue: MessageQueue) -> QueueProgress:
        committed, end = await asyncio.gather(self._offsets.committed(group, queue), self._offsets.end(queue))
        return QueueProgress(queue, committed, end)

    async def _move(self, group: str, topic: str, broker: str, to: Where) -> dict[MessageQueue, int]:
        """Reset offsets queue by queue, as the broker does when members are connected."""
        table = {}
        for queue in (await self.route(topic)).read_queues:
            if queue.broker == broker:
                table[queue] = await self._offset_at(queue, to)
                await self._offsets.commit(group, queue, table[queue])
        return table

    async def _offset_at(self, queue: MessageQueue, where: Where) -> int:
        if isinstance(where, datetime):
            return await self._offsets.at_time(queue, _timestamp_ms(where))
        return await (self._offsets.first(queue) if where == "first" else self._offsets.end(queue))


def _timestamp_ms(where: Where) -> int:
    """Return the position as request 222 carries it: Unix ms, -1 for the end."""
    if isinstance(where, datetime):
        return unix_ms(where, "to")
    if where not in ("first", "last"):
        raise InvalidArgumentError(f"to is {where!r}, not 'first', 'last' or a datetime")
    return 0 if where == "first" else -1


def _parse_progress(data: Any) -> list[QueueProgress]:
    return [
        QueueProgress(parse_queue_key(key), committed if committed >= 0 else None, int(one["brokerOffset"]))
        for key, one in data["offsetTable"].items()
        for committed in (int(one["consumerOffset"]),)
    ]


def _parse_offsets(data: Mapping[str, Any]) -> dict[MessageQueue, int]:
    return {parse_queue_key(key): int(offset) for key, offset in data["offsetTable"].items()}
