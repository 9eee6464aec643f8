"""Audit: compares producers' outcomes with every replica's log; one row for each finding.

    history (JSON Lines) --+
                           +--> one sort by key --> findings --> verdict
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

All steps are Spark windows or aggregations, which spill to disk: memory does not grow with the input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from ledgermq.history import FIELDS_SQL, Outcome
from ledgermq.spark.errors import OptionError
from ledgermq.spark.log_files import local_path
from ledgermq.spark.store_source import DIGEST_OFFSETS

KINDS: Final = ("lost", "duplicated", "reordered", "divergent", "phantom", "misplaced", "hole")
_PLACE: Final = ["topic", "queue_id", "queue_offset"]
_OUTCOMES: Final = f"array({', '.join(repr(each.value) for each in (Outcome.FAIL, Outcome.INFO, Outcome.OK))})"
"""Outcomes from the worst to the best: 1, 2, 3."""
_KEPT: Final = StorageLevel.DISK_ONLY
_REPLICAS_MAX: Final = 60
_COLUMNS: Final = ["kind", "topic", "queue_id", "queue_offset", "key", "producer", "sequence", "replicas", "detail"]


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

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
        """Whether nothing was found."""
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
        topics: topics to compare; with a history at least those that it names.
        copies: logs that must hold an acknowledged message; None: the majority of `stores`.

    Raises:
        OptionError: no store, too many, a store twice, a URI, or more copies than stores.
    """
    stores, copies = list(stores), copies_needed(stores, copies)
    told = _history(spark, history) if history else None
    if told is not None and not topics:
        topics = [row.topic for row in told.select("topic").distinct().collect()]
    digests = _digests(spark, stores, topics).persist()
    records = _records(spark, stores, topics, digests).persist(_KEPT)
    kept, parts = [digests, records], [*_divergent_and_holes(records, stores)]
    acknowledged = 0
    if told is not None:
        joined = _joined(told, records, copies).persist(_KEPT)
        kept.append(joined)
        parts += [
            _lost(joined, stores, copies), _misplaced(joined), _phantoms(joined, stores), _duplicates(joined, stores),
            _reordered(joined),
        ]  # fmt: skip
        acknowledged = joined.where(fn.col("outcome") == Outcome.OK.value).count()
    findings = parts[0]
    for part in parts[1:]:
        findings = findings.unionByName(part)
    findings = findings.persist()
    counts = dict.fromkeys(KINDS, 0) | {row.kind: row["count"] for row in findings.groupBy("kind").count().collect()}
    sizes = {
        row.broker: row.records for row in digests.groupBy("broker").agg(fn.sum("records").alias("records")).collect()
    }
    for each in kept:
        each.unpersist()
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

    Columns: topic, queue_id, queue_offset, key, crc, stores (bits: which stores hold it; of runs that differ one each).
    """
    run = ["topic", "queue_id", "bucket"]
    runs = digests.groupBy(run).agg(fn.countDistinct("digest").alias("kinds"), fn.count("*").alias("holders"))
    differing = runs.where((fn.col("kinds") > 1) | (fn.col("holders") < len(stores))).select(run)
    bounds = differing.agg(
        fn.collect_set("topic").alias("topics"),
        fn.concat_ws(",", fn.collect_set(fn.col("queue_id").cast("string"))).alias("queues"),
        fn.min("bucket").alias("first"),
        fn.max("bucket").alias("last"),
    ).collect()[0]
    names = "topic,broker,queue_id,queue_offset,msg_id,record_crc"
    bucket = (fn.col("queue_offset") / DIGEST_OFFSETS).cast("bigint")

    def chosen(rows: DataFrame, bits: Any) -> DataFrame:
        return rows.select(*_PLACE, fn.col("msg_id").alias("key"), fn.col("record_crc").alias("crc"), bits)

    first = _read(spark, stores[:1], topics, columns=names).withColumn("bucket", bucket)
    everywhere = fn.lit(_everywhere(stores)).cast("bigint").alias("stores")
    if not bounds.topics:
        return chosen(first, everywhere)
    limits = {
        "queueIds": bounds.queues,
        "startingOffset": str(bounds["first"] * DIGEST_OFFSETS),
        "endingOffset": str((bounds["last"] + 1) * DIGEST_OFFSETS),
    }
    each = _read(spark, stores, bounds.topics, columns=names, **limits).withColumn("bucket", bucket)
    equal = chosen(first.join(fn.broadcast(differing), run, "left_anti"), everywhere)
    own = fn.expr("shiftleft(1L, cast(broker as int))").alias("stores")
    return equal.unionByName(chosen(each.join(fn.broadcast(differing), run, "left_semi"), own))


def _everywhere(stores: Sequence[str]) -> int:
    return (1 << len(stores)) - 1


def _joined(told: DataFrame, records: DataFrame, copies: int) -> DataFrame:
    """Return sends and records in one table, with what is known of all rows of their key; `stores` is null in sends.

    held: bits of the stores that have the key; is_single: all its records have one place, which is queue and place;
    best: the best outcome of its sends; least and most: their sequences; is_shared: several producers have sent it. A
    send is plain if it was acknowledged, and enough stores have its key where the acknowledgement says, and nowhere
    else. Records of which nothing more is asked are left out. The order is that of a number, the hash, since most keys
    begin alike.
    """
    sends = told.select(*_PLACE, "key", "producer", "sequence", "outcome", "tries")
    both = sends.unionByName(records, allowMissingColumns=True).withColumn("hash", fn.xxhash64("key", "topic"))
    same = Window.partitionBy("hash", "key", "topic")
    queue, place = (fn.when(fn.col("stores").isNotNull(), fn.col(name)) for name in ("queue_id", "queue_offset"))
    known = {
        "held": fn.expr("bit_or(stores)"),
        "best": fn.max(fn.expr(f"array_position({_OUTCOMES}, outcome)")),
        "queue": fn.min(queue),
        "place": fn.min(place),
        "last_queue": fn.max(queue),
        "last_place": fn.max(place),
        "least": fn.min("sequence"),
        "most": fn.max("sequence"),
        "one": fn.min("producer"),
        "other": fn.max("producer"),
    }
    rows = both.withColumns({name: value.over(same) for name, value in known.items()})
    rows = rows.withColumn("is_single", fn.expr("queue = last_queue and place = last_place"))
    rows = rows.withColumn("is_shared", fn.expr("coalesce(one != other, false)"))
    plain = (
        f"stores is null and outcome = '{Outcome.OK.value}' and is_single and queue_id = queue and queue_offset = place"
        f" and bit_count(held) >= {copies}"
    )
    rows = rows.withColumn("is_plain", fn.expr(f"coalesce({plain}, false)"))
    rows = rows.where("stores is null or not is_single or coalesce(best, 0) < 2")
    return rows.drop("hash", "last_queue", "last_place", "one", "other")


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


def _divergent_and_holes(records: DataFrame, stores: Sequence[str]) -> tuple[DataFrame, DataFrame]:
    """Find queue offsets with different records, and missing ones.

    Both begin with blocks of 64 offsets, and a bit for each that is there, so that only few are looked at one by one.
    """
    at = ["topic", "queue_id", "block"]
    rows = records.withColumn("block", fn.expr("shiftright(queue_offset, 6)"))
    blocks = rows.groupBy(*at, "stores").agg(
        fn.min("queue_offset").alias("low"),
        fn.max("queue_offset").alias("high"),
        fn.expr("bit_or(shiftleft(1L, cast(queue_offset & 63 as int)))").alias("seen"),
        fn.count("*").alias("records"),
    )
    doubles = blocks.where("records > bit_count(seen)").select(*at, fn.lit(True).alias("is_double"))
    some = rows.join(fn.broadcast(doubles.distinct()), at, "left")
    some = some.where((fn.col("stores") != _everywhere(stores)) | fn.col("is_double"))
    return _divergent(some, stores), _holes(blocks, stores)


def _divergent(records: DataFrame, stores: Sequence[str]) -> DataFrame:
    several = records.groupBy(_PLACE).agg(
        fn.countDistinct("key", "crc").alias("kinds"),
        fn.expr("bit_or(stores)").alias("stores"),
        fn.min("key").alias("key"),
    )
    detail = fn.concat(fn.col("kinds").cast("string"), fn.lit(" different records"))
    return _finding(several.where("kinds > 1"), "divergent", replicas=_names(stores, fn.col("stores")), detail=detail)


def _holes(blocks: DataFrame, stores: Sequence[str]) -> DataFrame:
    """Find queue offsets that are missing inside one store; a queue's first offset may be any."""
    whole = "array(struct(low, high))"
    pieces = (
        "transform(filter(sequence(low, high), at -> getbit(seen, cast(at & 63 as int)) = 1),"
        " at -> struct(at as low, at as high))"
    )
    ranges = blocks.select(
        "topic", "queue_id", "stores", fn.expr(f"inline(if(bit_count(seen) = high - low + 1, {whole}, {pieces}))")
    )
    numbers = fn.array(*[fn.when(fn.col("stores").bitwiseAND(1 << n) != 0, fn.lit(n)) for n in range(len(stores))])
    each = ranges.withColumn("number", fn.explode(numbers)).where("number is not null")
    before = fn.lag("high").over(Window.partitionBy("number", "topic", "queue_id").orderBy("low"))
    gaps = each.withColumn("missing", fn.col("low") - before - 1).where("missing > 0")
    detail = fn.concat(fn.col("missing").cast("string"), fn.lit(" offsets are missing before it"))
    store = fn.element_at(fn.array(*[fn.lit(name) for name in stores]), fn.col("number") + 1)
    return _finding(gaps, "hole", replicas=store, detail=detail, queue_offset=fn.col("low"))


