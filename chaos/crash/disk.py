"""The states that a disk may have after a power cut.

    file   |= as of the last sync =| each 512 bytes: that, or any content seen since |       size: any seen since
    names  |= as of the last sync of the directory =| created | renamed | ... a prefix |

Sectors are independent: before a sync any of them may be old or new. Names of one directory keep their order, as
journals of ext4, XFS and Btrfs do, but a directory's names and the contents of its files are independent. A file's
blocks may be missing (a hole) wherever it reads as zeros.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from random import Random

SECTOR = 512

NameChange = dict[str, int | None]
"""One atomic change of a directory: names, and the nodes to which they now point; None removes a name."""


@dataclass(frozen=True, slots=True)
class FileState:
    """One file: its contents since the last sync, the synced one first."""

    versions: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """One directory: its names as of the last sync, and the changes since then."""

    names: NameChange
    steps: tuple[NameChange, ...]

    def after(self, count: int) -> NameChange:
        """Return the names after the first `count` changes have reached the disk."""
        names = dict(self.names)
        for step in self.steps[:count]:
            names.update(step)
        return names


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment of a workload.

    Attributes:
        label: the last operation.
        note_count: number of the workload's notes so far.
        root: node of the watched directory.
    """

    label: str
    note_count: int
    root: int
    files: dict[int, FileState]
    directories: dict[int, DirectoryState]


Image = dict[str, bytes | None]
"""By path below the root: a file's content, or None for a directory; in an order in which they can be created."""


class Chooser:
    """Decides which changes of a moment reached the disk. This base keeps all: only the process was killed."""

    name = "killed"

    def step_count(self, directory: DirectoryState) -> int:
        """Return how many changes of a directory reached the disk."""
        return len(directory.steps)

    def content(self, file: FileState) -> bytes:
        """Return the content of a file on the disk."""
        return file.versions[-1]


class OnlySynced(Chooser):
    """Keeps only what was synced."""

    name = "synced"

    def step_count(self, directory: DirectoryState) -> int:
        return 0

    def content(self, file: FileState) -> bytes:
        return file.versions[0]


class OnlyNames(Chooser):
    """Keeps all names and sizes, and contents as of the last sync: the journal was written, the data were not."""

    name = "names"

    def content(self, file: FileState) -> bytes:
        return file.versions[0][: len(file.versions[-1])].ljust(len(file.versions[-1]), b"\0")


class WholeFiles(Chooser):
    """Keeps each file wholly old or wholly new, and each directory after any number of its changes."""

    name = "files"

    def __init__(self, dice: Random) -> None:
        self._dice = dice

    def step_count(self, directory: DirectoryState) -> int:
        return self._dice.randint(0, len(directory.steps))

    def content(self, file: FileState) -> bytes:
        return self._dice.choice((file.versions[0], file.versions[-1]))


class TornSectors(WholeFiles):
    """Keeps any version of each sector of each file, newer ones with a probability drawn for the image."""

    name = "sectors"

    def __init__(self, dice: Random) -> None:
        super().__init__(dice)
        self._likely_new = dice.choice((0.1, 0.5, 0.9))
        self._all_names = dice.random() < 0.6

    def step_count(self, directory: DirectoryState) -> int:
        return len(directory.steps) if self._all_names else super().step_count(directory)

    def content(self, file: FileState) -> bytes:
        versions = file.versions
        if len(versions) == 1:
            return versions[0]
        dice = self._dice
        size = len(versions[-1]) if dice.random() < 0.8 else len(dice.choice(versions))
        parts = []
        for start in range(0, size, SECTOR):
            found = list(dict.fromkeys(version[start : start + SECTOR].ljust(SECTOR, b"\0") for version in versions))
            if len(found) == 1 or dice.random() >= self._likely_new:
                parts.append(found[0])
            else:
                parts.append(found[-1] if dice.random() < 0.8 else dice.choice(found[1:]))
        return b"".join(parts)[:size]


class GivenSectors(Chooser):
    """Keeps all names, and of the changed sectors, in a fixed order, the new ones where `choices` is true."""

    name = "exhaustive"

    def __init__(self, choices: Sequence[bool]) -> None:
        self._choices = iter(choices)

    def content(self, file: FileState) -> bytes:
        old, new = file.versions[0].ljust(len(file.versions[-1]), b"\0"), file.versions[-1]
        parts = []
        for start in range(0, len(new), SECTOR):
            was, now = old[start : start + SECTOR], new[start : start + SECTOR]
            parts.append(now if was == now or next(self._choices) else was)
        return b"".join(parts)


def image_of(moment: Moment, chooser: Chooser) -> Image:
    """Return the disk that `chooser` leaves; what lies below a directory whose name was lost is lost, too."""
    image: Image = {}
    _collect(moment, moment.root, "", chooser, image)
    return image


def _collect(moment: Moment, node: int, prefix: str, chooser: Chooser, image: Image) -> None:
    directory = moment.directories[node]
    for name, child in sorted(directory.after(chooser.step_count(directory)).items()):
        if child is None:
            continue
        path = prefix + name
        if child in moment.directories:
            image[path] = None
            _collect(moment, child, path + "/", chooser, image)
        else:
            image[path] = chooser.content(moment.files[child])


def torn_sector_count(moment: Moment) -> int:
    """Return the number of sectors, of files with a name, whose newest content a power cut may lose."""
    counter = _Counter()
    image_of(moment, counter)
    return counter.count


class _Counter(Chooser):
    def __init__(self) -> None:
        self.count = 0

    def content(self, file: FileState) -> bytes:
        old, new = file.versions[0].ljust(len(file.versions[-1]), b"\0"), file.versions[-1]
        if old is not new:
            self.count += sum(old[at : at + SECTOR] != new[at : at + SECTOR] for at in range(0, len(new), SECTOR))
        return new


def every_subset(moment: Moment, limit: int) -> Iterator[Chooser]:
    """Return a chooser for each subset of the torn sectors, at most `limit` of them."""
    choices = product((False, True), repeat=torn_sector_count(moment))
    return (GivenSectors(choice) for choice in islice(choices, limit))


def write_image(image: Image, root: Path, dice: Random | None = None) -> None:
    """Write an image below `root`; with `dice`, zeros at the ends of some files become holes."""
    root.mkdir(parents=True)
    for name, content in image.items():
        path = root / name
        if content is None:
            path.mkdir()
            continue
        written = content.rstrip(b"\0") if dice is not None and dice.random() < 0.3 else content
        with path.open("wb") as file:
            file.write(written)
            file.truncate(len(content))
