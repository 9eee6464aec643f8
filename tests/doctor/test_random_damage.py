"""Random damage on a small store: the doctor neither crashes nor hangs, and where a CRC covers, it notices."""

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doctor.check.run import check_store
from doctor.read.directory import open_layout
from doctor.read.walk import walk
from doctor.repair.run import repair_store
from tests.doctor.doctor_support import damage, flip, write_store
from tests.store.support import fast_directory

FIXTURE = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def pristine() -> Iterator[Path]:
    with fast_directory() as directory:
        write_store(directory / "store")
        yield directory / "store"


def log_files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "commitlog").iterdir() if any(path.read_bytes()))


@FIXTURE
@given(data=st.data())
def test_any_damage_is_survived_and_repaired(pristine: Path, data: st.DataObject) -> None:
    with fast_directory() as directory:
        root = directory / "store"
        shutil.copytree(pristine, root)
        files = sorted(path for path in root.rglob("*") if path.is_file() and path.name not in ("lock", "abort"))
        for _ in range(data.draw(st.integers(1, 4), "how many")):
            path = data.draw(st.sampled_from(files), "file")
            match data.draw(st.sampled_from(["write", "cut", "delete"]), "what"):
                case "write" if path.exists() and path.stat().st_size:
                    position = data.draw(st.integers(0, path.stat().st_size - 1), "position")
                    damage(path, position, data.draw(st.binary(min_size=1, max_size=200), "bytes"))
                case "cut" if path.exists():
                    with path.open("r+b") as file:
                        file.truncate(data.draw(st.integers(0, path.stat().st_size), "length"))
                case _:
                    path.unlink(missing_ok=True)
        if not (root / "commitlog").is_dir():
            return
        layout = open_layout(root)
        faults = check_store(layout, jobs=1).findings.faults
        named = {(fault.file, fault.offset) for fault in faults if fault.kind in ("bad-number", "bad-topic")}
        readable = {
            item.physical_offset: item.frame.record
            for item in walk(layout)
            if item.frame.fault is None and (layout.name(item.file), item.position) not in named
        }
        result = repair_store(layout, output=directory / "repaired", queue_file_size=200)
        kept = {item.physical_offset: item.frame.record for item in walk(open_layout(directory / "repaired"))}
        assert all(kept.get(offset) == record for offset, record in readable.items())
        unrepaired = {fault.kind for fault in result.check.findings.faults} - {"bad-name", "config-wrong"}
        assert not unrepaired or result.log.not_repaired, result.check.findings.as_json()


@FIXTURE
@given(where=st.integers(0, 10_000), mask=st.integers(1, 255))
def test_a_changed_body_never_goes_unnoticed(pristine: Path, where: int, mask: int) -> None:
    with fast_directory() as directory:
        root = directory / "store"
        shutil.copytree(pristine, root)
        records = list(walk(open_layout(root)))
        found = records[where % len(records)]
        (size,) = struct.unpack_from(">i", found.frame.record, 84)
        position = found.position + 88 + where % size
        flip(found.file, position, mask)
        faults = check_store(open_layout(root), jobs=1).findings.faults
        name = found.file.relative_to(root).as_posix()
        assert (name, found.position, "bad-body") in {(fault.file, fault.offset, fault.kind) for fault in faults}


@FIXTURE
@given(where=st.integers(0, 10_000), field=st.sampled_from([0, 4, 28, 84]), mask=st.integers(1, 255))
def test_a_changed_frame_never_goes_unnoticed(pristine: Path, where: int, field: int, mask: int) -> None:
    """Size, magic, physical offset, body size: one changed byte leaves no frame there, or another one's CRC."""
    with fast_directory() as directory:
        root = directory / "store"
        shutil.copytree(pristine, root)
        records = list(walk(open_layout(root)))
        found = records[where % len(records)]
        flip(found.file, found.position + field + where % 4, mask)
        faults = check_store(open_layout(root), jobs=1).findings.faults
        name = found.file.relative_to(root).as_posix()
        assert any(fault.file == name and fault.offset <= found.position + field + 4 for fault in faults)


@FIXTURE
@given(where=st.integers(0, 10_000), mask=st.integers(1, 255))
def test_a_changed_queue_unit_never_goes_unnoticed(pristine: Path, where: int, mask: int) -> None:
    with fast_directory() as directory:
        root = directory / "store"
        shutil.copytree(pristine, root)
        files = sorted(
            path for path in (root / "consumequeue").rglob("0*") if path.is_file() and any(path.read_bytes())
        )
        path = files[where % len(files)]
        used = len(path.read_bytes().rstrip(b"\0")) // 20 * 20
        if used == 0:
            return
        position = where % used
        flip(path, position, mask)
        faults = check_store(open_layout(root), jobs=1).findings.faults
        name = path.relative_to(root).as_posix()
        assert any(fault.file == name and fault.offset <= position for fault in faults)