def _acknowledged(joined: DataFrame) -> DataFrame:
    return joined.where((fn.col("outcome") == Outcome.OK.value) & ~fn.col("is_plain"))


def _lost(joined: DataFrame, stores: Sequence[str], copies: int) -> DataFrame:
    count = fn.bit_count(fn.coalesce("held", fn.lit(0).cast("bigint")))
    detail = fn.concat(fn.lit("in "), count.cast("string"), fn.lit(f" of {len(stores)} logs, {copies} are needed"))
    found = _acknowledged(joined).where(count < copies)
    return _finding(found, "lost", replicas=_names(stores, fn.col("held")), detail=detail)


def _misplaced(joined: DataFrame) -> DataFrame:
    """Find messages that are in a log, but not where their acknowledgement says."""
    there = fn.count("stores").over(Window.partitionBy(*_PLACE, "key"))
    found = _acknowledged(joined.where("held is not null and not is_plain").withColumn("there", there))
    found = found.where("if(is_single, not (queue_id <=> queue and queue_offset <=> place), there = 0)")
    return _finding(found, "misplaced", detail=fn.lit("its key is at another offset"))


def _phantoms(joined: DataFrame, stores: Sequence[str]) -> DataFrame:
    never = joined.where("stores is not null and coalesce(best, 0) < 2")
    found = never.groupBy(*_PLACE, "key", "crc").agg(fn.expr("bit_or(stores)").alias("stores"))
    detail = fn.lit("never sent, or refused")
    return _finding(found, "phantom", replicas=_names(stores, fn.col("stores")), detail=detail)


