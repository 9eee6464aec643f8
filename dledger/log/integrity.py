"""Verifies entries that this process did not write, and replaces damaged ones by a peer's copy.

    scrub -->  entry, entry, entry, X ...          X is a Damage: not sent, not served, reported with file and offset
                                    '-- a peer's bytes of the same (index, term) are written to the same place

Two logs that have an entry of the same index and term have the same bytes there (log matching). So a copy from any peer
that passes its CRC can be used, not only the leader's.

An index unit that does not fit its entry may itself be the damaged one: the units of the entries before and behind it
tell where its entry lies.
"""

from collections.abc import Callable

from dledger.errors import EntryFormatError
from dledger.log.entry import HEADER_SIZE, body_fault, header_fault, read_header
from dledger.log.recovery import DamagedEntry
from dledger.log.unit_index import UnitIndex
from store.errors import DiskReadError
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue


class LogIntegrity:
    """Knows which entries of a log are damaged.

    Args:
        data, units: of the log.
        damages: those that recovery found.
        records: entry bodies are RocketMQ records.
        verified_from: entries from there on were checked, or written, by this process.
        term_at: returns the term of an entry.

    Attributes:
        verified_position: entries from there on may be served without `is_sound`: they were checked, or written, by
            this process, and none of them is damaged.
        on_damage: called with each damage that is found.
    """

    def __init__(
        self,
        data: MappedFileQueue,
        units: UnitIndex,
        damages: list[DamagedEntry],
        *,
        records: bool,
        verified_from: int,
        term_at: Callable[[int], int],
    ) -> None:
        self._data = data
        self._units = units
        self._damages = {damage.index: damage for damage in damages}
        self._blocking = set(self._damages)
        self._records = records
        self._verified_from = verified_from
        self._term_at = term_at
        self._scrubbed_to = -1
        self._checked_position = self._position_of(verified_from)
        self.verified_position = self._checked_position
        self._find_verified()
        self.on_damage: Callable[[DamagedEntry], None] | None = None

    @property
    def damages(self) -> list[DamagedEntry]:
        """Damaged entries that wait for a peer's copy, in rising order."""
        return [self._damages[index] for index in sorted(self._damages)]

    @property
    def first_blocking(self) -> int | None:
        """The lowest damage that recovery found: until it is repaired this node neither counts nor serves what follows.

        Damage found later does not block: everything behind it was already served and counted.
        """
        return min(self._blocking) if self._blocking else None

    @property
    def blocking_position(self) -> int | None:
        """Absolute position of that damage."""
        index = self.first_blocking
        return None if index is None else self._damages[index].position

    def damage_at(self, position: int) -> DamagedEntry | None:
        """Return the damaged entry that begins there and waits for a copy; None if there is none."""
        return next((damage for damage in self._damages.values() if damage.position == position), None)

    def is_damaged(self, index: int) -> bool:
        """Return whether the entry waits for a peer's copy."""
        return index in self._damages

    def sound_until(self, first: int, last: int) -> int:
        """Return the last entry of `first .. last` before the first damaged one; `first - 1` when that is the first."""
        for index in range(first, min(last + 1, self._verified_from)):
            self.is_sound(index)
        if self._damages:
            bad = [index for index in self._damages if first <= index <= last]
            return min(bad) - 1 if bad else last
        return last

    def scrub(self, first_index: int, size_limit_bytes: int) -> bool:
        """Verify about `size_limit_bytes` more of the entries present at the start; return whether all are verified."""
        index = max(self._scrubbed_to + 1, first_index)
        left = size_limit_bytes
        while index < self._verified_from and left > 0:
            if index not in self._damages:
                self._verify(index)
            left -= self._units[index][1]
            self._scrubbed_to = index
            index += 1
        if index >= self._verified_from:
            self._verified_from, self._checked_position = first_index, 0
            self._find_verified()
            return True
        return False

    @property
    def scrubbed_position(self) -> int:
        """Absolute position of the entry that `scrub` verified last; 0 before the first."""
        unit = self._units.find(self._scrubbed_to)
        return 0 if unit is None else unit[0]

    def examine_from(self, first_index: int, position: int) -> int:
        """Verify what opening the log did not, from the entry at or behind `position` on, which a start needs.

        What is damaged blocks, as if it had been found when the log was opened: nothing was served since then.

        Args:
            first_index: of the log.
            position: where something is unreadable.

        Returns:
            Where a walk goes on: at that entry, which waits for a copy if it is damaged, or behind it.

        Raises:
            StoreFormatError: an index unit is damaged, too.
        """
        units, index = self._units, first_index
        if units[first_index][0] < position:
            index = units.last_ending_by(first_index, max(self._verified_from - 1, first_index), position) + 1
        self.examine(index, self._verified_from - 1)
        self._blocking.update(self._damages)
        start, size, _ = units[index]
        return start if index in self._damages or start >= position else start + size

    def write_copy(self, index: int, term: int, entry: memoryview) -> MappedFile:
        """Write a peer's copy of the damaged entry `index` in place; return the file to sync before `clear`.

        Raises:
            EntryFormatError: the copy is another entry, or is damaged itself; nothing was changed.
        """
        damage = self._damages.get(index)
        if damage is None or damage.term != term or damage.size_bytes != len(entry):
            raise EntryFormatError(
                damage.position if damage else -1, f"{len(entry)} bytes cannot be a copy of entry {index}"
            )
        header = read_header(entry, 0)
        fault = header_fault(header, damage.position, len(entry) + damage.size_bytes)
        if fault is None and (header.entry_index, header.term, header.size) != (index, term, len(entry)):
            fault = f"header is of entry {header.entry_index}, term {header.term}, size {header.size}"
        fault = fault or body_fault(entry, 0, header, records=self._records)
        if fault is not None:
            raise EntryFormatError(damage.position, f"a peer's copy of entry {index} cannot be used: {fault}")
        file = self._data.file_at(damage.position)
        assert file is not None, f"entry {index} is kept, its file at {damage.position} is not"
        offset = damage.position - file.start_offset
        file.write_over(offset, entry)
        self._units.put(index, term, damage.position, damage.size_bytes)
        return file

    def clear(self, index: int) -> None:
        """Note that the copy of `index` is durable."""
        self._damages.pop(index, None)
        self._blocking.discard(index)
        self._find_verified()

    def forget_after(self, last_index: int) -> None:
        """Forget damages above `last_index`, where the log was cut."""
        self._keep(lambda index: index <= last_index)
        if self._verified_from > last_index:
            self._verified_from, self._checked_position = last_index + 1, self._data.max_offset
        self._find_verified()

    def forget_before(self, first_index: int) -> None:
        """Forget damages below `first_index`, which were deleted."""
        self._keep(lambda index: index >= first_index)

    def is_sound(self, index: int, position: int | None = None) -> bool:
        """Return whether an entry is undamaged; one that was there at the start is verified when it is first read.

        `position` is where the header of an entry names this index, in case that no index unit tells.
        """
        if index < self._verified_from and index not in self._damages:
            self._verify(index, position)
        return index not in self._damages

    def examine(self, first_index: int, last_index: int) -> None:
        """Verify entries again, since the disk could not read one of them."""
        for index in range(first_index, last_index + 1):
            if index not in self._damages:
                self._verify(index)

    def _keep(self, is_kept: Callable[[int], bool]) -> None:
        self._damages = {index: damage for index, damage in self._damages.items() if is_kept(index)}
        self._blocking.intersection_update(self._damages)
        self._find_verified()

    def _find_verified(self) -> None:
        ends = [damage.position + damage.size_bytes for damage in self._damages.values()]
        self.verified_position = max([self._checked_position, *ends])

    def _position_of(self, index: int) -> int:
        unit = self._units.find(index)
        return self._data.max_offset if unit is None else unit[0]

    def _verify(self, index: int, header_at: int | None = None) -> None:
        unit = self._units.find(index)
        fault = "its index unit is unreadable" if unit is None else self._fault(index, *unit)
        if fault is None:
            return
        placed = self._placed(index)
        if placed is None and unit is None and header_at is not None and (size := self._size_at(header_at, index)):
            placed = header_at, size, self._term_at(index)
        if placed is not None and placed != unit:
            unit, fault = placed, self._fault(index, *placed)
        position, size, term = unit or self._units[index]
        file = self._data.file_at(position)
        if fault is None:
            self._units.put(index, term, position, size)
        elif file is not None:
            damage = DamagedEntry(index, term, position, size, file.path, position - file.start_offset, fault)
            self._damages[index] = damage
            self._find_verified()
            if self.on_damage is not None:
                self.on_damage(damage)

    def _placed(self, index: int) -> tuple[int, int, int] | None:
        """Return `(position, size, term)` of an entry by the sound ones beside it; None if they do not tell."""
        before, behind = self._units.find(index - 1), self._units.find(index + 1)
        file = None if behind is None else self._data.file_at(behind[0])
        if before is None or behind is None or file is None:
            return None
        if self._fault(index - 1, *before) is not None or self._fault(index + 1, *behind) is not None:
            return None
        position = before[0] + before[1]
        if behind[0] > file.start_offset:
            position = max(position, file.start_offset)
            size = behind[0] - position
        else:
            size = self._size_at(position, index)  # the last one of its file
        return (position, size, self._term_at(index)) if size > HEADER_SIZE else None

    def _size_at(self, position: int, index: int) -> int:
        """Return the size of an entry by its own header; 0 if there is no good one of it."""
        file = self._data.file_at(position)
        if file is None or file.end_offset - position < HEADER_SIZE:
            return 0
        offset = position - file.start_offset
        try:
            file.ensure_readable(offset, offset + HEADER_SIZE)
        except DiskReadError:
            return 0
        header = read_header(file.view, offset)
        is_good = header_fault(header, position, file.size_bytes - offset) is None and header.entry_index == index
        return header.size if is_good else 0

    def _fault(self, index: int, position: int, size: int, term: int) -> str | None:
        """Return what is wrong with an entry, if anything. One that the disk cannot read counts as damaged."""
        file = self._data.file_at(position)
        if file is None or size <= HEADER_SIZE or position + size > file.end_offset:
            return f"its index unit says position {position}, size {size}"
        offset = position - file.start_offset
        try:
            file.ensure_readable(offset, offset + size)
        except DiskReadError as error:
            return str(error)
        header = read_header(file.view, offset)
        fault = header_fault(header, position, file.size_bytes - offset)
        if fault is None and (header.entry_index, header.term, header.size) != (index, term, size):
            fault = f"header is of entry {header.entry_index}, term {header.term}, size {header.size}"
        return fault or body_fault(file.view, offset, header, records=self._records)
