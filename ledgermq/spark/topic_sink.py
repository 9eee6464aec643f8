"""`df.write` and `df.writeStream` to `format("ledgermq")`: rows become messages, at least once, or once.

    task   Arrow batch -> messages by topic and queue -> send_many, or numbered -> all acknowledged -> next batch

| column | type | |
|---|---|---|
| body | binary or string | required; 1 byte to 4 MiB |
| topic | string | unless the option `topic` is given, which wins |
| keys | string or array<string> | |
| tags | string | |
| queue_id | int | rows of one partition with the same queue are stored in their order |
| properties | map<string,string> | names that RocketMQ itself sets are left out |

Other columns are ignored. A task ends only when the cluster has acknowledged every row. A task that Spark repeats sends
its rows again: the copies have message ids of their own. With `idempotent` brokers store each row once (`numbered`).
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, MapType, StringType, StructType

from ledgermq.client import InvalidArgumentError, LedgerMQError, Outgoing, Producer, SendManyError
from ledgermq.client.producer.outgoing import RESERVED
from ledgermq.spark.errors import ClusterError, OptionError
from ledgermq.spark.numbered import WRITE_ID, Addressed, Identity, LaneCaller, NumberedSender, Queues, planned_queues
from ledgermq.spark.options import Options
from ledgermq.spark.topic_client import Access, Opened

_TEXTS: Final = MapType(StringType(), StringType())
_COLUMNS: Final[dict[str, tuple[DataType, ...]]] = {
    "body": (BinaryType(), StringType()),
    "topic": (StringType(),),
    "keys": (StringType(), ArrayType(StringType())),
    "tags": (StringType(),),
    "queue_id": (IntegerType(),),
    "properties": (_TEXTS,),
}


@dataclass(frozen=True)
class Sent(WriterCommitMessage):
    """How many messages a task has sent; all are acknowledged."""

    messages: int


class _Writer:
    """Sends the rows of a task.

    Raises:
        OptionError: a column is missing or of another type.
    """

    def __init__(self, options: Options, access: Access, schema: StructType) -> None:
        self._access = access
        self._topic = options.text("topic")
        types = {field.name: field.dataType for field in schema.fields}
        if "body" not in types:
            raise OptionError("the rows have no column body")
        if not self._topic and "topic" not in types:
            raise OptionError("the rows have no column topic, and the option topic is not given")
        for name, allowed in _COLUMNS.items():
            if name in types and not any(_is_like(types[name], kind) for kind in allowed):
                kinds = " or ".join(kind.simpleString() for kind in allowed)
                raise OptionError(f"column {name} is {types[name].simpleString()}, not {kinds}")
        self._names = [name for name in _COLUMNS if name in types]
        self._is_idempotent = options.flag("idempotent", False)
        self._write_id = options.text("writeId")
        if self._write_id and WRITE_ID.fullmatch(self._write_id) is None:
            raise OptionError(f"writeId={self._write_id!r} is not 1 to 50 letters, digits, '.', '_' or '-'")
        if self._write_id and not self._is_idempotent:
            raise OptionError("writeId is of use with idempotent=true only")
        self._queue_count = options.number("queues")
        if self._queue_count is not None and not (self._is_idempotent and self._queue_count):
            raise OptionError("queues is a number of 1 or more, and of use with idempotent=true only")
        self._planned: dict[str, Queues] = {}

    def _plan(self) -> None:
        """Ask for the queues of the topic, if one option names it for all rows; tasks get a copy of this object."""
        if self._is_idempotent and self._topic:
            self._planned[self._topic] = planned_queues(self._access, self._topic, self._queue_count)

    @contextlib.contextmanager
    def _send(self) -> Iterator[Callable[[Sequence[Addressed]], None]]:
        """Open what sends messages, and returns when all are acknowledged; a task leaves it to the next one."""
        opened = Opened.kept if TaskContext.get() is not None else Opened
        if not self._is_idempotent:
            with opened(_PlainSender, self._access) as plain:
                yield lambda messages: plain.run(plain.client.send(messages))
            return
        searches = "queue_id" not in self._names
        with opened(LaneCaller, self._access) as numbered:
            planned, count = self._planned, self._queue_count
            sender = NumberedSender(numbered.client, self._identity(), planned, count, searches=searches)
            yield lambda messages: numbered.run(sender.send(messages))

    def _identity(self) -> Identity:
        raise NotImplementedError

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send all rows of a task; returns when they are acknowledged.

        Raises:
            ClusterError: not all were acknowledged in time; some may be stored.
            OptionError: a row cannot be a message.
        """
        sent = 0
        try:
            with self._send() as send:
                for batch in iterator:
                    send(self._messages(batch))
                    sent += batch.num_rows
        except SendManyError as error:
            raise ClusterError(f"{error}: {error.exceptions[0]}") from None
        except InvalidArgumentError as error:
            raise OptionError(f"a row cannot be sent: {error}") from None
        except LedgerMQError as error:
            raise ClusterError(str(error)) from None
        return Sent(sent)

    def _messages(self, batch: pa.RecordBatch) -> list[Addressed]:
        """Return the rows of a batch as messages, in order.

        Raises:
            InvalidArgumentError: a row cannot be a message.
        """
        messages: list[Addressed] = []
        for row in batch.select(self._names).to_pylist():
            topic = self._topic or row["topic"]
            if not topic:
                raise InvalidArgumentError("its topic is null or empty")
            messages.append((topic, row.get("queue_id"), _outgoing(row)))
        return messages


