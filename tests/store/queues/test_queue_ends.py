"""The file of the queues' ends while the store is open."""

import errno
from pathlib import Path

import pytest

from store.queues.queue_ends import EndsFile, QueueEnds, read_ends

ENDS = QueueEnds(0, 100, 1, 10, (("T", 0, 0, 1, 5),))


def test_a_removal_that_failed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: object) -> None:
        raise OSError(errno.EIO, "lost", str(path))

    file = EndsFile(tmp_path)
    file.write(ENDS, file.lineage, has_all=True)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(OSError, match="lost"):
            file.invalidate()
    assert len(read_ends(tmp_path)) == 1
    file.invalidate()
    assert read_ends(tmp_path) == []
