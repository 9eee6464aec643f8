"""The epochs of a log: which master wrote which part of it, and up to where two logs agree.

    epoch 1 from 0    epoch 2 from 500    epoch 4 from 900, to the end of the log

An epoch without records has no part of the log. The next epoch begins at the same offset and replaces it in the list,
so no two entries have the same start, and the last entry is the newest epoch. Two logs that both have a part with the
same epoch and start were written by the same master there. So they agree up to the end of the newest such part, in the
log in which it is shorter.

The file is RocketMQ's `epochFileCheckpoint`: the number of entries, a CRC-32 of what follows (sign bit cleared; 0 means
unchecked), then a line `epoch-startOffset` for each entry.

Source: apache/rocketmq `store/.../ha/autoswitch/EpochFileCache.java`,
`common/.../common/utils/CheckpointFile.java` (5.3.3).
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ha.errors import EpochFileError
from ledgermq.message.crc import crc32

SENT_MAX: Final = 1000
"""Most epochs in a handshake, the newest ones."""
_CRC_MASK: Final = 0x7FFFFFFF
_EPOCH_MAX: Final = (1 << 31) - 1
_OFFSET_MAX: Final = (1 << 63) - 1


class Epoch(NamedTuple):
    """One master's part of the log: its number, and the physical offset at which it begins."""

    number: int
    start: int


Epochs = tuple[Epoch, ...]
"""Oldest first; numbers and starts rise."""


def begun(epochs: Epochs, number: int, start: int) -> Epochs:
    """Return the epochs of a log that ends at `start`, after epoch `number` begins there.

    Raises:
        ValueError: there is an epoch of that number or a higher one already.
    """
    if epochs and epochs[-1].number >= number:
        raise ValueError(f"epoch {number} cannot begin: the log has epoch {epochs[-1].number}")
    return (*(epoch for epoch in epochs if epoch.start < start), Epoch(number, start))


def up_to(epochs: Epochs, end: int) -> Epochs:
    """Return the epochs of a log after a cut at `end`; an epoch that begins there stays, and is empty."""
    return tuple(epoch for epoch in epochs if epoch.start <= end)


def number_at(epochs: Epochs, end: int) -> int:
    """Return the newest epoch of a log that ends at `end`; 0 where it has none."""
    return max((epoch.number for epoch in epochs if epoch.start <= end), default=0)


def part_at(epochs: Epochs, offset: int) -> tuple[Epoch, int | None]:
    """Return the epoch of the byte at `offset` (the first epoch if it is below), and its end; None: no end yet."""
    after = bisect_right(epochs, offset, key=lambda epoch: epoch.start)
    return epochs[max(after - 1, 0)], epochs[after].start if after < len(epochs) else None


def common_end(ours: Epochs, our_end: int, theirs: Epochs, their_end: int) -> int | None:
    """Return the offset up to which two logs agree; None if they have no epoch in common."""
    their_ends = dict(zip(theirs, _ends(theirs, their_end), strict=True))
    for epoch, end in reversed(list(zip(ours, _ends(ours, our_end), strict=True))):
        if epoch in their_ends and epoch.start <= min(our_end, their_end):
            return min(end, their_ends[epoch])
    return None


def _ends(epochs: Epochs, end: int) -> Sequence[int]:
    return [min(epoch.start, end) for epoch in epochs[1:]] + [end] if epochs else []


def to_text(epochs: Epochs) -> str:
    """Return the newest epochs as a handshake has them: `1-0;2-500`."""
    return ";".join(f"{number}-{start}" for number, start in epochs[-SENT_MAX:])


def from_text(text: str) -> Epochs:
    """Parse the text of `to_text`.

    Raises:
        ValueError: it is malformed, or numbers or starts do not rise.
    """
    return checked(map(_read, text.split(";") if text else ()))


def encode_file(epochs: Epochs) -> bytes:
    """Return the file's bytes."""
    lines = "".join(f"{number}-{start}\n" for number, start in epochs).encode()
    return b"%d\n%d\n%b" % (len(epochs), crc32(lines) & _CRC_MASK, lines)


def decode_file(data: bytes) -> Epochs:
    """Parse a file that `encode_file`, or RocketMQ's broker, wrote.

    Raises:
        EpochFileError: it is damaged.
    """
    head, _, rest = data.partition(b"\n")
    checksum, _, lines = rest.partition(b"\n")
    try:
        count, crc = int(head), int(checksum)
        epochs = checked(map(_read, lines.decode("ascii").split()))
    except ValueError as error:
        raise EpochFileError(f"the file of epochs cannot be read: {error}") from error
    if len(epochs) != count:
        raise EpochFileError(f"the file of epochs has {len(epochs)} entries, its first line says {count}")
    if crc and crc != crc32(lines) & _CRC_MASK:
        raise EpochFileError(f"the file of epochs has CRC {crc32(lines) & _CRC_MASK}, its second line says {crc}")
    return epochs


def _read(word: str) -> Epoch:
    number, _, start = word.partition("-")
    return Epoch(int(number), int(start))


def checked(entries: Iterable[Epoch]) -> Epochs:
    """Return the epochs of a log, oldest first. Raises `ValueError`: they are out of range, or do not rise."""
    epochs: list[Epoch] = []
    for epoch in entries:
        number, start = epoch
        if not 0 < number <= _EPOCH_MAX or not 0 <= start <= _OFFSET_MAX:
            raise ValueError(f"epoch '{number}-{start}' is out of range")
        if epochs and not (epochs[-1].number < number and epochs[-1].start < start):
            raise ValueError(f"epoch '{number}-{start}' follows {epochs[-1].number}-{epochs[-1].start}")
        epochs.append(epoch)
    return tuple(epochs)
