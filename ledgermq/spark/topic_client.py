"""The asyncio client for Spark's workers, which are plain functions: calls that block until the cluster has answered.

    read(partition)  -->  TopicClient  -->  a thread with an event loop of its own
      yields a batch        pull_range      --> some pulls under way at once --> bytes of records, in order

The worker's own thread waits for an answer, or for the JVM to take a batch; meanwhile the loop fetches what comes next.
No group is joined and no heartbeat sent. A task that ends well leaves its client, with connections and routes, to the
next task of its worker process; Spark ends idle workers when no task of a Python worker has ended for a minute.

Pulls ask for bulk: about 1 MiB each. A broker that does not know of it, as RocketMQ's, answers with its usual 32
messages; then up to 32 pulls are under way. They go to the replica that the leader suggests, and to the leader once
that fails or lags.

A call is tried again, at a new leader too, until `fetchTimeoutMs` are over.
"""

import asyncio
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypeVar

from ledgermq.client import Admin, Credentials, LedgerMQError, MessageQueue, UndecodableError
from ledgermq.client.consumer.pulling import BULK, PULL_CODES, pull_command
from ledgermq.client.core.calls import back_off_s
from ledgermq.client.group.queue_offsets import QueueOffsets
from ledgermq.client.group.subscription import Subscription, parse_subscription
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.route import LEADER_ID
from ledgermq.spark.errors import ClusterError

