"""Random damage to a directory: bits flipped, ranges lost or filled with noise, files cut, emptied, lost, doubled."""

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

Damage = Callable[[Path, Random], str]


def damage_files(root: Path, dice: Random) -> list[str]:
    """Damage files below `root`, one to four times; what was done."""
    done = []
    for _ in range(dice.randint(1, 4)):
        files = sorted(path for path in root.rglob("*") if path.is_file())
        if files:
            path = dice.choice(files)
            done.append(f"{path.relative_to(root)} {dice.choice(_DAMAGES)(path, dice)}")
    return done


def _overwrite(path: Path, start: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


def _range(path: Path, dice: Random) -> tuple[int, int]:
    size = path.stat().st_size
    start = dice.randrange(size + 1)
    return start, min(dice.choice((1, 8, 100, 512, 4096)), size - start)


def _flip(path: Path, dice: Random) -> str:
    start, _ = _range(path, dice)
    with path.open("rb") as file:
        file.seek(start)
        old = file.read(1)
    if old:
        _overwrite(path, start, bytes((old[0] ^ 1 << dice.randrange(8),)))
    return f"has a bit flipped at {start}"


def _zero(path: Path, dice: Random) -> str:
    start, size = _range(path, dice)
    _overwrite(path, start, bytes(size))
    return f"has {size} zeros at {start}"


def _noise(path: Path, dice: Random) -> str:
    start, size = _range(path, dice)
    _overwrite(path, start, dice.randbytes(size))
    return f"has {size} bytes of noise at {start}"


def _copy_within(path: Path, dice: Random) -> str:
    start, size = _range(path, dice)
    target, _ = _range(path, dice)
    content = path.read_bytes()
    _overwrite(path, target, content[start : start + min(size, len(content) - target)])
    return f"has the {size} bytes at {start} again at {target}"


def _cut(path: Path, dice: Random) -> str:
    size = dice.choice((0, dice.randrange(path.stat().st_size + 1)))
    with path.open("r+b") as file:
        file.truncate(size)
    return f"is cut to {size} bytes"


def _lose(path: Path, _: Random) -> str:
    path.unlink()
    return "is lost"


def _double(path: Path, dice: Random) -> str:
    names = [sibling.name for sibling in path.parent.iterdir() if sibling.is_file()]
    other = dice.choice([*sorted(names), f"{dice.randrange(10**6):020d}"])
    if other != path.name:
        shutil.copyfile(path, path.with_name(other))
    return f"is also {other}"


_DAMAGES: tuple[Damage, ...] = (_flip, _flip, _flip, _zero, _zero, _noise, _noise, _copy_within, _cut, _lose, _double)
