"""Record ends in bytes that arrive in pieces."""

import pytest

from ha.core.record_ends import is_blank, last_record_end, record_start
from ledgermq.message.errors import CorruptRecordError

FILE_SIZE = 400


def record(size: int) -> bytes:
    return size.to_bytes(4, "big") + (0xDAA320A7).to_bytes(4, "big") + bytes(size - 8)


def blank(size: int) -> bytes:
    return size.to_bytes(4, "big") + (0xCBD43194).to_bytes(4, "big") + bytes(size - 8)


FILE = record(100) + record(120) + blank(180)


def test_the_end_moves_from_record_to_record_as_they_become_whole() -> None:
    ends = [last_record_end(FILE[:written] + bytes(400), 0, written, FILE_SIZE) for written in range(FILE_SIZE + 1)]
    assert ends == [0] * 100 + [100] * 120 + [220] * 181, "a blank is no record"


def test_a_blank_is_there_when_the_whole_file_is() -> None:
    found = [written for written in range(FILE_SIZE + 1) if is_blank(FILE, 220, written, FILE_SIZE)]
    assert found == [FILE_SIZE]
    assert not is_blank(FILE, 100, FILE_SIZE, FILE_SIZE) and not is_blank(FILE, FILE_SIZE, FILE_SIZE, FILE_SIZE)


def test_it_goes_on_from_where_it_was() -> None:
    assert last_record_end(FILE, 100, 230, FILE_SIZE) == 220


@pytest.mark.parametrize("damaged", [bytes(8) + bytes(392), record(500)[:400], b"\xff" * 400])
def test_what_is_no_record_is_told(damaged: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        last_record_end(damaged, 0, 400, FILE_SIZE)


def test_the_record_around_a_byte_is_found() -> None:
    def located(size: int, offset: int) -> bytes:
        head = record(size)[:28] + offset.to_bytes(8, "big")
        return (head + record(60) * 9)[:size]  # with what looks like records, of no offset, in its body

    file = located(100, 800) + located(120, 900) + blank(180)
    starts = [record_start(file, 0, position, FILE_SIZE, 800, FILE_SIZE) for position in range(FILE_SIZE)]
    assert starts == [0] * 100 + [100] * 120 + [220] * 180
    assert record_start(file, 101, 150, FILE_SIZE, 800, FILE_SIZE) is None, "it begins before"
    assert record_start(file[:220], 0, 220, 220, 800, FILE_SIZE) is None, "nothing is there yet"
