"""The rules of cleaning, by themselves: hours, ages, and how full a disk is."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.cleaning.config import CleaningConfig, parse_hours
from store.cleaning.disk_space import DiskSpace, StoreSpace, bytes_under, disk_space
from store.cleaning.rules import AgedFile, CleaningDecision, expired, judge

NIGHT, NOON = 4, 12
CONFIG = CleaningConfig()
DELETES = CleaningDecision(deletes=True, at_once=False, refuses=False)


def space(percent: float, queues: float | None = None, store_bytes: int = 0) -> StoreSpace:
    def disk(used: float) -> DiskSpace:
        return DiskSpace(int(used * 100), 10_000 - int(used * 100), 10_000)

    return StoreSpace(disk(percent), disk(percent if queues is None else queues), store_bytes)


@pytest.mark.parametrize(
    ("percent", "hour", "deletes", "at_once", "refuses"),
    [
        (10, NOON, False, False, False),
        (10, NIGHT, True, False, False),
        (75, NOON, False, False, False),  # every limit is exceeded only above it
        (76, NOON, True, False, False),
        (85, NOON, True, False, False),
        (86, NOON, True, True, None),
        (90, NOON, True, True, None),
        (91, NOON, True, True, True),
    ],
)
def test_the_fuller_the_disk_the_more_is_done(
    percent: int, hour: int, deletes: bool, at_once: bool, refuses: bool | None
) -> None:
    assert judge(CONFIG, space(percent), hour, by_hand=False) == CleaningDecision(deletes, at_once, refuses)


def test_the_queues_disk_counts_as_the_logs_does() -> None:
    assert judge(CONFIG, space(10, queues=91), NOON, by_hand=False) == CleaningDecision(True, True, True)


def test_a_part_of_a_percent_counts_as_a_whole_one() -> None:
    assert DiskSpace(7501, 2499, 10_000).ratio == 0.76
    assert judge(CONFIG, space(75.01), NOON, by_hand=False).deletes


def test_what_only_the_system_may_take_is_not_counted() -> None:
    assert DiskSpace(used=90, usable=10, total=200).ratio == 0.9


def test_files_go_before_their_time_only_if_that_is_allowed() -> None:
    config = CleaningConfig(forcibly=False)
    assert judge(config, space(95), NOON, by_hand=False) == CleaningDecision(True, False, True)


def test_an_administrator_is_obeyed_at_any_hour() -> None:
    assert judge(CONFIG, space(10), NOON, by_hand=True) == CleaningDecision(True, False, False)


def test_stores_that_share_a_disk_have_each_their_part_of_it() -> None:
    config = CleaningConfig(replicas_per_disk=2)  # 5000 bytes each
    assert not judge(config, space(80, store_bytes=3000), NOON, by_hand=False).deletes
    assert judge(config, space(80, store_bytes=3800), NOON, by_hand=False) == CleaningDecision(True, False, False)
    assert judge(config, space(80, store_bytes=4100), NOON, by_hand=False) == CleaningDecision(True, True, False)


def test_ratios_are_kept_within_rocketmqs_bounds() -> None:
    low = CleaningConfig(max_used_ratio=0.01, forcible_ratio=0.01, warning_ratio=0.01)
    assert (low.max_used_ratio, low.forcible_ratio, low.warning_ratio) == (0.10, 0.30, 0.35)
    high = CleaningConfig(max_used_ratio=0.99, forcible_ratio=0.99, warning_ratio=0.99)
    assert (high.max_used_ratio, high.forcible_ratio, high.warning_ratio) == (0.95, 0.85, 0.90)


def test_a_ratio_of_one_is_no_limit() -> None:
    config = CleaningConfig(max_used_ratio=1.0, forcible_ratio=1.0, warning_ratio=1.0)
    assert judge(config, space(100), NOON, by_hand=False) == CleaningDecision(False, False, False)


def test_hours_are_those_of_a_day() -> None:
    assert parse_hours("04") == {4}
    assert parse_hours("02; 14;23") == {2, 14, 23}
    for text in ("", ";", "24", "4h", "-1", "04,05"):
        with pytest.raises(ValueError, match="hours"):
            parse_hours(text)


def test_the_oldest_files_go_up_to_the_first_that_is_young() -> None:
    files = [AgedFile(100, 0), AgedFile(200, 10), AgedFile(300, 1_000_000), AgedFile(400, 20)]
    now = 72 * 3_600_000 + 10
    assert expired(CONFIG, DELETES, files, now) == [100, 200]
    assert expired(CONFIG, DELETES, files, now - 1) == [100]
    assert expired(CONFIG, CleaningDecision(False, False, False), files, now) == []


def test_one_round_takes_no_more_than_a_batch_even_in_need() -> None:
    files = [AgedFile(end, 10**12) for end in range(100, 3000, 100)]
    assert len(expired(CONFIG, CleaningDecision(True, True, True), files, 0)) == CONFIG.batch_max


@given(st.lists(st.integers(0, 300)), st.integers(0, 500), st.booleans(), st.integers(1, 5))
def test_what_goes_is_a_prefix_and_nothing_young_goes_without_need(
    times: list[int], now: int, at_once: bool, batch: int
) -> None:
    config = CleaningConfig(reserved_ms=100, batch_max=batch)
    files = [AgedFile(100 * (i + 1), time) for i, time in enumerate(times)]
    ends = expired(config, CleaningDecision(True, at_once, None), files, now)
    assert ends == [file.end_offset for file in files[: len(ends)]]
    assert len(ends) <= batch
    assert at_once or all(now >= file.modified_ms + 100 for file in files[: len(ends)])
    if len(ends) < min(len(files), batch):
        assert not at_once and now < files[len(ends)].modified_ms + 100


def test_a_disk_is_asked_through_a_folder_that_is_still_to_be_made(tmp_path: Path) -> None:
    found = disk_space(tmp_path / "not" / "yet")
    assert found.total >= found.used + found.usable > 0
    assert 0 < found.ratio <= 1


def test_what_a_store_holds_is_counted_by_its_blocks(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "full").write_bytes(bytes(10_000))
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(10_000_000)
    assert 10_000 <= bytes_under([tmp_path]) < 100_000
