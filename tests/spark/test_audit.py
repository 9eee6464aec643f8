"""The audit finds each planted error, and nothing on sound logs."""

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ledgermq.history import HistoryError, Outcome, Send, parse_line
from ledgermq.message.record import Record
from ledgermq.spark.audit import KINDS, audit
from tests.spark.logs import record, write_log

pytestmark = pytest.mark.timeout(600)


@dataclass
class Run:
    """Three replicas' records and the history of their producers; `write` puts them on disk."""

    replicas: list[list[Record]] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)

    def write(self, root: Path) -> tuple[list[str], list[str]]:
        for number, records in enumerate(self.replicas):
            write_log(root / f"n{number}", records, file_size=1 << 20)
        history = root / "history.jsonl"
        history.write_bytes(b"".join(send.line() for send in self.sends))
        return [str(root / f"n{number}") for number in range(len(self.replicas))], [str(history)]


def sound_run(count: int) -> Run:
    """Two producers send to three queues; some sends got no answer, and some of those are in the log."""
    source, run = random.Random(1), Run()
    ends, records = Counter[int](), []
    for sequence in range(count):
        producer, queue_id, key = f"p{sequence % 2}", source.randrange(3), f"K{sequence}"
        outcome = source.choices([Outcome.OK, Outcome.INFO, Outcome.FAIL], [96, 2, 2])[0]
        is_stored = outcome is Outcome.OK or (outcome is Outcome.INFO and source.random() < 0.5)
        place = (queue_id, ends[queue_id]) if outcome is Outcome.OK else (None, None)
        run.sends.append(Send(producer, sequence, key, "T", outcome, *place))
        if is_stored:
            properties = f"UNIQ_KEY\x01{key}\x02".encode()
            records.append(record(ends[queue_id], queue_id=queue_id, body=key.encode() * 3, properties=properties))
            ends[queue_id] += 1
    run.replicas = [list(records) for _ in range(3)]
    return run


def findings(spark: SparkSession, run: Run, root: Path) -> tuple[dict[str, int], list[tuple[object, ...]]]:
    stores, history = run.write(root)
    found = audit(spark, stores, history)
    rows = found.findings.orderBy("kind", "queue_id", "queue_offset").collect()
    return {kind: n for kind, n in found.counts.items() if n}, [(r.kind, r.key, r.queue_offset) for r in rows]


def test_sound_replicas_have_no_findings(spark: SparkSession, tmp_path: Path) -> None:
    run = sound_run(3000)
    run.replicas[2] = run.replicas[2][:-40]  # it lags: no loss while two of three hold everything
    for number, send in enumerate(run.sends[500:2500:50]):  # tries with sequences of their own, earlier and later ones
        other = send.sequence + (500, -500)[number % 2]  # type: ignore[operator]
        untold = replace(send, outcome=Outcome.INFO, queue_id=None, queue_offset=None)
        run.sends += [replace(untold, sequence=other), replace(untold, producer="p9", sequence=3000 - number)]
    stores, history = run.write(tmp_path)
    found = audit(spark, stores, history)
    assert found.is_sound, found.findings.collect()
    assert found.counts == dict.fromkeys(KINDS, 0)
    assert list(found.records.values()) == [len(records) for records in run.replicas]
    assert found.acknowledged == sum(send.outcome is Outcome.OK for send in run.sends)
    assert audit(spark, stores).is_sound
    strict = audit(spark, stores, history, copies=3)
    lagging = {f"{each.property_map['UNIQ_KEY']}" for each in run.replicas[0][-40:]}
    told = {send.key for send in run.sends if send.outcome is Outcome.OK}
    assert {row.key for row in strict.findings.collect()} == lagging & told
    assert strict.counts["lost"] == len(lagging & told)


