"""Errors planted in three replicas of a large log: the audit must find each of them and nothing else.

python -m tests.spark.planted [--records 1000000] [--each 5] [--folder DIR]     exit code 0: exactly these
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ledgermq.history import Outcome, Send
from ledgermq.message.crc import CRC_MASK, crc32
from ledgermq.message.record import encode_record
from ledgermq.spark.audit import audit
from ledgermq.spark.session import make_session
from tests.spark.logs import record

QUEUES = 4
FILE_SIZE = 64 << 20
_BODY_SIZE = 64
_KEY_SIZE = 12
_TEMPLATE = encode_record(
    record(body=bytes(_BODY_SIZE), properties=b"UNIQ_KEY\x01" + b"K" * _KEY_SIZE + b"\x02TAGS\x01a\x02")
)
_BODY_AT, _KEY_AT = 88, _TEMPLATE.index(b"K" * _KEY_SIZE)

Item = tuple[str, int, int, bytes]
"""Key, queue id, queue offset and first bytes of the body of a record."""
Finding = tuple[str, str | None, int]


class Plan:
    """What is in the replicas and the history, and what the audit must say."""

    def __init__(self, count: int, each: int) -> None:
        places = np.linspace(count // 10, count - count // 10, 4 * each).astype(int).tolist()
        self._count = count
        self._lost, self._divergent, self._tried, self._misplaced = (set(places[n::4]) for n in range(4))
        self._extra: list[Item] = []
        self._late: list[Send] = []
        ends = [(count - queue + QUEUES - 1) // QUEUES for queue in range(QUEUES)]
        self.findings: list[Finding] = []

        def add(key: str, queue: int) -> int:
            self._extra.append((key, queue, ends[queue], b"planted"))
            ends[queue] += 1
            return ends[queue] - 1

        for n in sorted(self._lost):
            self.findings += [("lost", _key(n), n // QUEUES), *[("hole", None, n // QUEUES + 1)] * 2]
        self.findings += [("divergent", _key(n), n // QUEUES) for n in self._divergent]
        self.findings += [("misplaced", _key(n), n // QUEUES + 1) for n in self._misplaced]
        for n in sorted(self._tried):
            add(_key(n), (n + 1) % QUEUES)
            # The finding names the smaller queue id and the smaller offset of the copies.
            self.findings.append(("duplicated", _key(n), n // QUEUES))
        for number in range(each):
            self.findings.append(("phantom", f"NEVER{number:07d}", add(f"NEVER{number:07d}", 0)))
            offset = -1
            for place, name in enumerate(("LATE", "EARLY")):
                key = f"{name}{number}".ljust(_KEY_SIZE, ".")
                offset = add(key, 2)
                self._late.append(Send("p0", (count + number) * 10 - place, key, "T", Outcome.OK, 2, offset))
            self.findings.append(("reordered", self._late[-1].key, offset))

    def items(self, replica: int) -> Iterator[Item]:
        """Yield the records of a replica, 0 to 2."""
        for n in range(self._count):
            if replica and n in self._lost:
                continue
            body = b"different" if replica == 1 and n in self._divergent else b"%09d" % n
            yield _key(n), n % QUEUES, n // QUEUES, body
        yield from self._extra

    def sends(self) -> Iterator[Send]:
        """Yield the history."""
        for n in range(self._count):
            offset, tries = n // QUEUES + (n in self._misplaced), 2 if n in self._tried else 1
            yield Send(f"p{n % 2}", n, _key(n), "T", Outcome.OK, n % QUEUES, offset, None, tries)
        yield from self._late

    def write(self, root: Path) -> tuple[list[str], list[str]]:
        """Write the replicas and the history; returns their paths."""
        stores = [root / f"n{replica}" for replica in range(3)]
        for replica, store in enumerate(stores):
            _write_log(store / "commitlog", self.items(replica))
        with (root / "history.jsonl").open("wb") as file:
            file.writelines(send.line() for send in self.sends())
        return [str(store) for store in stores], [str(root / "history.jsonl")]


def _key(number: int) -> str:
    return f"K{number:0{_KEY_SIZE - 1}d}"


def _write_log(folder: Path, items: Iterator[Item]) -> None:
    folder.mkdir(parents=True)
    start, data = 0, bytearray()
    for key, queue_id, offset, body in items:
        if len(data) + len(_TEMPLATE) + 8 > FILE_SIZE:
            data += (FILE_SIZE - len(data)).to_bytes(4, "big") + (-875286124).to_bytes(4, "big", signed=True)
            (folder / f"{start:020d}").write_bytes(data.ljust(FILE_SIZE, b"\0"))
            start, data = start + FILE_SIZE, bytearray()
        content = body.ljust(_BODY_SIZE, b".")
        at, made = start + len(data), bytearray(_TEMPLATE)
        made[8:12] = (crc32(content) & CRC_MASK).to_bytes(4, "big")
        made[12:16], made[20:28], made[28:36] = (
            queue_id.to_bytes(4, "big"), offset.to_bytes(8, "big"), at.to_bytes(8, "big"),
        )  # fmt: skip
        made[_BODY_AT : _BODY_AT + _BODY_SIZE] = content
        made[_KEY_AT : _KEY_AT + _KEY_SIZE] = key.encode()
        data += made
    (folder / f"{start:020d}").write_bytes(data.ljust(FILE_SIZE, b"\0"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="of each replica")
    parser.add_argument("--each", type=int, default=5, help="errors of each kind")
    parser.add_argument("--folder", type=Path, help="for replicas and history; removed at the end")
    arguments = parser.parse_args()
    plan = Plan(arguments.records, arguments.each)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        began = time.monotonic()
        stores, history = plan.write(Path(folder))
        print(f"written in {time.monotonic() - began:.1f} s", flush=True)
        spark = make_session("planted errors")
        began = time.monotonic()
        found = audit(spark, stores, history)
        rows = [(row.kind, row.key, row.queue_offset) for row in found.findings.collect()]
        print(f"{sum(found.records.values()):,} records audited in {time.monotonic() - began:.1f} s")
        spark.stop()
    wanted, got = sorted(plan.findings, key=str), sorted(rows, key=str)
    print(f"{len(wanted)} findings planted, {len(got)} found: {'as planted' if wanted == got else 'NOT as planted'}")
    for text, some, others in (("not found", wanted, got), ("not planted", got, wanted)):
        for finding in [each for each in some if each not in others][:20]:
            print(f"  {text}: {finding}")
    return 0 if wanted == got else 1


if __name__ == "__main__":
    sys.exit(main())
