"""From topic and id to a queue: one object for both spellings, folders as RocketMQ's, no way out of the directory."""

from pathlib import Path

import pytest

from store.errors import InvalidTopicError, StoreFormatError
from store.queues.queue_table import QueueTable


@pytest.fixture
def table(tmp_path: Path) -> QueueTable:
    return QueueTable(tmp_path / "consumequeue", 100)


def test_text_and_bytes_find_the_same_queue(table: QueueTable) -> None:
    queue = table.get("主题", 3)
    assert table.get("主题".encode(), 3) is queue
    assert table.find("主题", 3) is queue
    assert table.by_key["主题".encode(), 3] is queue
    assert table.find("主题", 4) is None
    assert list(table) == [queue]


def test_a_queue_takes_no_disk_before_its_first_unit(table: QueueTable) -> None:
    queue = table.get("T", 0)
    assert list(table.directory.iterdir()) == []
    queue.put(0, 10, 0, 0)
    assert (table.directory / "T" / "0" / "00000000000000000000").stat().st_size == 100


def test_file_sizes_are_rounded_up_to_whole_units(tmp_path: Path) -> None:
    QueueTable(tmp_path, 101).get("T", 0).put(0, 10, 0, 0)
    assert (tmp_path / "T" / "0" / "00000000000000000000").stat().st_size == 120


@pytest.mark.parametrize(
    "topic", ["", ".", "..", "a/b", "../../etc", "a\0b", "t" * 256, "題" * 86, b"\xff\xfe", "\ud800"]
)
def test_a_topic_that_cannot_name_a_folder_is_refused(table: QueueTable, topic: str | bytes) -> None:
    with pytest.raises(InvalidTopicError):
        table.get(topic, 0)
    assert list(table) == []


def test_a_negative_queue_id_is_refused(table: QueueTable) -> None:
    with pytest.raises(InvalidTopicError, match="negative"):
        table.get("T", -1)


@pytest.mark.parametrize("path", ["stray", "T/stray/x", "T/0x/x", "T/-1/x"])
def test_what_is_no_queue_is_refused_by_name(table: QueueTable, path: str) -> None:
    file = table.directory / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"")
    with pytest.raises(StoreFormatError) as caught:
        table.load()
    assert caught.value.file in {file, file.parent}


def test_loading_finds_every_queue(table: QueueTable) -> None:
    for topic, queue_id in [("%RETRY%G", 0), ("T", 0), ("T", 11)]:
        table.get(topic, queue_id).put(0, 10, 0, 0)
    table.close()
    again = QueueTable(table.directory, 100)
    again.load()
    assert [(queue.topic, queue.queue_id, queue.max_offset) for queue in again] == [
        ("%RETRY%G", 0, 5),
        ("T", 0, 5),
        ("T", 11, 5),
    ]


def test_a_deleted_topic_leaves_nothing_and_may_come_back(table: QueueTable) -> None:
    old = table.get("T", 0)
    old.put(0, 10, 0, 0)
    table.get("U", 0)
    table.delete_topic("T")
    assert not (table.directory / "T").exists()
    assert [queue.topic for queue in table] == ["U"]
    assert table.get("T", 0) is not old
    assert table.get("T", 0).max_offset == 0
    table.delete_topic("never there")
    table.delete_topic("../consumequeue")
    assert table.directory.exists()


def test_watching_covers_queues_to_come(table: QueueTable) -> None:
    before = table.get("T", 0)
    table.watch("T")
    assert before.is_watched
    assert table.get("T", 1).is_watched
    assert not table.get("U", 0).is_watched
    assert [queue.queue_id for queue in table.of_topic("T")] == [0, 1]
