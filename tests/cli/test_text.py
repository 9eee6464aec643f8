"""The demo's input: the lines of a file, joined, are the file; what cannot be sent is refused with its place."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.demo.text import read_lines, write_default_text
from node.errors import UsageError


@given(
    data=st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"\x00", b"\xff", b"a", b"\x0b\x85"]), min_size=1).map(
        b"".join
    )
)
def test_the_lines_of_any_bytes_joined_are_the_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("text") / "input"
    path.write_bytes(data)
    lines = read_lines(path, 1000)
    assert b"".join(lines) == data
    assert all(line.count(b"\n") == 1 and line.endswith(b"\n") for line in lines[:-1])
    assert lines[-1] != b""


def test_an_empty_line_is_a_message_of_its_terminator(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"\n\r\n\nlast")
    assert read_lines(tmp_path / "input", 10) == [b"\n", b"\r\n", b"\n", b"last"]


def test_a_line_too_long_for_one_message_is_refused_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"ok\n" + b"x" * 50 + b"\n")
    with pytest.raises(UsageError, match=r"input:2: the line has 51 bytes, the limit is 50"):
        read_lines(tmp_path / "input", 50)


@pytest.mark.parametrize(("content", "detail"), [(None, "No such file"), (b"", "is empty")])
def test_an_input_without_lines_is_refused(tmp_path: Path, content: bytes | None, detail: str) -> None:
    if content is not None:
        (tmp_path / "input").write_bytes(content)
    with pytest.raises(UsageError, match=detail):
        read_lines(tmp_path / "input", 50)


def test_a_folder_as_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Is a directory"):
        read_lines(tmp_path, 50)


def test_the_default_input_is_at_least_20_mb_of_the_projects_own_text(tmp_path: Path) -> None:
    write_default_text(tmp_path / "text")
    lines = read_lines(tmp_path / "text", 4 << 20)
    assert (tmp_path / "text").stat().st_size >= 20_000_000
    assert lines[0].startswith(b"1 benchmarks/")
    assert any(b"docs/operations.md:" in line for line in lines)
