"""Hashing a log as it lies in files: the cut into files must not matter, and what is not there is refused."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.checkers.logs import LogFilesError, digest_log, first_difference


def write_log(directory: Path, data: bytes, file_size: int, start: int = 0) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for at in range(0, len(data), file_size):
        piece = data[at : at + file_size]
        (directory / f"{start + at:020d}").write_bytes(piece + bytes(file_size - len(piece)))


@given(data=st.binary(min_size=1, max_size=300), file_size=st.integers(1, 64), cut=st.integers(0, 300))
def test_the_hash_of_a_log_does_not_depend_on_how_it_is_cut_into_files(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, file_size: int, cut: int
) -> None:
    directory, end = tmp_path_factory.mktemp("log"), min(cut, len(data))
    write_log(directory, data, file_size)
    assert digest_log(directory, end).sha256 == hashlib.sha256(data[:end]).hexdigest()


def test_other_files_in_the_folder_are_not_part_of_the_log(tmp_path: Path) -> None:
    write_log(tmp_path, b"abcd", 4)
    (tmp_path / "checkpoint").write_bytes(b"x")
    assert digest_log(tmp_path, 4).sha256 == hashlib.sha256(b"abcd").hexdigest()


def test_a_log_whose_first_files_were_cleaned_is_hashed_from_the_first_byte_kept(tmp_path: Path) -> None:
    write_log(tmp_path, b"efgh", 4, start=4)
    digest = digest_log(tmp_path, 7)
    assert (digest.start, digest.end, digest.sha256) == (4, 7, hashlib.sha256(b"efg").hexdigest())


def test_logs_of_which_one_was_cleaned_are_compared_from_a_common_start(tmp_path: Path) -> None:
    write_log(tmp_path / "a", b"abcdefgh", 4)
    write_log(tmp_path / "b", b"efgh", 4, start=4)
    assert digest_log(tmp_path / "a", 8, start=4) == digest_log(tmp_path / "b", 8)


@pytest.mark.parametrize(("end", "start", "detail"), [(9, None, "ends at 8, before 9"), (8, 2, "begins at 4, after 2")])
def test_bytes_that_are_not_there_are_refused(tmp_path: Path, end: int, start: int | None, detail: str) -> None:
    write_log(tmp_path, b"efgh", 4, start=4)
    with pytest.raises(LogFilesError, match=detail):
        digest_log(tmp_path, end, start)


def test_a_missing_file_in_the_middle_is_refused(tmp_path: Path) -> None:
    write_log(tmp_path, b"abcdefghijkl", 4)
    (tmp_path / f"{4:020d}").unlink()
    with pytest.raises(LogFilesError, match="no file for offset 4"):
        digest_log(tmp_path, 12)


def test_a_folder_without_log_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogFilesError, match="no log files"):
        digest_log(tmp_path, 0)


@given(
    data=st.binary(min_size=1, max_size=300),
    sizes=st.tuples(st.integers(1, 64), st.integers(1, 64)),
    at=st.integers(0, 299),
)
def test_the_first_byte_that_differs_is_found_however_the_logs_are_cut_into_files(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, sizes: tuple[int, int], at: int
) -> None:
    one, other, third = (tmp_path_factory.mktemp("log") for _ in range(3))
    at = min(at, len(data) - 1)
    write_log(one, data, sizes[0])
    write_log(other, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], sizes[1])
    write_log(third, data, sizes[1])
    assert first_difference(one, other, len(data)) == at
    assert first_difference(one, other, at) is None
    assert first_difference(one, third, len(data)) is None


def test_logs_are_compared_where_both_have_bytes_and_the_shorter_one_differs_at_its_end(tmp_path: Path) -> None:
    write_log(tmp_path / "a", b"abcdefgh", 4)
    write_log(tmp_path / "b", b"efgh", 4, start=4)
    write_log(tmp_path / "c", b"abcd", 4)
    assert first_difference(tmp_path / "a", tmp_path / "b", 8) is None
    assert first_difference(tmp_path / "a", tmp_path / "c", 8) == 4
    (tmp_path / "d").mkdir()
    with pytest.raises(LogFilesError):
        first_difference(tmp_path / "a", tmp_path / "d", 8)
