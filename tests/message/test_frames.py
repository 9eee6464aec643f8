"""Where frames of many records begin and end: the same, whether they are followed one by one or side by side."""

import random
from struct import pack, unpack_from

import pytest

from ledgermq.message import frames
from ledgermq.message.entry_header import FILLER_MAGIC, HEADER_SIZE
from ledgermq.message.entry_header import MAGIC as ENTRY_MAGIC
from ledgermq.message.frames import Stop, entry_chain, record_chain
from ledgermq.message.layout import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN

FRAMES = 600
KINDS = ["records", "entries"]


def prefix(kind: str, size: int, magic: int) -> bytes:
    return pack(">ii", size, magic) if kind == "records" else pack(">ii", magic, size)


def log_of(kind: str, seed: int, *, forged: bool = False) -> bytearray:
    """Frames of many sizes; `forged`: each holds other heads at every 8 bytes, as a body could."""
    draw, log = random.Random(seed), bytearray()
    for _ in range(FRAMES):
        size = draw.randrange(152, 400, 8 if forged else 1)
        magic = draw.choice([MAGIC_V1, MAGIC_V1, MAGIC_V2]) if kind == "records" else ENTRY_MAGIC
        false = prefix(kind, draw.randrange(96, 400, 8), magic) if forged else draw.randbytes(8)
        log += prefix(kind, size, magic) + (false * size)[: size - 8]
    return log


def expected(kind: str, log: bytes | bytearray, last: int, limit: int) -> tuple[list[int], list[int], int, Stop]:
    """What the definition says, frame by frame."""
    position, starts, stop = 0, [], Stop.WINDOW
    magics = (MAGIC_V1, MAGIC_V2) if kind == "records" else (ENTRY_MAGIC,)
    padding = BLANK_MAGIC if kind == "records" else FILLER_MAGIC
    while position < last and limit - position >= 8:
        first, second = unpack_from(">ii", log, position)
        size, magic = (first, second) if kind == "records" else (second, first)
        if magic not in magics:
            stop = Stop.PADDING if magic == padding else Stop.BAD
            break
        if size < (RECORD_SIZE_MIN if kind == "records" else HEADER_SIZE + 1):
            stop = Stop.BAD
            break
        if position + size > limit:
            stop = Stop.BAD if kind == "records" else Stop.WINDOW
            break
        starts.append(position)
        position += size
    head = 0 if kind == "records" else HEADER_SIZE
    return [start + head for start in starts], [*starts[1:], position] if starts else [], position, stop


def found(kind: str, log: bytes, last: int, limit: int) -> tuple[list[int], list[int], int, Stop]:
    chain = (record_chain if kind == "records" else entry_chain)(memoryview(log), 0, last, limit)
    return chain.starts.tolist(), chain.ends.tolist(), chain.end, chain.stop


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("forged", [False, True])
def test_frames_of_many_sizes_are_found(kind: str, forged: bool) -> None:
    for seed in range(20):
        log = bytes(log_of(kind, seed, forged=forged))
        for last in (len(log), len(log) * 2 // 3, 20_000, 100):
            for limit in (len(log), len(log) - 3, len(log) - 100):
                assert found(kind, log, last, limit) == expected(kind, log, last, limit)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "bad", [(0, 7), (None, 7), (5, None), (-9, None), (1 << 30, None), (200, BLANK_MAGIC), (200, FILLER_MAGIC)]
)
def test_a_chain_ends_where_a_frame_is_none(kind: str, bad: tuple[int | None, int | None]) -> None:
    size, magic = bad
    for seed in range(12):
        log = log_of(kind, seed)
        starts, ends, _, _ = expected(kind, log, len(log), len(log))
        number = random.Random(seed).randrange(len(starts))
        at, usual = (starts[number], MAGIC_V1) if kind == "records" else (starts[number] - HEADER_SIZE, ENTRY_MAGIC)
        log[at : at + 8] = prefix(kind, ends[number] - at if size is None else size, usual if magic is None else magic)
        assert found(kind, bytes(log), len(log), len(log)) == expected(kind, log, len(log), len(log))


@pytest.mark.parametrize("kind", KINDS)
def test_most_frames_are_followed_side_by_side(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    walked = []

    def one_by_one(view: memoryview, position: int, last: int, *rest: object) -> object:
        walked.append(last - position)
        return original(view, position, last, *rest)  # type: ignore[arg-type]

    original = frames._one_by_one
    monkeypatch.setattr(frames, "_one_by_one", one_by_one)
    log = bytes(log_of(kind, 1))
    found(kind, log, len(log), len(log))
    assert sum(walked) < 20_000 < len(log) // 5
