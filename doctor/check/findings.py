"""What a check finds: faults, each with its place, and notes, which are no faults."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """Something that is wrong. `offset` counts bytes in the file; `kind` is one of KINDS."""

    file: str
    offset: int
    kind: str
    detail: str


BEHIND = "behind the log's end"
"""In the details of faults that point there."""

KINDS = {
    "missing-file": "a file of a row is not there",
    "bad-length": "a file is shorter or longer than its neighbours",
    "bad-name": "a file that does not belong there",
    "read-error": "the disk does not give these bytes",
    "bad-record": "no record can be framed there, though records follow",
    "bad-body": "the body, or the whole record, fails its CRC",
    "bad-number": "a queue offset that its neighbours, or reason, forbid",
    "bad-topic": "a topic that cannot name a queue's folder",
    "torn-tail": "bytes behind the log's last record that are none",
    "torn-properties": "properties that lost bytes which a queue or the index still knows",
    "bad-entry": "a DLedger header that breaks the row: position, index, term or size",
    "queue-missing": "units that should be there are not",
    "queue-wrong": "units that say something else than their records",
    "queue-dangling": "units that point where no record is",
    "ext-wrong": "a unit's extension is not there, or is another message's",
    "index-missing": "keys of records that the index does not know",
    "index-wrong": "index entries that no record's key explains",
    "index-chain": "slots or back links that lead nowhere, or astray",
    "index-header": "counts or bounds that contradict the entries",
    "unit-missing": "DLedger index units that are not there",
    "unit-wrong": "DLedger index units that contradict their entries",
    "checkpoint-missing": "no checkpoint though there are records",
    "checkpoint-wrong": "a checkpoint that is empty, too long, or ahead of the log",
    "term-missing": "no currterm though there are entries",
    "term-wrong": "currterm unreadable, or behind the last entry's term",
    "config-wrong": "a JSON file that cannot be read",
    "timer-wrong": "the timer log or wheel breaks off or points astray",
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
        """The faults in order of file and offset."""
        return [asdict(fault) for fault in sorted(self.faults)]
