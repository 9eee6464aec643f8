"""A directory that Java's broker left: what waits there is delivered once, and what it delivered is not again."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq.message.record import Record
from store.timer.checkpoint import read_check
from tests.broker.conftest import Desk, eventually, small_config
from tests.store.support import GOLDEN, golden

TREES = GOLDEN / "store-classic"
STARTED_MS = time.time_ns() // 1_000_000
LEFT_MS = 1_795_252_376_000  # Java's last read time
HOUR_MS = 3_600_000


@pytest.fixture(params=["clean", "kill9"])
def root(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Such a directory, five hours later."""
    golden.restore_tree(TREES / request.param, tmp_path)

    def clock_ms() -> int:
        return LEFT_MS + 5 * HOUR_MS + time.time_ns() // 1_000_000 - STARTED_MS

    for module in ("context", "log_follower"):
        monkeypatch.setattr(f"broker.{module}.wall_clock_ms", clock_ms)
    yield tmp_path


def desk_of(root: Path) -> Desk:
    sizes = {
        "mappedFileSizeCommitLog": 65_536,
        "mappedFileSizeConsumeQueue": 1200,
        "timer_log_file_size_bytes": 65_536,
        "max_message_size_bytes": 20_000,
        "maxHashSlotNum": 100,
        "maxIndexNum": 400,
    }
    return Desk(small_config(root, broker_name="golden-a", **sizes))


def keys(records: list[Record]) -> Counter[str]:
    return Counter(record.property_map["KEYS"] for record in records)


def of(desk: Desk, topic: str) -> Counter[str]:
    return keys([record for record in desk.records() if record.topic == topic])


async def test_what_java_left_waiting_is_delivered_once_and_nothing_else_again(root: Path) -> None:
    desk = desk_of(root)
    await desk.start()
    await eventually(lambda: of(desk, "GoldenTimer").total() >= 8, "all timers")
    await eventually(lambda: desk.parts.delay.timer.index.read_ms > LEFT_MS + 5 * HOUR_MS - 2000, "the read time")
    wanted = {f"timer-{when}-{number}": 1 for when in ("soon", "far") for number in range(4)}
    assert of(desk, "GoldenTimer") == wanted
    assert desk.parts.delay.timer.index.metrics.counts["GoldenTimer"] == 0
    await eventually(lambda: desk.parts.delay.levels.delivered == 4, "levels 17 and 18")
    assert set(of(desk, "GoldenDelay").values()) == {1}
    assert desk.parts.transactions.service.open_count == 0
    await desk.stop()
    check = read_check(root / "config" / "timercheck")
    assert check.read_ms > LEFT_MS + 4 * HOUR_MS
    assert check.queue_offset == 8
    assert b"{1:3,2:2,3:1,17:2,18:2" in (root / "config" / "delayOffset.json").read_bytes(), "as Java writes it"


async def test_it_is_delivered_once_across_restarts_of_ours(root: Path) -> None:
    desk = desk_of(root)
    for _ in range(3):
        await desk.start()
        await eventually(lambda: of(desk, "GoldenTimer").total() >= 8, "all timers")
        await eventually(lambda: of(desk, "GoldenDelay").total() >= 8, "all delayed ones")
        await desk.stop()
    await desk.start()
    assert set(of(desk, "GoldenTimer").values()) == {1}
    assert set(of(desk, "GoldenDelay").values()) == {1}
    await desk.stop()