def test_every_planted_error_is_found_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    run = sound_run(3000)
    acknowledged = [send for send in run.sends if send.outcome is Outcome.OK and send.queue_id == 1]
    lost, divergent, tried, misplaced = (acknowledged[n] for n in (100, 200, 300, 500))
    ends = Counter(each.queue_id for each in run.replicas[0])

    def place(send: Send) -> int:
        return next(n for n, each in enumerate(run.replicas[0]) if each.property_map["UNIQ_KEY"] == send.key)

    def stored(key: str, queue_id: int) -> Record:
        ends[queue_id] += 1
        properties = f"UNIQ_KEY\x01{key}\x02".encode()
        return record(ends[queue_id] - 1, queue_id=queue_id, body=b"planted", properties=properties)

    extra = [stored(tried.key, 0), stored("NEVER-SENT", 0)]
    twice = replace(extra[1], queue_offset=64)  # all replicas have it, at an offset where another record is
    extra[1] = twice
    ends[0] -= 1
    beside = next(each for each in run.replicas[0] if (each.queue_id, each.queue_offset) == (0, 64))
    ends[2] += 70  # a hole in all replicas, longer than a block of offsets
    late = Send("p0", 1_000_000, "LATE", "T", Outcome.OK, 2, ends[2])
    early = Send("p0", 999_999, "EARLY", "T", Outcome.OK, 2, ends[2] + 1)
    extra += [stored("LATE", 2), stored("EARLY", 2)]
    untold = replace(early, outcome=Outcome.INFO, queue_id=None, queue_offset=None)
    run.sends += [
        late,
        early,
        untold,
        replace(untold, sequence=999_998),
        replace(untold, producer="p1", sequence=2_000_000),
    ]
    run.sends[run.sends.index(tried)] = replace(tried, tries=2)
    run.sends[run.sends.index(misplaced)] = replace(misplaced, queue_offset=misplaced.queue_offset + 1)  # type: ignore[operator]
    for number, records in enumerate(run.replicas):
        records += extra
        if number == 1:
            at = place(divergent)
            records[at] = replace(records[at], body=b"x" * len(records[at].body))
            records[at] = replace(records[at], body_crc=record(body=records[at].body).body_crc)
    for records in run.replicas[1:]:
        del records[place(lost)]  # two of three lost it: the same index in all, for nothing was deleted before it
    counts, rows = findings(spark, run, tmp_path)
    assert rows == [
        ("divergent", beside.property_map["UNIQ_KEY"], 64),
        ("divergent", divergent.key, divergent.queue_offset),
        ("duplicated", tried.key, rows[2][2]),
        ("hole", None, (lost.queue_offset or 0) + 1),
        ("hole", None, (lost.queue_offset or 0) + 1),
        *[("hole", None, late.queue_offset)] * 3,
        ("lost", lost.key, lost.queue_offset),
        ("misplaced", misplaced.key, (misplaced.queue_offset or 0) + 1),
        ("phantom", "NEVER-SENT", 64),
        ("reordered", "EARLY", extra[3].queue_offset),
    ]
    assert counts == {
        "divergent": 2,
        "duplicated": 1,
        "hole": 5,
        "lost": 1,
        "misplaced": 1,
        "phantom": 1,
        "reordered": 1,
    }


def test_a_key_of_several_producers_is_reordered_if_it_is_for_each_that_was_told_its_place(
    spark: SparkSession, tmp_path: Path
) -> None:
    def told(topic: str, producer: str, sequence: int, offset: int, told_offset: int | None = None) -> Send:
        place = offset if told_offset is None else told_offset
        return Send(producer, sequence, f"{topic}{offset}", topic, Outcome.OK, 0, place)

    sends = [
        told("Sound", "p0", 5, 0),
        told("Sound", "p1", 500, 0),
        told("Sound", "p0", 6, 1),
        told("Unsure", "p0", 500, 0),
        told("Unsure", "p1", 5, 0),
        told("Unsure", "p0", 6, 1),
        told("Unsure", "p0", 5, 2),
        told("Unsure", "p1", 6, 2),
        told("Falls", "p0", 9, 0),
        told("Falls", "p1", 500, 1),
        told("Falls", "p0", 8, 2),
        told("Falls", "p1", 499, 2),
        told("Elsewhere", "p0", 9, 0, 1),
        told("Elsewhere", "p1", 1, 0),
        told("Elsewhere", "p0", 8, 1),
    ]
    keys = dict.fromkeys((send.topic, int(send.key[-1]), send.key) for send in sends)
    records = [record(at, topic=topic, properties=f"UNIQ_KEY\x01{key}\x02".encode()) for topic, at, key in keys]
    counts, rows = findings(spark, Run([records], sends), tmp_path)
    assert rows == [("misplaced", "Elsewhere0", 1), ("reordered", "Falls2", 2), ("reordered", "Falls2", 2)]
    assert counts == {"misplaced": 1, "reordered": 2}


def test_a_line_of_a_history_is_read_as_it_was_written() -> None:
    send = Send("p", 7, "K", "T", Outcome.OK, 1, 42, 123, 2)
    assert parse_line(send.line()) == send


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"{", "unexpected end"),
        (b"[]", "not a mapping"),
        (b'{"producer":"p"}', "outcome"),
        (b'{"producer":"p","sequence":1,"key":"k","topic":"T","outcome":"maybe"}', "maybe"),
        (b'{"producer":"p","sequence":1,"key":"k","topic":"T","outcome":"ok"}', "without queue_id"),
        (b'{"producer":"p","sequence":1,"key":"k","topic":"T","outcome":"fail","more":1}', "more"),
    ],
)
def test_a_line_that_is_none_is_refused(line: bytes, text: str) -> None:
    with pytest.raises(HistoryError, match=text):
        parse_line(line)
