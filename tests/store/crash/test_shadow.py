"""What of a file counts as durable when a sync has failed."""

import os
from pathlib import Path

from chaos.crash.shadow import PAGE, Shadow


def test_a_page_that_a_failed_sync_left_clean_is_written_again_only_after_a_store_into_it(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    path.write_bytes(bytes(2 * PAGE))
    shadow = Shadow(tmp_path)
    inode = path.stat().st_ino
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"first", 0)
        os.pwrite(file.fileno(), b"second", PAGE)
        shadow.synced(file.fileno(), {}, has_failed=True)
        shadow.synced(file.fileno(), {})
        assert shadow.durable_part(inode, 0, 2 * PAGE) == bytes(2 * PAGE), "both pages count as clean"

        os.pwrite(file.fileno(), b"!", PAGE - 1)  # the program does it through a mapping, which tells nobody
        shadow.synced(file.fileno(), {})
    assert shadow.durable_part(inode, 0, PAGE) == b"first".ljust(PAGE - 1, b"\0") + b"!"
    assert shadow.durable_part(inode, PAGE, 2 * PAGE) == bytes(PAGE)


def test_a_store_of_which_the_shadow_is_told_counts_even_if_it_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    path.write_bytes(bytes(2 * PAGE))
    shadow = Shadow(tmp_path)
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"first", 0)
        os.pwrite(file.fileno(), b"second", PAGE)
        shadow.synced(file.fileno(), {}, has_failed=True)
        shadow.written(path, PAGE, 1)
        shadow.synced(file.fileno(), {})
    inode = path.stat().st_ino
    assert shadow.durable_part(inode, 0, PAGE) == bytes(PAGE)
    assert shadow.durable_part(inode, PAGE, 2 * PAGE) == b"second".ljust(PAGE, b"\0")