def _duplicates(joined: DataFrame, stores: Sequence[str]) -> DataFrame:
    is_record = fn.col("stores").isNotNull()
    offsets = fn.when(is_record, fn.col("queue_offset"))
    found = (
        joined.where("not is_single and best is not null")
        .groupBy("topic", "key")
        .agg(
            fn.countDistinct(fn.when(is_record, fn.col("queue_id")), offsets).alias("offsets"),
            fn.min("queue").alias("queue_id"),
            fn.min("place").alias("queue_offset"),
            fn.min("held").alias("held"),
            fn.max("tries").alias("tries"),
            fn.first("producer", ignorenulls=True).alias("producer"),
            fn.first("sequence", ignorenulls=True).alias("sequence"),
        )
    )
    tried = fn.when(fn.col("tries") > 1, "tried again after no answer").otherwise("never tried again")
    detail = fn.concat(fn.lit("at "), fn.col("offsets").cast("string"), fn.lit(" offsets; "), tried)
    return _finding(found, "duplicated", replicas=_names(stores, fn.col("held")), detail=detail)


def _reordered(joined: DataFrame) -> DataFrame:
    """Compare sequences along each queue, of keys that are there once; others are duplicates.

    Any of a key's sends may have stored it: a key is reordered if all its sequences are below all of an earlier one. Of
    a key that several producers have sent, only the sends count that were acknowledged where it is. If several were,
    any of them may be the one in the log: it is reordered if it is for each of them, and makes no other key so.
    """
    rows = joined.where("stores is null and is_single")
    key = Window.partitionBy("topic", "key")
    own = Window.partitionBy("topic", "key", "producer")
    told = f"outcome = '{Outcome.OK.value}' and queue_id = queue and queue_offset = place"
    shared = rows.where(f"is_shared and {told}").withColumns(
        {
            "least": fn.min("sequence").over(own),
            "most": fn.max("sequence").over(own),
            "tellers": fn.size(fn.collect_set("producer").over(key)),
        }
    )
    rows = rows.where("not is_shared").withColumn("tellers", fn.lit(1)).unionByName(shared).where("sequence = most")
    order = Window.partitionBy("topic", "queue", "producer").orderBy("place", "least")
    sure = fn.when(fn.col("tellers") == 1, fn.col("least"))
    rows = rows.withColumn("highest", fn.max(sure).over(order.rowsBetween(Window.unboundedPreceding, -1)))
    found = rows.where("sequence < highest").withColumn("falling", fn.size(fn.collect_set("producer").over(key)))
    detail = fn.concat(fn.lit("after sequence "), fn.col("highest").cast("string"))
    place = {"queue_id": fn.col("queue"), "queue_offset": fn.col("place")}
    return _finding(found.where("falling = tellers"), "reordered", detail=detail, **place).distinct()