class _PlainSender:
    """Sends messages at least once."""

    def __init__(self, access: Access) -> None:
        self._producer = Producer(
            access.namesrv, deadline_s=access.timeout_ms / 1000, tls=access.tls, credentials=access.credentials
        )

    async def start(self) -> None:
        """Open it."""
        await self._producer.start()

    async def close(self) -> None:
        """Close it; what is not acknowledged is given up."""
        await self._producer.close(drain=False)

    async def send(self, messages: Sequence[Addressed]) -> None:
        """Send messages; returns when all are acknowledged."""
        groups: dict[tuple[str, int | None], list[Outgoing]] = defaultdict(list)
        for topic, number, message in messages:
            groups[topic, number].append(message)
        sends = [
            asyncio.ensure_future(self._producer.send_many(topic, group, queue=queue))
            for (topic, queue), group in groups.items()
        ]
        try:
            await asyncio.gather(*sends)
        finally:
            for send in sends:
                send.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*sends, return_exceptions=True)


def _outgoing(row: dict[str, Any]) -> Outgoing:
    body = row["body"]
    if body is None:
        raise InvalidArgumentError("its body is null")
    properties = {name: value for name, value in row.get("properties") or () if value and name not in RESERVED}
    return Outgoing(
        body.encode() if isinstance(body, str) else body,
        tags=row.get("tags") or None,
        keys=row.get("keys") or None,
        properties=properties or None,
    )


def _is_like(found: DataType, wanted: DataType) -> bool:
    """Return whether a type is the same, whether it may be null or not."""
    return found.simpleString() == wanted.simpleString()


class TopicWriter(_Writer, DataSourceArrowWriter):
    """Writes a batch.

    Raises:
        OptionError: as `_Writer`, or an idempotent write has no `writeId`.
    """

    def __init__(self, options: Options, access: Access, schema: StructType) -> None:
        super().__init__(options, access, schema)
        if self._is_idempotent and not self._write_id:
            raise OptionError("idempotent=true needs writeId, the same whenever the job runs again")
        self._plan()

    def _identity(self) -> Identity:
        context = TaskContext.get()
        return Identity(self._write_id, 0, context.partitionId() if context else 0)


class TopicStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes micro-batches; one that Spark repeats is sent again. Its query has an id.

    Raises:
        OptionError: as `_Writer`, or a `writeId` is given: batch 0 of another query would be taken for its own.
    """

    def __init__(self, options: Options, access: Access, schema: StructType) -> None:
        super().__init__(options, access, schema)
        if self._write_id:
            raise OptionError("writeId is for batches: a stream has the id that its checkpoint keeps")
        self._plan()

    def _identity(self) -> Identity:
        context = TaskContext.get()
        assert context is not None, "a stream is written by tasks"
        query, batch = (context.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
        if not query or batch is None:
            raise OptionError("this Spark does not tell a task its query and batch: write without idempotent=true")
        return Identity(query, int(batch), context.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: messages that a task has sent are stored."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: messages that a task has sent stay stored."""
