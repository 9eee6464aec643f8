"""The results of a check: faults, each with its place, and notes, which are not faults."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One fault. `offset` counts bytes in the file; `kind` is one of KINDS."""

    file: str
    offset: int
    kind: str
    detail: str


BEHIND = "behind the log's end"
"""Part of the details of faults that point there."""

KINDS = {
    "missing-file": "a file of a sequence is missing",
    "bad-length": "a file is shorter or longer than its neighbours",
    "bad-name": "a file that does not belong there",
    "read-error": "the disk cannot read these bytes",
    "bad-record": "no record begins there, though records follow",
    "bad-body": "the body, or the whole record, fails its CRC",
    "bad-number": "a queue offset that is impossible by its neighbours or its size",
    "bad-topic": "a topic that cannot name a queue's folder",
    "torn-tail": "bytes behind the log's last record that are not a record",
    "torn-properties": "properties that have lost bytes, by what a queue or the index has of them",
    "bad-entry": "a DLedger header that does not continue the log: position, index, term or size",
    "queue-missing": "units that should be there are missing",
    "queue-wrong": "units that contradict their records",
    "queue-dangling": "units that point where no record is",
    "ext-wrong": "a unit's extension is missing, or belongs to another message",
    "index-missing": "keys of records without an index entry",
    "index-wrong": "index entries whose record has no such key",
    "index-chain": "slots or links that point at nothing, or at the wrong entry",
    "index-header": "counts or bounds that contradict the entries",
    "unit-missing": "DLedger index units that are missing",
    "unit-wrong": "DLedger index units that contradict their entries",
    "checkpoint-missing": "no checkpoint, though there are records",
    "checkpoint-wrong": "a checkpoint that is empty, too long, or ahead of the log",
    "term-missing": "no currterm, though there are entries",
    "term-wrong": "currterm unreadable, or behind the last entry's term",
    "config-wrong": "a JSON file that cannot be read",
    "timer-wrong": "the timer log or wheel is incomplete or points at nothing",
}


@dataclass(slots=True)
class Findings:
    """Everything found so far. Notes are sentences for people."""

    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, file: str, offset: int, kind: str, detail: str) -> None:
        assert kind in KINDS, kind
        self.faults.append(Fault(file, offset, kind, detail))

    def extend(self, faults: Iterable[Fault]) -> None:
        self.faults.extend(faults)

    def as_json(self) -> list[dict[str, Any]]:
        """Return the faults in the order of file and offset."""
        return [asdict(fault) for fault in sorted(self.faults)]
