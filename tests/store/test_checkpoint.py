"""The checkpoint page: RocketMQ's fields where it reads them, ours believed only while they are true."""

import struct
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.store_progress import Progress
from store.directory.checkpoint import StoreCheckpoint, StoreCheckpointFile, decode_checkpoint
from store.log.flusher import FlushMode
from store.recovery import checkpointer
from tests.store.support import GOLDEN, eventually, open_classic, put_all, queued

LONG = st.integers(-(1 << 63), (1 << 63) - 1)
FULL = StoreCheckpoint(11, 22, 33, 44, 55, Progress(66, 77, 88, 99))


@given(
    st.builds(StoreCheckpoint, LONG, LONG, LONG, LONG, LONG, st.none() | st.builds(Progress, LONG, LONG, LONG, LONG))
)
def test_decoding_undoes_encoding(checkpoint: StoreCheckpoint) -> None:
    page = checkpoint.encode()
    assert len(page) == 4096
    assert decode_checkpoint(page) == checkpoint


def test_rocketmqs_fields_are_where_it_reads_them() -> None:
    assert struct.unpack_from(">qqqqq", FULL.encode()) == (11, 22, 33, 44, 55)


@given(st.integers(64, 119), st.integers(1, 255))
def test_any_damage_to_our_part_costs_only_our_part(position: int, mask: int) -> None:
    page = bytearray(FULL.encode())
    page[position] ^= mask
    found = decode_checkpoint(bytes(page))
    assert found == replace(FULL, progress=None) or found == FULL  # padding between version and time


def test_our_part_of_version_1_is_read() -> None:
    page = bytearray(replace(FULL, progress=None).encode())
    struct.pack_into(">8siqqqq", page, 64, b"LEDGERMQ", 1, FULL.log_timestamp, 66, 77, 88)
    struct.pack_into(">I", page, 108, crc32(page[64:108]))
    assert decode_checkpoint(bytes(page)).progress == Progress(66, 77, 88, removed_offset=-1)


def test_our_part_is_not_believed_after_rocketmq_wrote_its_own() -> None:
    page = bytearray(FULL.encode())
    struct.pack_into(">q", page, 0, 12)
    assert decode_checkpoint(bytes(page)) == replace(FULL, log_timestamp=12, progress=None)


@pytest.mark.parametrize("content", [b"", b"\0" * 40, b"\0" * 4096])
def test_an_empty_or_short_file_counts_as_zeros(content: bytes) -> None:
    assert decode_checkpoint(content) == StoreCheckpoint()


def test_javas_checkpoint_is_read_and_has_nothing_of_ours() -> None:
    found = decode_checkpoint((GOLDEN / "store-classic/clean/files/checkpoint").read_bytes())
    assert found == StoreCheckpoint(1795252359850, 1795252359850, 1795252344208, 0, 0)
    assert found.min_timestamp == 1795252359850 - 3000


def test_saving_replaces_the_file_and_opening_finds_it(tmp_path: Path) -> None:
    file = StoreCheckpointFile(tmp_path)
    assert file.found == StoreCheckpoint()
    file.save(FULL)
    file.save(replace(FULL, confirm_offset=56))
    assert StoreCheckpointFile(tmp_path).found == replace(FULL, confirm_offset=56)


async def test_much_that_was_dispatched_is_checkpointed_before_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "BYTES_BEHIND_MAX", 500)
    monkeypatch.setattr(checkpointer, "_LOOK_S", 0.001)
    store = await open_classic(tmp_path, flush_mode=FlushMode.SYNC)
    queue = store.store.queues.get("T", 0)
    await put_all(store, [queued(queue, bytes(1000))])
    end = store.store.log.confirm_offset

    def saved() -> bool:
        progress = StoreCheckpointFile(tmp_path).found.progress
        return progress is not None and progress.dispatched_offset == end

    await eventually(saved)
    await store.close()


async def test_records_that_are_not_flushed_have_no_part_in_the_time_up_to_which_java_believes_the_log(
    tmp_path: Path,
) -> None:
    store = await open_classic(tmp_path, flush_interval_ms=3_600_000)
    for _ in range(2):
        await put_all(store, [queued(store.store.queues.get("T", 0))])
        await eventually(lambda: store.store.dispatched_offset == store.store.log.max_offset)
        store.checkpointer._save(store.checkpointer._capture())
    found = StoreCheckpointFile(tmp_path).found
    assert found.progress is not None and found.progress.flushed_offset == 0 < found.progress.dispatched_offset
    assert found.log_timestamp == 0 < found.queues_timestamp
    await store.close()


async def test_after_queues_were_dropped_a_crash_does_not_cost_the_whole_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_classic(tmp_path, flush_mode=FlushMode.SYNC)
    await put_all(store, [queued(store.store.queues.get(topic, 0), b"x") for topic in ("stays", "goes")])
    await store.close()
    monkeypatch.setattr(checkpointer, "_LOOK_S", 0.001)
    store = await open_classic(tmp_path, flush_mode=FlushMode.SYNC)

    def counted() -> int | None:
        progress = StoreCheckpointFile(tmp_path).found.progress
        return None if progress is None else progress.unit_count

    assert counted() == 2
    store.store.queues.delete_topic("goes")
    await eventually(lambda: counted() == 1)
    await store.close()
