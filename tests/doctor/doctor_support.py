"""What the doctor's tests share: golden stores on disk, small stores of our own, and the command line in process."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from tests.store.support import GOLDEN, golden, open_classic, put_all, queued


def variants(folder: str) -> list[dict[str, Any]]:
    """The damaged stores of `store-classic` or `store-dledger`."""
    found: list[dict[str, Any]] = json.loads((GOLDEN / folder / "variants.json").read_text())
    return found


def restore(folder: str, variant: dict[str, Any], target: Path) -> Path:
    """Put a damaged store on disk."""
    golden.restore_tree(GOLDEN / folder / variant["base"], target)
    golden.apply_ops(target, variant["ops"])
    return target


def run_json(capsys: pytest.CaptureFixture[str], words: Sequence[object], expected_code: int | None = None) -> Any:
    """Run `ledgermq store ...` in this process; the JSON that it prints."""
    code = main(["store", *map(str, words), "--json"])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    if expected_code is not None:
        assert code == expected_code, printed
    return json.loads(printed.out)


def write_store(root: Path, batches: Sequence[int] = (7, 7, 7), *, body: bytes = b"body of message %d") -> None:
    """A small store of our own, stopped cleanly: so many messages a batch, in two queues, with tags."""

    async def write() -> None:
        opened = await open_classic(root, file_size=2048, queue_file_size=200)
        number = 0
        for count in batches:
            drafts = []
            for _ in range(count):
                queue = opened.store.queues.get(b"T", number % 2)
                drafts.append(queued(queue, body.replace(b"%d", b"%d" % number), tags="A"))
                number += 1
            await put_all(opened, drafts)
        await opened.close()

    asyncio.run(write())


def damage(path: Path, position: int, data: bytes) -> None:
    """Overwrite bytes of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip(path: Path, position: int, mask: int = 1) -> None:
    """Change bits of one byte."""
    damage(path, position, bytes([path.read_bytes()[position] ^ mask]))
