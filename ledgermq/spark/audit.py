"""Audit: what producers were told against every replica's log, one row for each finding.

    history (JSON Lines) --+
                           +--> join on topic, queue, offset and on key --> findings --> verdict
    replica 0..n ----------+    digests first: only runs of 4,096 offsets whose digests differ are compared by record

| finding | meaning |
|---|---|
| lost | acknowledged, and in fewer replicas' logs than `copies` asks for |
| duplicated | one key at several offsets; `detail` says whether its producer ever tried twice |
| reordered | a producer's sequence falls while the queue offset rises |
| divergent | replicas hold different records at one queue offset |
| phantom | in the log, but never sent, or refused |
| misplaced | acknowledged at an offset where another message is |
| hole | a queue offset that is missing between two that are there, in one replica |

Everything is a Spark join or aggregation, which spills to disk: memory does not grow with the input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from ledgermq.history import FIELDS_SQL, Outcome
from ledgermq.spark.errors import OptionError
from ledgermq.spark.log_files import local_path
from ledgermq.spark.store_source import DIGEST_OFFSETS

KINDS: Final = ("lost", "duplicated", "reordered", "divergent", "phantom", "misplaced", "hole")
_PLACE: Final = ["topic", "queue_id", "queue_offset"]
_REPLICAS_MAX: Final = 60
_COLUMNS: Final = ["kind", "topic", "queue_id", "queue_offset", "key", "producer", "sequence", "replicas", "detail"]


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
        findings: a row for each: kind, topic, queue_id, queue_offset, key, producer, sequence, replicas (names of the
            stores that hold it), detail. Null where it does not apply.
        counts: number of findings by kind; every kind is there.
        records: records compared, by store.
        acknowledged: messages of the history that were acknowledged; 0 without a history.
    """

    findings: DataFrame
    counts: dict[str, int]
    records: dict[str, int]
    acknowledged: int

    @property
    def is_sound(self) -> bool:
        """Nothing was found."""
        return not any(self.counts.values())


def audit(
    spark: SparkSession,
    stores: Sequence[str],
    history: Sequence[str] = (),
    *,
    topics: Sequence[str] = (),
    copies: int | None = None,
) -> Audit:
    """Compare the stores of one group's replicas with each other, and with a history.

    Args:
        spark: with the formats registered.
        stores: directories; their nodes must be stopped, or the ends of their logs differ.
        history: files of JSON Lines, see `ledgermq.history`.
        topics: the only ones to look at; with a history at least those that it names.
        copies: logs that must hold an acknowledged message; None: the majority of `stores`.

    Raises:
        OptionError: no store, too many, a store twice, a URI, or more copies than stores.
    """
    stores, copies = list(stores), copies_needed(stores, copies)
    told = _history(spark, history) if history else None
    if told is not None and not topics:
        topics = [row.topic for row in told.select("topic").distinct().collect()]
    digests = _digests(spark, stores, topics).persist()
    records = _records(spark, stores, topics, digests).persist()
    places = _places(records).persist()
    parts = [_divergent(places, stores), _holes(records, stores)]
    if told is not None:
        told = told.persist()
        parts += [
            _lost(told, places, stores, copies), _misplaced(told, places), _phantoms(told, places, stores),
            _duplicates(told, places, stores), _reordered(told, places),
        ]  # fmt: skip
    findings = parts[0]
    for part in parts[1:]:
        findings = findings.unionByName(part)
    findings = findings.persist()
    counts = dict.fromkeys(KINDS, 0) | {row.kind: row["count"] for row in findings.groupBy("kind").count().collect()}
    sizes = {
        row.broker: row.records for row in digests.groupBy("broker").agg(fn.sum("records").alias("records")).collect()
    }
    acknowledged = 0 if told is None else told.where(fn.col("outcome") == Outcome.OK.value).count()
    return Audit(findings, counts, {store: sizes.get(str(n), 0) for n, store in enumerate(stores)}, acknowledged)


def copies_needed(stores: Sequence[str], copies: int | None) -> int:
    """Return how many logs must hold an acknowledged message.

    Raises:
        OptionError: see `audit`.
    """
    if not 1 <= len(stores) <= _REPLICAS_MAX:
        raise OptionError(f"{len(stores)} stores: give 1 to {_REPLICAS_MAX}")
    folders = [local_path(store).resolve() for store in stores]
    for store, folder in zip(stores, folders, strict=True):
        if folders.count(folder) > 1:
            raise OptionError(f"{store} is given twice: each store is a replica of its own")
    copies = len(stores) // 2 + 1 if copies is None else copies
    if not 1 <= copies <= len(stores):
        raise OptionError(f"{copies} copies of {len(stores)} stores")
    return copies


