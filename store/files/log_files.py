"""Log files: which files of a directory make up a log. Looks at names and lengths only; changes nothing.

00000000000000000000  00000000000000004096  [gap]  00000000000000012288     of equal length, without gaps
|------------------- kept ---------------|         |-- left over if blank; else the directory is refused
"""

from pathlib import Path

from store.errors import StoreFormatError
from store.files.disk import FILE_NAME_DIGITS

_EMPTY_PROBE_BYTES = 64


def find_log_files(directory: Path, file_size: int) -> tuple[list[Path], list[Path]]:
    """Return the files of the log in order, and the files to delete: an empty last file, and blank ones behind a gap.

    Raises:
        StoreFormatError: a file with another name or length, or a gap before a file in use.
    """
    paths = _list(directory, file_size)
    kept = _count_kept(paths, file_size)
    return paths[:kept], paths[kept:]


def _list(directory: Path, file_size: int) -> list[Path]:
    paths = sorted(path for path in directory.iterdir() if not path.is_dir())
    for path in paths:
        if len(path.name) != FILE_NAME_DIGITS or not (path.name.isascii() and path.name.isdigit()):
            raise StoreFormatError(path, f"is not named by a start offset of {FILE_NAME_DIGITS} digits")
    for path in paths:
        length = path.stat().st_size
        if length != file_size and not (length == 0 and path == paths[-1]):
            raise StoreFormatError(path, f"is {length} bytes long, must be {file_size}")
    return paths


def _count_kept(paths: list[Path], file_size: int) -> int:
    starts = [int(path.name) for path in paths]
    count = len(paths)
    if count and paths[-1].stat().st_size == 0:
        count -= 1
    for index in range(1, count):
        expected = starts[index - 1] + file_size
        if starts[index] != expected:
            if all(_is_blank(path) for path in paths[index:count]):
                return index
            raise StoreFormatError(paths[index], f"follows a gap: a file that starts at {expected} is missing")
    return count


def _is_blank(path: Path) -> bool:
    with path.open("rb") as file:
        return not any(file.read(_EMPTY_PROBE_BYTES))