TIMEOUT_MS: Final = 120_000
_GROUP: Final = "TOOLS_CONSUMER"
_PLAIN_STRIDE: Final = 32
_BULK_STRIDE_MAX: Final = 2048
_STRIDES_MAX: Final = 32
_PULL_BYTES: Final = 900 << 10  # 1 MiB of a bulk pull, with room for larger records
_WINDOW_BYTES: Final = 4 << 20
_STRIDE_BYTES_MAX: Final = 4 << 20
_QUESTIONS_MAX: Final = 64
_IDLE_MAX: Final = 4
_AGE_MAX_S: Final = 600

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a cluster.

    Attributes:
        namesrv: addresses of nameservers, with semicolons.
        timeout_ms: of one call with all its tries.
        access_key, secret_key: empty if brokers ask for none.
    """

    namesrv: str
    timeout_ms: int = TIMEOUT_MS
    tls: bool = False
    access_key: str = ""
    secret_key: str = ""

    @property
    def credentials(self) -> Credentials | None:
        """Credentials that sign requests; None if brokers ask for none."""
        return Credentials(self.access_key, self.secret_key) if self.access_key else None


@dataclass(frozen=True, slots=True)
class Fetched:
    """Records of a queue, as bytes of the log behind each other.

    Attributes:
        data: some records may be of other offsets than were asked for.
        end: the queue offset behind what was looked at.
        gone: offsets `[start, end)` that the broker has no more; empty if none.
    """

    data: bytes
    end: int
    gone: tuple[int, int] | None = None


class Look(NamedTuple):
    """A sample of a queue from an offset on.

    Attributes:
        first: offset of its oldest message.
        record_bytes: mean size of some records, at least 1.
    """

    first: int
    record_bytes: float


class _Stride(NamedTuple):
    """What pulls of one stride have brought: records, the queue offset behind them, and offsets that are gone."""

    bodies: list[bytes | memoryview]
    end: int
    gone: tuple[int, int] | None = None


class Answer(NamedTuple):
    """The answer to one pull.

    Attributes:
        code: as `ledgermq.client.consumer.pulling.Pulled` has it.
        first: offset of the queue's oldest message.
        after: offset to pull from next.
        data: records as bytes of the log behind each other.
        is_bulk: whether the broker knows of bulk pulls.
        suggested_id: broker id of the replica to pull from next; 0 for the leader.
    """

    code: int
    first: int
    after: int
    data: bytes | memoryview
    is_bulk: bool
    suggested_id: int


class Fetches(NamedTuple):
    """Pulls: how many, their latency together and the longest, in ms, and how many tries have failed."""

    requests: int = 0
    latency_ms: float = 0.0
    longest_ms: float = 0.0
    errors: int = 0

    def __or__(self, other: "Fetches") -> "Fetches":
        longest_ms = max(self.longest_ms, other.longest_ms)
        return Fetches(
            self.requests + other.requests, self.latency_ms + other.latency_ms, longest_ms, self.errors + other.errors
        )

    def with_pull(self, latency_ms: float, attempts: int) -> "Fetches":
        """Return these and one more."""
        return self | Fetches(1, latency_ms, latency_ms, attempts - 1)


class AccessAdmin(Admin):
    """An admin that is made of how to reach a cluster."""

    def __init__(self, access: Access) -> None:
        super().__init__(
            access.namesrv, deadline_s=access.timeout_ms / 1000, tls=access.tls, credentials=access.credentials
        )


class _Puller(AccessAdmin):
    """An admin that returns the bytes of records.

    Attributes:
        fetches: the pulls so far that were answered.
    """

    fetches = Fetches()

    def subscription(self, topic: str, tags: str) -> Subscription:
        """Return the filter of pulls."""
        return parse_subscription(topic, tags or "*", 0)

    async def pull(
        self, queue: MessageQueue, offset: int, count: int, wanted: Subscription, first_id: int = LEADER_ID
    ) -> Answer:
        """Pull up to `count` messages, first from the replica `first_id`; a broker answers at once."""
        command = pull_command(_GROUP, queue, offset, wanted, hold=False, bulk=count)
        began = time.monotonic()
        answered = await self._session.calls.at_leader(
            queue.topic,
            queue.broker,
            command.code,
            command.ext,
            accepted=PULL_CODES,
            first_id=first_id,
        )
        self.fetches = self.fetches.with_pull((time.monotonic() - began) * 1000, answered.attempts)
        response = answered.response
        try:
            first, after = (int(response.ext[name]) for name in ("minOffset", "nextBeginOffset"))
        except (KeyError, ValueError):
            raise UndecodableError(f"{answered.target.address}: an answer to a pull without offsets") from None
        suggested = response.ext.get("suggestWhichBrokerId", "")
        suggested_id = int(suggested) if suggested.isdecimal() else LEADER_ID
        body = response.body if response.code == ResponseCode.SUCCESS else b""
        return Answer(response.code, first, after, body, BULK in response.ext, suggested_id)

    @property
    def queue_offsets(self) -> QueueOffsets:
        """Asks leaders for offsets."""
        return QueueOffsets(self._session.calls)


class LoopThread:
    """A thread that runs an event loop until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asyncio client", daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, Found]) -> "Future[Found]":
        """Run something there; the future has its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Stop the loop, with all that runs on it."""

        async def cancel() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self.begin(cancel()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Client(Protocol):
    """A client of asyncio that is made of how to reach a cluster."""

    def __init__(self, access: Access) -> None: ...

    async def start(self) -> None:
        """Open it."""

    async def close(self) -> None:
        """Close it."""


Kind = TypeVar("Kind", bound=_Client)


class Opened(Generic[Kind]):
    """A client, open, on an event loop in a thread of its own; use it in `with`.

    Raises:
        LedgerMQError: an argument is wrong.
    """

    def __init__(self, kind: type[Kind], access: Access) -> None:
        self.client = kind(access)
        self._made_s = time.monotonic()
        self._key: tuple[type, Access] | None = None
        self._thread = LoopThread()
        try:
            self.run(self.client.start())
        except BaseException:
            self._thread.close()
            raise

    @classmethod
    def kept(cls, kind: type[Kind], access: Access) -> Self:
        """Return what an earlier block of this process has left, or a new one; a block without an error leaves it.

        Blocks that overlap have different ones. Processes never share one, though the daemon of workers forks. None is
        left that is older than ten minutes: it could hold on to what a cluster no longer is.
        """
        opened = _idle().pop((kind, access), None)
        if opened is not None and opened._is_old:
            opened.close()
            opened = None
        opened = opened or cls(kind, access)
        opened._key = kind, access
        return opened

    @property
    def _is_old(self) -> bool:
        return time.monotonic() - self._made_s > _AGE_MAX_S

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None or self._key is None:
            self.close()
            return
        idle = _idle()
        surplus = [idle.pop(self._key)] if self._key in idle else []
        idle[self._key] = self
        surplus += [idle.pop(key) for key in [key for key, each in idle.items() if each._is_old]]
        if len(idle) > _IDLE_MAX:
            surplus.append(idle.pop(next(iter(idle))))
        for each in surplus:
            each.close()

    def begin(self, work: Coroutine[Any, Any, Found]) -> "Future[Found]":
        """Run something on the loop; the future has its result."""
        return self._thread.begin(work)

    def run(self, work: Coroutine[Any, Any, Found]) -> Found:
        """Run something on the loop; return its result."""
        return self.begin(work).result()

    def close(self) -> None:
        """Close the client and the loop."""
        try:
            self.run(self.client.close())
        finally:
            self._thread.close()


_left: dict[int, dict[tuple[type, Access], Any]] = {}
"""What blocks have left, the last one at the end, by process: threads do not survive a fork."""


def _idle() -> dict[tuple[type, Access], Any]:
    return _left.setdefault(os.getpid(), {})


class TopicClient:
    """Plain calls to a cluster; use it in `with`. With `kept` its connections are those of `Opened.kept`.

    Raises:
        ClusterError: from each call, when the cluster refuses or does not answer in time.
    """

    def __init__(self, access: Access, *, kept: bool = False) -> None:
        self._access = access
        self._stride, self._strides = _PLAIN_STRIDE, 1  # messages of one pull, and concurrent pulls
        self._is_bulk = False
        self._source_id = LEADER_ID  # broker id of the replica to pull from
        try:
            self._opened = (Opened.kept if kept else Opened)(_Puller, access)
        except LedgerMQError as error:
            raise ClusterError(str(error)) from None
        self._admin = self._opened.client
        self._admin.fetches = Fetches()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    def close(self) -> None:
        """Close the connections and the loop."""
        self._opened.close()

    @property
    def fetches(self) -> Fetches:
        """The pulls so far that were answered."""
        return self._admin.fetches

    # -- questions

    def topics(self) -> tuple[str, ...]:
        """Return the names of all topics."""
        return self._run(self._admin.topics())

    def queues(self, topics: Iterable[str]) -> list[MessageQueue]:
        """Return the queues of topics that may be read, in order."""
        routes = self._run(self._all(self._admin.route, list(topics)))
        return sorted({queue for route in routes.values() for queue in route.read_queues})

    def firsts(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offset of the oldest message of each queue."""
        return self._run(self._all(self._admin.queue_offsets.first, queues))

    def ends(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offset behind the newest confirmed message of each queue."""
        return self._run(self._all(self._admin.queue_offsets.end, queues))

    def still_before(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return the ends of those queues that end before an offset for all of `fetchTimeoutMs`.

        A new leader's queues may, for a moment, end before what the one before it had confirmed.
        """

        async def before(queue: MessageQueue) -> int | None:
            deadline, tries = time.monotonic() + self._access.timeout_ms / 1000, 0
            while (end := await self._admin.queue_offsets.end(queue)) < offsets[queue]:
                if time.monotonic() > deadline:
                    return end
                tries += 1
                await asyncio.sleep(back_off_s(tries, random.random))
            return None

        ends = self._run(self._all(before, list(offsets)))
        return {queue: end for queue, end in ends.items() if end is not None}

    def at_time(self, queues: Sequence[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, int]:
        """Return the offset of the first message of each queue that was stored at or after a time; else its end."""
        offsets = self._admin.queue_offsets

        async def search(queue: MessageQueue) -> int:
            first, end = await offsets.first(queue), await offsets.end(queue)
            if first == end:
                return end
            found = min(max(await offsets.at_time(queue, timestamp_ms), first), end)
            return end if found == end - 1 and await self._is_before(queue, found, timestamp_ms) else found

        return self._run(self._all(search, queues))

    async def _is_before(self, queue: MessageQueue, offset: int, timestamp_ms: int) -> bool:
        """Return whether a message was stored before a time; brokers answer with the last one if all were."""
        found = await self._admin.read(queue, offset, 1)
        return bool(found) and found[0].store_timestamp_ms < timestamp_ms

    def committed(self, group: str, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int | None]:
        """Return the offset that a group has committed in each queue; None without one."""
        offsets = self._admin.queue_offsets
        return self._run(self._all(lambda queue: offsets.committed(group, queue), queues))

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit offsets for a group."""
        known = self._admin.queue_offsets
        self._run(self._all(lambda queue: known.commit(group, queue, offsets[queue]), list(offsets)))

    def looks(self, starts: Mapping[MessageQueue, int]) -> dict[MessageQueue, Look]:
        """Look at some records of each queue from an offset on, or of its oldest ones where that is gone."""

        async def look(queue: MessageQueue) -> Look:
            wanted, start = self._admin.subscription(queue.topic, ""), starts[queue]
            answer = await self._admin.pull(queue, start, _PLAIN_STRIDE, wanted)
            if answer.code == ResponseCode.PULL_OFFSET_MOVED and answer.after > start:
                start = answer.after
                answer = await self._admin.pull(queue, start, _PLAIN_STRIDE, wanted)
            return Look(answer.first, max(len(answer.data) / max(answer.after - start, 1), 1.0))

        return self._run(self._all(look, list(starts)))

    # -- reading

    def fetched(self, queue: MessageQueue, start: int, end: int, tags: str = "") -> Iterator[Fetched]:
        """Yield the records of `[start, end)` of a queue, some MiB at once; the next ones are on their way meanwhile.

        All offsets must have been confirmed: while a new leader does not have them yet, it is asked again.
        """
        position, self._source_id = start, LEADER_ID
        coming = self._opened.begin(self._pull_range(queue, position, end, tags)) if start < end else None
        while coming is not None:
            found, coming = _result(coming), None
            position = found.end
            if position < end:
                coming = self._opened.begin(self._pull_range(queue, position, end, tags))
            yield found

    async def _pull_range(self, queue: MessageQueue, start: int, end: int, tags: str) -> Fetched:
        wanted = self._admin.subscription(queue.topic, tags)
        stride = self._stride
        bounds = [(at, min(at + stride, end)) for at in range(start, end, stride)[: self._strides]]
        parts = await _gather([self._pull_stride(queue, *bound, wanted) for bound in bounds])
        if (gone := parts[0].gone) is not None:
            return Fetched(b"", min(gone[1], end), (gone[0], min(gone[1], end)))
        bodies, position = list[bytes | memoryview](), start
        for (_, wanted_end), part in zip(bounds, parts, strict=True):
            if part.gone is not None:
                break  # it is first the next time
            bodies += part.bodies
            position = part.end
            if position < wanted_end:
                break  # the stride was cut short; later strides would leave a gap
        data = b"".join(bodies)
        mean = max(len(data) // max(position - start, 1), 1)
        self._stride = min(max(_PULL_BYTES // mean, 1), _BULK_STRIDE_MAX) if self._is_bulk else _PLAIN_STRIDE
        self._strides = max(1, min(_STRIDES_MAX, _WINDOW_BYTES // (self._stride * mean)))
        return Fetched(data, position)

    async def _pull_stride(self, queue: MessageQueue, start: int, end: int, wanted: Subscription) -> _Stride:
        """Pull `[start, end)`, or its first MiB."""
        bodies: list[bytes | memoryview] = []
        position, tries, source_id = start, 0, self._source_id
        loop_time = asyncio.get_running_loop().time
        deadline = loop_time() + self._access.timeout_ms / 1000
        while position < end and sum(map(len, bodies)) < _STRIDE_BYTES_MAX:
            answer = await self._admin.pull(queue, position, end - position, wanted, source_id)
            code, after, body = answer.code, answer.after, answer.data
            source_id = answer.suggested_id if after > position else LEADER_ID
            self._is_bulk, self._source_id = answer.is_bulk, source_id
            if after > position and code == ResponseCode.PULL_OFFSET_MOVED:
                if position > start:
                    break  # return first what was found
                return _Stride([], after, (position, after))
            if after > position:
                bodies.append(body)
                position, tries = after, 0
                continue
            # A new leader does not have in its queue yet what the one before it had confirmed.
            if loop_time() > deadline:
                raise ClusterError(f"{queue}: no broker has offset {position}, though it was confirmed (code {code})")
            tries += 1
            await asyncio.sleep(back_off_s(tries, random.random))
        return _Stride(bodies, min(position, end))

    # -- internals

    async def _all(self, ask: Callable[[Any], Awaitable[Found]], keys: Sequence[Any]) -> dict[Any, Found]:
        """Ask for each key, some of them at once."""
        turns = asyncio.Semaphore(_QUESTIONS_MAX)

        async def one(key: Any) -> Found:
            async with turns:
                return await ask(key)

        return dict(zip(keys, await _gather([one(key) for key in keys]), strict=True))

    def _run(self, work: Coroutine[Any, Any, Found]) -> Found:
        return _result(self._opened.begin(work))


def _result(future: "Future[Found]") -> Found:
    try:
        return future.result()
    except LedgerMQError as error:
        raise ClusterError(str(error)) from None


async def _gather(works: Sequence[Coroutine[Any, Any, Found]]) -> list[Found]:
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
