"""The queues of stores that Java's Raft brokers wrote, whole and damaged: at least what that broker kept of them."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger.log.entry_batches import EntryBatches
from dledger.log.opening import OpenedLog
from dledger.log.reader import walk_records
from ledgermq.message.record import decode_record
from store.queues.consume_queue import BLANK_SIZE
from store.queues.queue_table import QueueTable
from store.recovery.queue_recovery import recover_queues

GOLDEN = Path(__file__).parents[1] / "golden" / "store-dledger"
VARIANTS = {variant["name"]: variant for variant in json.loads((GOLDEN / "variants.json").read_text())}
LOADED = [name for name, variant in VARIANTS.items() if variant["recovered"].get("loaded")]
QUEUE_FILE = 1200
NOT_COMMITTED = {"dead-n1-torn-last", "dead-n1-flip-last-body"}
"""The last entry, which no quorum has, fails its CRC: Java shows it, here it is cut."""

MORE = {
    "dead-n1-no-abort": 163,  # Java: 157
    "dead-n1-cq-all-missing": 163,  # 48
    "healed-n0-abort": 204,  # 201
    "healed-n0-cq-all-missing": 204,  # none
    "one-n0-abort": 121,  # 120
}
"""Where Java's broker loses units for good; what is behind a damaged entry waits here for a peer's copy."""


class CommittedLog:
    """What recovery needs of a log, all of which is committed, up to its first damaged entry."""

    def __init__(self, opened: OpenedLog) -> None:
        self.opened = opened
        damages = [damage.position for damage in opened.found.damages]
        self.min_offset = opened.data.min_offset
        self.max_offset = opened.found.end_position
        self.confirm_offset = min(damages, default=self.max_offset)

    def walk(self, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
        return walk_records(self.opened.data, start, end)

    def read(self, physical_offset: int, size: int) -> memoryview:
        return self.opened.data.slice(physical_offset, size)


def readable(log: CommittedLog, queues: QueueTable) -> Counter[str]:
    """Units of each queue; every one of them is right."""
    found: Counter[str] = Counter()
    for queue in queues:
        for offset, (physical_offset, size, _) in queue.iterate(queue.min_offset, queue.max_offset):
            if size == BLANK_SIZE:
                continue
            record = decode_record(log.read(physical_offset, size), check_crc=False)
            assert (record.topic, record.queue_id, record.queue_offset) == (queue.topic, queue.queue_id, offset)
            found[f"{queue.topic}/{queue.queue_id}"] += 1
    return found


@pytest.mark.parametrize("name", LOADED)
def test_the_queues_of_a_variant_hold_what_java_kept(
    name: str, golden_log: Callable[..., Any], open_java_log: Callable[..., OpenedLog], tmp_path: Path
) -> None:
    variant = VARIANTS[name]
    golden = golden_log(variant["base"], variant["ops"])
    log = CommittedLog(open_java_log(golden))
    queues = QueueTable(tmp_path / "consumequeue", QUEUE_FILE)
    queues.load()
    recover_queues(log, queues, None, batches=EntryBatches(log.opened.data))  # type: ignore[arg-type]
    found = readable(log, queues)
    java = {queue: kept["readable"] for queue, kept in variant["recovered"]["afterLoad"]["queues"].items()}
    waiting = sum(entry["pos"] >= log.confirm_offset for entry in golden.entries[: log.opened.found.last_index + 1])
    assert found.total() + waiting + (name in NOT_COMMITTED) >= sum(java.values())
    if not waiting and name not in NOT_COMMITTED:
        assert {queue: found[queue] for queue in java if found[queue] < java[queue]} == {}
    assert found.total() >= MORE.get(name, 0)
    queues.close()


@pytest.mark.parametrize("name", LOADED)
def test_the_queues_are_the_same_by_the_batch_and_one_by_one(
    name: str, golden_log: Callable[..., Any], open_java_log: Callable[..., OpenedLog], tmp_path: Path
) -> None:
    variant = VARIANTS[name]
    log = CommittedLog(open_java_log(golden_log(variant["base"], variant["ops"])))
    log.confirm_offset = log.max_offset  # over what is damaged, too
    found: list[object] = []
    for batches in (None, EntryBatches(log.opened.data)):
        queues = QueueTable(tmp_path / str(len(found)), QUEUE_FILE)
        recovery = recover_queues(log, queues, None, batches=batches)  # type: ignore[arg-type]
        units = {repr(queue): list(queue.iterate(queue.min_offset, queue.max_offset)) for queue in queues}
        found.append((recovery, units))
        queues.close()
    assert found[0] == found[1]
