"""Behind the checkpoint: an entry that a crash tore counted nowhere, one that was damaged later may have counted."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from dledger.core.messages import HardState
from dledger.core.roles import RaftRole
from dledger.log.commit_checkpoint import CommitCheckpoint
from dledger.log.entry import FILLER_SIZE, HEADER, HEADER_SIZE
from dledger.log.hard_state import read_hard_state, write_hard_state
from dledger.log.opening import OpenedLog, open_log
from dledger.log.term_start import term_start_draft
from store.errors import DiskReadError
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue
from tests.dledger.conftest import STORE_HOST, LogOpener, RaftCluster, make_draft

FILE_SIZE = 1 << 16
SECTOR = 512
LAST = 11
Change = Callable[[bytearray, int, int], None]


def flip(at: int) -> Change:
    """One bit of the byte `at` of the entry."""

    def change(raw: bytearray, start: int, end: int) -> None:
        raw[start + at] ^= 1

    return change


def zero(first: int, last: int) -> Change:
    """Sectors of the entry that were never written, counted from its first one, with all behind them in the sector."""

    def change(raw: bytearray, start: int, end: int) -> None:
        for number in range(first, last + 1):
            sector = start // SECTOR * SECTOR + number * SECTOR
            raw[max(sector, start) : sector + SECTOR] = bytes(sector + SECTOR - max(sector, start))

    return change


def garble(raw: bytearray, start: int, end: int) -> None:
    """A whole sector of other bytes."""
    sector = start // SECTOR * SECTOR + SECTOR
    raw[sector : sector + SECTOR] = b"\xa5" * SECTOR


def opened(directory: Path, committed: int = -1, *, intact: bool = False, term_max: int | None = None) -> OpenedLog:
    return open_log(
        directory,
        data_file_size=FILE_SIZE,
        index_file_size=320,
        allocator=None,
        checkpoint=CommitCheckpoint(committed, committed, 0),
        intact=intact,
        term_max=term_max,
    )


def damaged(entry_log: LogOpener, directory: Path, index: int, change: Change, shift: int = 0) -> None:
    """A log of 12 entries of some 1,400 bytes, of which one was changed, and whose index was not synced."""
    log = entry_log(directory.name, file_size=FILE_SIZE)
    for number in range(LAST + 1):
        log.append_drafts([make_draft(b"%05d" % number + b"x" * (1300 + shift))], 1, 1000)
    position, size, _ = log.units[index]
    log.close()
    rewrite(directory, lambda raw: change(raw, position, position + size))


def rewrite(directory: Path, change: Callable[[bytearray], None]) -> None:
    path = directory / "data" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    change(raw)
    path.write_bytes(raw)
    for path in (directory / "index").iterdir():
        path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("index", [5, LAST])
@pytest.mark.parametrize("intact", [True, False])
@pytest.mark.parametrize(
    "change",
    [flip(3), flip(7), flip(15), flip(31), flip(43), flip(47), flip(HEADER_SIZE), flip(700), flip(-1), garble],
    ids=["magic", "size", "index", "position", "CRC", "body size", "record", "body", "before", "sector"],
)
def test_an_entry_damaged_behind_the_checkpoint_may_have_counted(
    entry_log: LogOpener, tmp_path: Path, index: int, intact: bool, change: Change
) -> None:
    damaged(entry_log, tmp_path / "log", index, change)
    write_hard_state(tmp_path / "log", HardState(3, "n1"))
    found = opened(tmp_path / "log", intact=intact).found
    if found.damages:  # kept where it lies, so that nothing is forgotten
        assert intact and found.last_index == LAST
        return
    assert found.last_index in (index - 2, index - 1)
    assert found.lost == (found.last_index + 1, found.last_index + 1)
    assert read_hard_state(tmp_path / "log") == HardState(3, "n1", recovering=True)


@pytest.mark.parametrize("index", [5, LAST])
@pytest.mark.parametrize("shift", range(0, SECTOR, 37))
@pytest.mark.parametrize("change", [zero(0, 0), zero(1, 1), zero(2, 2), zero(0, 2), zero(1, 2)])
def test_an_entry_of_which_sectors_were_never_written_counted_nowhere(
    entry_log: LogOpener, tmp_path: Path, index: int, shift: int, change: Change
) -> None:
    damaged(entry_log, tmp_path / "log", index, change, shift)
    write_hard_state(tmp_path / "log", HardState(3, "n1"))
    log = opened(tmp_path / "log")
    assert index - 1 <= log.found.last_index <= index
    assert log.found.lost is None
    assert read_hard_state(tmp_path / "log") == HardState(3, "n1")


def filled(entry_log: LogOpener, directory: Path, place: int, change: Callable[[bytearray, int], None]) -> None:
    """A log of two files; the first one ends in a filler at `place` of its sector, which `change` is given."""
    log = entry_log(directory.name, file_size=FILE_SIZE)
    log.append_drafts([make_draft(b"a" * 1000)], 1, 1000)
    _, size, _ = log.units[0]
    log.append_drafts([make_draft(b"b" * (1000 + (place - 2 * size) % SECTOR))], 1, 1000)
    at = log.max_position
    assert at % SECTOR == place
    log.append_drafts([make_draft(b"c" * (FILE_SIZE - at))], 1, 1000)  # fits into the next file only
    log.close()
    rewrite(directory, lambda raw: change(raw, at))


@pytest.mark.parametrize("place", range(SECTOR - FILLER_SIZE + 1, SECTOR))
@pytest.mark.parametrize("is_first_lost", [True, False])
def test_a_filler_of_which_a_sector_was_never_written_is_torn(
    entry_log: LogOpener, tmp_path: Path, place: int, is_first_lost: bool
) -> None:
    def tear(raw: bytearray, at: int) -> None:
        edge = at + SECTOR - place
        start, end = (at, edge) if is_first_lost else (edge, edge + SECTOR)
        raw[start:end] = bytes(end - start)

    filled(entry_log, tmp_path / "log", place, tear)
    found = opened(tmp_path / "log").found
    assert (found.last_index, found.lost) == (1, None)


@pytest.mark.parametrize("place", [0, 300, 470, SECTOR - FILLER_SIZE, SECTOR - 4, SECTOR - 2])
@pytest.mark.parametrize("at", [0, 3, 6])
def test_entries_behind_a_damaged_filler_may_have_counted(
    entry_log: LogOpener, tmp_path: Path, place: int, at: int
) -> None:
    filled(entry_log, tmp_path / "log", place, lambda raw, start: flip(at)(raw, start, start + FILLER_SIZE))
    found = opened(tmp_path / "log").found
    assert (found.last_index, found.lost) == (1, (2, 2))


def test_the_zeros_in_place_of_a_torn_first_entry_are_durable(
    entry_log: LogOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else, after a second power cut, the old bytes behind new entries would look like damage to them."""
    damaged(entry_log, tmp_path / "log", 0, zero(1, 1))
    synced: list[tuple[str, bool]] = []
    monkeypatch.setattr(MappedFile, "sync", lambda file: synced.append((file.path.parent.name, any(file.view))))
    assert opened(tmp_path / "log").found.last_index == -1
    assert ("data", False) in synced