def _history(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    lines = spark.read.schema(FIELDS_SQL).option("mode", "FAILFAST").json(list(paths))
    return lines.where(fn.col("op").isNull()).drop("op")


def _read(spark: SparkSession, stores: Sequence[str], topics: Sequence[str], **options: str) -> DataFrame:
    names = ",".join(str(number) for number in range(len(stores)))
    reader = spark.read.format("ledgermq-store").options(broker=names, allowReplicas="true", **options)
    return (reader.option("topics", ",".join(topics)) if topics else reader).load(list(stores))


def _digests(spark: SparkSession, stores: Sequence[str], topics: Sequence[str]) -> DataFrame:
    found = _read(spark, stores, topics, mode="digests")
    keys = ["broker", "topic", "queue_id", "bucket"]
    return found.groupBy(keys).agg(fn.sum("records").alias("records"), fn.sum("digest").alias("digest"))


def _records(spark: SparkSession, stores: Sequence[str], topics: Sequence[str], digests: DataFrame) -> DataFrame:
    """Return the records that must be compared: of runs that are equal everywhere only those of the first store.

    Columns: topic, queue_id, queue_offset, key, crc, stores (bits: which stores hold it like this).
    """
    run = ["topic", "queue_id", "bucket"]
    runs = digests.groupBy(run).agg(fn.countDistinct("digest").alias("kinds"), fn.count("*").alias("holders"))
    differing = runs.where((fn.col("kinds") > 1) | (fn.col("holders") < len(stores)))
    differing = differing.select(*run, fn.lit(1).alias("differs"))
    rows = _read(spark, stores, topics, columns="topic,broker,queue_id,queue_offset,msg_id,record_crc")
    rows = rows.withColumn("bucket", (fn.col("queue_offset") / DIGEST_OFFSETS).cast("bigint"))
    rows = rows.join(fn.broadcast(differing), run, "left").where("differs = 1 or broker = '0'")
    own = fn.expr("shiftleft(1L, cast(broker as int))")
    everything = fn.lit((1 << len(stores)) - 1).cast("bigint")
    return rows.select(
        *_PLACE,
        fn.col("msg_id").alias("key"),
        fn.col("record_crc").alias("crc"),
        fn.when(fn.col("differs") == 1, own).otherwise(everything).alias("stores"),
    )


def _places(records: DataFrame) -> DataFrame:
    """Return a row for each record at each queue offset: the same record in several stores is one row."""
    return records.groupBy([*_PLACE, "key", "crc"]).agg(fn.expr("bit_or(stores)").alias("stores"))


def _finding(found: DataFrame, kind: str, **columns: Any) -> DataFrame:
    given = {"kind": fn.lit(kind), **columns}
    types = {"queue_id": "int", "queue_offset": "bigint", "sequence": "bigint"}
    return found.select(
        *[
            (given[name] if name in given else fn.col(name) if name in found.columns else fn.lit(None))
            .cast(types.get(name, "string"))
            .alias(name)
            for name in _COLUMNS
        ]
    )


def _names(stores: Sequence[str], bits: Any) -> Any:
    named = [fn.when(bits.bitwiseAND(1 << number) != 0, fn.lit(store)) for number, store in enumerate(stores)]
    return fn.concat_ws(", ", *named)


def _divergent(places: DataFrame, stores: Sequence[str]) -> DataFrame:
    several = places.groupBy(_PLACE).agg(
        fn.count("*").alias("kinds"), fn.expr("bit_or(stores)").alias("stores"), fn.min("key").alias("key")
    )
    detail = fn.concat(fn.col("kinds").cast("string"), fn.lit(" different records"))
    return _finding(several.where("kinds > 1"), "divergent", replicas=_names(stores, fn.col("stores")), detail=detail)


def _holes(records: DataFrame, stores: Sequence[str]) -> DataFrame:
    """Find queue offsets that are missing inside one store; a queue's first offset may be any."""
    by_store = Window.partitionBy("number", "topic", "queue_id").orderBy("queue_offset")
    numbers = fn.array(*[fn.when(fn.col("stores").bitwiseAND(1 << n) != 0, fn.lit(n)) for n in range(len(stores))])
    each = records.withColumn("number", fn.explode(numbers)).where("number is not null")
    before = fn.lag("queue_offset").over(by_store)
    gaps = each.withColumn("before", before).where("queue_offset - before > 1")
    detail = fn.concat(
        (fn.col("queue_offset") - fn.col("before") - 1).cast("string"), fn.lit(" offsets are missing before it")
    )
    store = fn.element_at(fn.array(*[fn.lit(name) for name in stores]), fn.col("number") + 1)
    return _finding(gaps, "hole", replicas=store, detail=detail, key=fn.lit(None))


def _lost(told: DataFrame, places: DataFrame, stores: Sequence[str], copies: int) -> DataFrame:
    held = places.groupBy("topic", "key").agg(fn.expr("bit_or(stores)").alias("stores"))
    acknowledged = told.where(fn.col("outcome") == Outcome.OK.value)
    found = acknowledged.join(held, ["topic", "key"], "left")
    count = fn.bit_count(fn.coalesce("stores", fn.lit(0).cast("bigint")))
    detail = fn.concat(fn.lit("in "), count.cast("string"), fn.lit(f" of {len(stores)} logs, {copies} are needed"))
    return _finding(found.where(count < copies), "lost", replicas=_names(stores, fn.col("stores")), detail=detail)


def _misplaced(told: DataFrame, places: DataFrame) -> DataFrame:
    """Find messages that are in a log, but not where their acknowledgement says."""
    acknowledged = told.where(fn.col("outcome") == Outcome.OK.value)
    elsewhere = acknowledged.join(places.select("topic", "key").distinct(), ["topic", "key"], "left_semi")
    right = places.select(*_PLACE, "key")
    return _finding(
        elsewhere.join(right, [*_PLACE, "key"], "left_anti"), "misplaced", detail=fn.lit("its key is at another offset")
    )


def _phantoms(told: DataFrame, places: DataFrame, stores: Sequence[str]) -> DataFrame:
    sent = told.where(fn.col("outcome") != Outcome.FAIL.value).select("topic", "key").distinct()
    found = places.join(sent, ["topic", "key"], "left_anti")
    return _finding(
        found, "phantom", replicas=_names(stores, fn.col("stores")), detail=fn.lit("never sent, or refused")
    )


def _duplicates(told: DataFrame, places: DataFrame, stores: Sequence[str]) -> DataFrame:
    at = places.select(*_PLACE, "key", "stores").distinct()
    several = at.groupBy("topic", "key").agg(
        fn.countDistinct("queue_id", "queue_offset").alias("offsets"),
        fn.min("queue_id").alias("queue_id"),
        fn.min("queue_offset").alias("queue_offset"),
        fn.expr("bit_or(stores)").alias("stores"),
    )
    sent = told.groupBy("topic", "key").agg(
        fn.max("tries").alias("tries"), fn.first("producer").alias("producer"), fn.first("sequence").alias("sequence")
    )
    found = several.where("offsets > 1").join(sent, ["topic", "key"])
    tried = fn.when(fn.col("tries") > 1, "tried again after no answer").otherwise("never tried again")
    detail = fn.concat(fn.lit("at "), fn.col("offsets").cast("string"), fn.lit(" offsets; "), tried)
    return _finding(found, "duplicated", replicas=_names(stores, fn.col("stores")), detail=detail)


def _reordered(told: DataFrame, places: DataFrame) -> DataFrame:
    """Compare sequences along each queue, of keys that are there once; others are duplicates."""
    at = places.select(*_PLACE, "key").distinct()
    first = at.groupBy("topic", "key").agg(
        fn.count("*").alias("offsets"),
        fn.first("queue_id").alias("queue_id"),
        fn.first("queue_offset").alias("queue_offset"),
    )
    first = first.where("offsets = 1")
    sent = told.groupBy("topic", "key").agg(
        fn.first("producer").alias("producer"), fn.first("sequence").alias("sequence")
    )
    order = Window.partitionBy("topic", "queue_id", "producer").orderBy("queue_offset")
    highest = fn.max("sequence").over(order.rowsBetween(Window.unboundedPreceding, -1))
    found = first.join(sent, ["topic", "key"]).withColumn("highest", highest).where("sequence < highest")
    detail = fn.concat(fn.lit("after sequence "), fn.col("highest").cast("string"))
    return _finding(found, "reordered", detail=detail)
