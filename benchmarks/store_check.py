"""How fast is `ledgermq store check`? A clean classic store of 1 KiB records, checked by one process and by one a core.

    python benchmarks/store_check.py [--megabytes 512] [--body 1024] [--directory /dev/shm]

Prints one JSON line: bytes of the log a second by the clock and by one core's time, and the faults (none).
"""

import argparse
import json
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import numpy as np

from doctor.check.columns import Ints
from doctor.check.run import check_store, scan_file
from doctor.read.directory import open_layout
from doctor.read.unit_files import QUEUE_UNIT
from doctor.repair.rebuild_index import IndexRebuilder
from ledgermq.message.draft import RecordDraft
from ledgermq.message.hashing import tags_code
from ledgermq.message.index_unit import IndexLayout
from ledgermq.message.record import BLANK_MAGIC
from store.directory.checkpoint import StoreCheckpoint

HOST = bytes((10, 0, 0, 1)) + struct.pack(">i", 10911)
QUEUES = 8
FILE_SIZE = 256 << 20
START_MS = 1_700_000_000_000
TOPIC = b"Benchmark"


def write_store(root: Path, megabytes: int, bodies: Iterator[bytes]) -> int:
    """A clean store of records with these bodies; the number of its records."""
    offsets: list[int] = []
    sizes: list[int] = []
    (root / "commitlog").mkdir()
    for start in range(0, megabytes << 20, FILE_SIZE):
        data = bytearray(FILE_SIZE)
        at = 0
        while True:
            number = len(offsets)
            key = b"0A000001%024X" % number
            draft = _draft(number, next(bodies), key)
            if at + draft.size + 8 > FILE_SIZE or start + at >= megabytes << 20:
                break
            draft.physical_offset = start + at
            data[at : at + draft.size] = b"".join(draft.pieces(HOST))
            offsets.append(start + at)
            sizes.append(draft.size)
            at += draft.size
        if start + FILE_SIZE < megabytes << 20:
            struct.pack_into(">ii", data, at, FILE_SIZE - at, BLANK_MAGIC)
        (root / "commitlog" / f"{start:020d}").write_bytes(data)
    _write_queues(root, np.array(offsets), np.array(sizes))
    _write_index(root)
    (root / "checkpoint").write_bytes(StoreCheckpoint(START_MS, START_MS, START_MS).encode())
    return len(offsets)


def _draft(number: int, body: bytes, key: bytes) -> RecordDraft:
    properties = b"TAGS\x01TagA\x02UNIQ_KEY\x01" + key + b"\x02WAIT\x01true\x02"
    draft = RecordDraft().fill(TOPIC, number % QUEUES, body, properties, born=(START_MS, HOST))
    draft.store_timestamp, draft.queue_offset = START_MS, number // QUEUES
    return draft


def _write_queues(root: Path, offsets: Ints, sizes: Ints) -> None:
    for queue_id in range(QUEUES):
        folder = root / "consumequeue" / TOPIC.decode() / str(queue_id)
        folder.mkdir(parents=True)
        mine = offsets[queue_id::QUEUES]
        for first in range(0, len(mine), 300_000):
            units = np.zeros(300_000, QUEUE_UNIT)
            part = mine[first : first + 300_000]
            units["physical"][: len(part)] = part
            units["size"][: len(part)] = sizes[queue_id::QUEUES][first : first + 300_000]
            units["code"][: len(part)] = tags_code("TagA")
            (folder / f"{first * QUEUE_UNIT.itemsize:020d}").write_bytes(units.tobytes())


def _write_index(root: Path) -> None:
    builder = IndexRebuilder(root, IndexLayout())
    layout = open_layout(root)
    for file in layout.log_files:
        columns = scan_file(layout, file).columns
        builder.put(columns, np.zeros(len(columns), np.bool_))
    builder.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        root = Path(name)
        records = write_store(root, arguments.megabytes, repeat(os.urandom(arguments.body)))
        line: dict[str, object] = {"megabytes": arguments.megabytes, "body": arguments.body, "records": records}
        for jobs in dict.fromkeys((1, len(os.sched_getaffinity(0)))):
            began, began_cpu = time.perf_counter(), time.process_time()
            result = check_store(open_layout(root), jobs=jobs)
            seconds = time.perf_counter() - began
            cpu_s = time.process_time() - began_cpu
            line[f"jobs_{jobs}"] = {
                "seconds": round(seconds, 2),
                "mb_per_s": round(result.bytes / seconds / 1e6),
                "records_per_s": round(result.records / seconds),
                "faults": len(result.findings.faults),
            }
            if jobs == 1:  # what a core does, however many others share the machine
                line["mb_per_cpu_s"] = round(result.bytes / cpu_s / 1e6)
                line["cpu_us_per_record"] = round(cpu_s / result.records * 1e6, 2)
        print(json.dumps(line))


if __name__ == "__main__":
    main()
