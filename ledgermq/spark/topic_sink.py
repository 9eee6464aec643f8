"""`df.write` and `df.writeStream` to `format("ledgermq")`: rows become messages, at least once.

    task   Arrow batch -> messages -> send_many by topic and queue -> all acknowledged -> next batch

| column | type | |
|---|---|---|
| body | binary or string | required; 1 byte to 4 MiB |
| topic | string | unless the option `topic` is given, which wins |
| keys | string or array<string> | |
| tags | string | |
| queue_id | int | rows of one partition with the same queue are stored in their order |
| properties | map<string,string> | names that RocketMQ itself sets are left out |

Other columns are ignored. A task ends only when the cluster has acknowledged every row. A task that Spark repeats sends
its rows again: the copies have message ids of their own.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, MapType, StringType, StructType

from ledgermq.client import InvalidArgumentError, LedgerMQError, Outgoing, Producer, SendManyError
from ledgermq.client.producer.outgoing import RESERVED
from ledgermq.spark.errors import ClusterError, OptionError
from ledgermq.spark.options import Options
from ledgermq.spark.topic_client import Access, LoopThread

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

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send all rows of a task; returns when they are acknowledged.

        Raises:
            ClusterError: not all were acknowledged in time; some may be stored.
            OptionError: a row cannot be a message.
        """
        thread, sent = LoopThread(), 0
        try:
            producer = Producer(
                self._access.namesrv,
                deadline_s=self._access.timeout_ms / 1000,
                tls=self._access.tls,
                credentials=self._access.credentials,
            )
            thread.begin(producer.start()).result()
            try:
                for batch in iterator:
                    thread.begin(self._send(producer, batch)).result()
                    sent += batch.num_rows
            finally:
                thread.begin(producer.close(drain=False)).result()
        except SendManyError as error:
            raise ClusterError(f"{error}: {error.exceptions[0]}") from None
        except InvalidArgumentError as error:
            raise OptionError(f"a row cannot be sent: {error}") from None
        except LedgerMQError as error:
            raise ClusterError(str(error)) from None
        finally:
            thread.close()
        return Sent(sent)

    async def _send(self, producer: Producer, batch: pa.RecordBatch) -> None:
        """Send the rows of one Arrow batch; returns when all are acknowledged."""
        groups: dict[tuple[str, int | None], list[Outgoing]] = defaultdict(list)
        for row in batch.select(self._names).to_pylist():
            topic = self._topic or row["topic"]
            if not topic:
                raise InvalidArgumentError("its topic is null or empty")
            groups[topic, row.get("queue_id")].append(_outgoing(row))
        sends = [
            asyncio.ensure_future(producer.send_many(topic, messages, queue=queue))
            for (topic, queue), messages in groups.items()
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
    """Writes a batch."""


class TopicStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes micro-batches; one that Spark repeats is sent again."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: what a task has sent is stored."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: what a task has sent stays."""