def test_a_sector_that_the_disk_cannot_read_may_have_counted(
    entry_log: LogOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged(entry_log, tmp_path / "log", 5, zero(1, 1))
    readable = MappedFile.ensure_readable

    def refuse(file: MappedFile, start: int, end: int) -> None:
        if file.size_bytes == FILE_SIZE and end - start > HEADER_SIZE:
            raise DiskReadError(file.path, start, "Input/output error")
        readable(file, start, end)

    monkeypatch.setattr(MappedFile, "ensure_readable", refuse)
    assert opened(tmp_path / "log").found.lost == (0, 0)


def test_a_start_that_dies_before_it_cuts_a_damaged_entry_is_not_the_last_to_know(
    entry_log: LogOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged(entry_log, tmp_path / "log", LAST, flip(700))
    write_hard_state(tmp_path / "log", HardState(3, "n1"))
    original = MappedFileQueue.truncate_to

    def die(queue: MappedFileQueue, offset: int) -> None:
        original(queue, offset)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(MappedFileQueue, "truncate_to", die)
        opened(tmp_path / "log")
    assert opened(tmp_path / "log").found.cut is None, "nothing is left to see of it"
    assert read_hard_state(tmp_path / "log") == HardState(3, "n1", recovering=True)


@pytest.mark.parametrize(
    ("index", "change", "kept"), [(5, 1, 4), (5, 2, 4), (7, 4, 6), (8, 2, 7), (9, 1, 8), (4, 2, 3), (LAST, 2, 10)]
)
@pytest.mark.parametrize("is_unit_lost", [True, False])
def test_a_term_changed_behind_the_checkpoint_is_found_without_an_index_unit(
    entry_log: LogOpener, tmp_path: Path, index: int, change: int, kept: int, is_unit_lost: bool
) -> None:
    """Entries 0, 5 and 8 open the terms 1, 3 and 4."""
    log = entry_log(file_size=FILE_SIZE)
    for at in range(LAST + 1):
        term = 1 if at < 5 else 3 if at < 8 else 4
        body = b"message %d" % at + bytes(1500)  # a sector of zeros, as in a torn entry
        draft = term_start_draft(term, "n1", STORE_HOST, at) if at in (0, 5, 8) else make_draft(body)
        log.append_drafts([draft], term, at)
    position, _, _ = log.units[index]
    log.close()
    units = {path: path.read_bytes() for path in (tmp_path / "log" / "index").iterdir()}
    rewrite(tmp_path / "log", lambda raw: raw.__setitem__(position + 23, raw[position + 23] ^ change))
    if not is_unit_lost:
        for path, raw in units.items():
            path.write_bytes(raw)
    found = opened(tmp_path / "log", term_max=8).found
    assert (found.last_index, found.lost) == (kept, (kept + 1, kept + 1))


def test_a_term_start_that_looks_like_the_term_before_is_found_at_the_end_of_the_log(
    entry_log: LogOpener, tmp_path: Path
) -> None:
    log = entry_log(file_size=FILE_SIZE)
    for at, draft in enumerate([make_draft(b"a"), make_draft(b"b"), term_start_draft(3, "n1", STORE_HOST, 1)]):
        log.append_drafts([draft], 2 if at < 2 else 3, at)
    position, _, _ = log.units[2]
    log.close()
    rewrite(tmp_path / "log", lambda raw: raw.__setitem__(position + 23, 2))
    found = opened(tmp_path / "log", term_max=3).found
    assert (found.last_index, found.lost) == (1, (2, 2))


@pytest.mark.parametrize("committed", [-1, LAST])
def test_a_term_of_java_that_rose_is_found_by_its_unit_and_the_next_entry(
    entry_log: LogOpener, tmp_path: Path, committed: int
) -> None:
    """Java's entries have no CRC, and its leaders open terms with any message."""
    log = entry_log(file_size=FILE_SIZE)
    for at in range(LAST + 1):
        log.append_drafts([make_draft(b"message %d" % at)], 2, at)
    places = [log.units[index][0] for index in range(LAST + 1)]
    log.close()

    def as_java(raw: bytearray) -> None:
        for place in places:
            header = list(HEADER.unpack_from(raw, place))
            header[-2] = 0
            HEADER.pack_into(raw, place, *header)
        raw[places[5] + 23] = 3

    path = tmp_path / "log" / "data" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    as_java(raw)
    path.write_bytes(raw)
    found = opened(tmp_path / "log", committed, term_max=9).found
    if committed == LAST:
        assert [(damage.index, damage.term) for damage in found.damages] == [(5, 2)]
        assert found.last_index == LAST
    else:
        assert (found.last_index, found.lost) == (4, (5, 5))


@pytest.mark.parametrize("committed", [-1, 105])
def test_the_first_entry_behind_an_installed_state_is_not_older_than_that(
    committed: int, entry_log: LogOpener, tmp_path: Path
) -> None:
    log = entry_log("log", file_size=FILE_SIZE)
    log.begin_install(100, 0, 3)
    log.finish_install()
    for number in range(6):
        log.append_drafts([make_draft(b"%d" % number)], 3, 1000)
    position, _, _ = log.units[100]
    log.close()
    with (tmp_path / "log" / "data" / f"{0:020d}").open("r+b") as file:
        file.seek(position + 23)
        file.write(b"\x01")  # the term, which no CRC covers
    found = opened(tmp_path / "log", committed, term_max=3).found
    assert all(damage.term == 3 for damage in found.damages)
    if committed == 105:
        assert [damage.index for damage in found.damages] == [100]
        assert found.last_index == 105
    else:
        assert (found.last_index, found.lost) == (99, (100, 100))


async def test_a_member_that_may_have_forgotten_what_counted_elects_nobody_who_lacks_it(
    raft_cluster: Callable[..., RaftCluster],
) -> None:
    cluster = raft_cluster(checkpoint_interval_ms=10**9)
    await cluster.start(boot="first")
    leader = await cluster.elected()
    await cluster.append(leader, b"before")
    await cluster.caught_up()
    await cluster.sound()
    damaged_one, absent = (node_id for node_id in cluster.logs if node_id != leader)
    await cluster.stop(absent)
    await cluster.append(leader, b"acknowledged")
    await cluster.caught_up(leader, damaged_one)
    end = cluster.logs[leader].confirm_offset
    for node_id in (leader, damaged_one):
        await cluster.kill(node_id)
    path = cluster.root / damaged_one / f"dledger-{damaged_one}" / "data" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    raw[end - 20] ^= 1
    path.write_bytes(raw)
    await cluster.start(damaged_one, absent, boot="second")
    await asyncio.sleep(1.6)  # two election time-outs
    assert all(cluster.logs[node_id].status().soft.role is not RaftRole.LEADER for node_id in (damaged_one, absent))
    await cluster.start(leader, boot="second")
    leads = await cluster.elected()
    await cluster.append(leads, b"after")
    assert cluster.bodies(leads) == [b"before", b"acknowledged", b"after"]
    await cluster.sound()


async def test_members_that_all_may_have_forgotten_something_go_on_with_the_longest_log(
    raft_cluster: Callable[..., RaftCluster],
) -> None:
    cluster = raft_cluster(checkpoint_interval_ms=10**9)
    await cluster.start(boot="first")
    leader = await cluster.elected()
    for number in range(5):
        await cluster.append(leader, b"%d" % number)
    await cluster.caught_up()
    await cluster.sound()
    log = cluster.logs[leader]._entries
    ends = {node_id: log.end_position(log.last_index - back) for back, node_id in enumerate(cluster.logs)}
    for node_id in list(cluster.logs):
        await cluster.kill(node_id)
        path = cluster.root / node_id / f"dledger-{node_id}" / "data" / f"{0:020d}"
        raw = bytearray(path.read_bytes())
        raw[ends[node_id] - 20] ^= 1
        path.write_bytes(raw)
    await cluster.start(boot="second")
    leads = await cluster.elected()
    await cluster.append(leads, b"after")
    assert cluster.bodies(leads) == [b"0", b"1", b"2", b"3", b"after"]
    await cluster.sound()
