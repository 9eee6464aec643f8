"""The demo's input: a file as numbered lines, or some 20 MB of text made from the project's own files.

A line keeps its terminator, so that the joined lines equal the file, whatever its bytes.
"""

from collections.abc import Collection, Iterator
from pathlib import Path

from node.errors import UsageError

_DEFAULT_SIZE_BYTES = 20 << 20
_LEAST_LINE_BYTES = 60  # short lines, so that 20 MB are tens of thousands of messages
_TEXT = {".md", ".jsonl", ".java", ".go", ".toml"}
_PROJECT = Path(__file__).resolve().parent.parent.parent
_FOLDERS = ("benchmarks", "broker", "cli", "dledger", "docs", "ledgermq", "nameserver", "store", "tests")


def read_lines(path: Path, line_size_max_bytes: int) -> list[bytes]:
    """Return the lines of a file with their terminators; the last line may have none.

    Raises:
        UsageError: no such file, an empty one, or a line too long for one message.
    """
    try:
        with path.open("rb") as file:
            lines = list(file)  # split at b"\n" only: a lone b"\r" is data
    except OSError as error:
        raise UsageError(f"--input {path}: {error.strerror}") from error
    if not lines:
        raise UsageError(f"--input {path} is empty: there is nothing to send")
    for number, line in enumerate(lines, 1):
        if len(line) > line_size_max_bytes:
            raise UsageError(
                f"--input {path}:{number}: the line has {len(line)} bytes, the limit is {line_size_max_bytes}"
            )
    return lines


def write_default_text(path: Path) -> None:
    """Fill `path` with at least 20 MiB: the project's text files, repeated, each longer line with its origin."""
    files = list(_text_files())
    size, passes = 0, 0
    with path.open("wb") as out:
        while size < _DEFAULT_SIZE_BYTES:
            passes += 1
            for file in files:
                size += out.write(_with_origin(file, passes))


def _text_files() -> Iterator[Path]:
    """Yield the documents, recorded histories and foreign sources of a checkout; of a wheel only its sources."""
    is_checkout = (_PROJECT / "pyproject.toml").is_file()
    return _files_with(_TEXT if is_checkout else {".py"})


def _files_with(suffixes: Collection[str]) -> Iterator[Path]:
    for folder in _FOLDERS:
        for path in sorted((_PROJECT / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path


def _with_origin(path: Path, passes: int) -> bytes:
    origin = f"{passes} {path.relative_to(_PROJECT)}:"
    lines = enumerate(path.read_bytes().split(b"\n"), 1)
    long = ((number, line) for number, line in lines if len(line) >= _LEAST_LINE_BYTES)
    return b"".join(f"{origin}{number} ".encode() + line + b"\n" for number, line in long)
