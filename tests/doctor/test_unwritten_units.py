"""Units that a broker holds in memory are missing in the files of a running or killed broker, and are no faults."""

from dataclasses import replace
from pathlib import Path

import pytest

from doctor.check.run import CheckResult, check_store
from doctor.check.settled import find_settled
from doctor.read.directory import open_layout
from store.log.flusher import FlushMode
from store.opening import OpenStore
from tests.store.support import eventually, killed_image, open_classic, put_all, queued

NOTE = "units are not in the queues' files yet"


async def opened_with_held_units(root: Path) -> OpenStore:
    """One unit of each of two queues is written, and the second one held."""
    opened = await open_classic(root, flush_mode=FlushMode.SYNC, hold_from=0)
    queues = [opened.store.queues.get("T", queue_id) for queue_id in range(2)]
    await put_all(opened, [queued(queue) for queue in queues])
    opened.checkpointer.save()
    await eventually(lambda: not opened.checkpointer._is_saving)
    await put_all(opened, [queued(queue) for queue in queues])
    return opened


def check(root: Path) -> CheckResult:
    return check_store(open_layout(root), jobs=1)


async def test_units_held_by_a_broker_are_noted_while_it_runs_and_when_it_was_killed(tmp_path: Path) -> None:
    opened = await opened_with_held_units(tmp_path / "store")
    killed = killed_image(tmp_path / "store", tmp_path / "killed")
    for root in (tmp_path / "store", killed):
        result = check(root)
        assert result.findings.faults == []
        assert any(note.startswith(f"2 {NOTE}") for note in result.findings.notes)
    await opened.close()
    assert not any(NOTE in note for note in check(tmp_path / "store").findings.notes)


async def test_units_that_a_killed_raft_member_held_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = await opened_with_held_units(tmp_path / "store")
    await put_all(opened, [queued(opened.store.queues.get("T", 1))])
    uncommitted = opened.store.queues.get("T", 1).unit(2)
    assert uncommitted is not None
    killed = killed_image(tmp_path / "store", tmp_path / "killed")
    await opened.close()
    (killed / "abort").rename(killed / "ledgermq.abort")
    found = replace(find_settled(open_layout(killed)), end_offset=uncommitted[0])
    monkeypatch.setattr("doctor.check.run.find_settled", lambda _layout: found)
    result = check(killed)
    assert result.findings.faults == []
    assert any(note.startswith(f"2 {NOTE}") for note in result.findings.notes)


async def test_units_held_before_the_first_checkpoint_are_noted(tmp_path: Path) -> None:
    opened = await open_classic(tmp_path / "store", flush_mode=FlushMode.SYNC, hold_from=0)
    await put_all(opened, [queued(opened.store.queues.get("T", 0))])
    result = check(killed_image(tmp_path / "store", tmp_path / "killed"))
    await opened.close()
    assert [fault.kind for fault in result.findings.faults] == ["checkpoint-missing"]
    assert any(note.startswith(f"1 {NOTE}") for note in result.findings.notes)


async def test_missing_units_that_the_checkpoint_covers_are_faults(tmp_path: Path) -> None:
    opened = await opened_with_held_units(tmp_path / "store")
    killed = killed_image(tmp_path / "store", tmp_path / "killed")
    await opened.close()
    (path,) = (killed / "consumequeue" / "T" / "1").iterdir()
    path.write_bytes(bytes(path.stat().st_size))
    result = check(killed)
    assert [(fault.kind, fault.file) for fault in result.findings.faults] == [
        ("queue-missing", "consumequeue/T/1/00000000000000000000")
    ]
