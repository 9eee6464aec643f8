"""The dialects of the stream, and RocketMQ's recorded ones."""

import json
from pathlib import Path

import pytest

from ha.core.stream import CLASSIC, FRAME_LIMIT_BYTES, OPENER, OURS, Header, Report, SealedOurs
from ha.errors import HaProtocolError

RECORDED = Path(__file__).parents[2] / "golden" / "wire" / "ha" / "classic-1"
FRAMES = json.loads((RECORDED / "frames.json").read_text())


def test_the_reports_of_rocketmqs_slave_are_read_and_written_alike() -> None:
    stream = (RECORDED / "slave-to-master.bin").read_bytes()
    assert len(stream) == CLASSIC.report_size * len(FRAMES["slave-to-master"])
    for frame in FRAMES["slave-to-master"]:
        report = CLASSIC.read_report(memoryview(stream)[frame["at"] :])
        assert report == Report(frame["offset"], frame["offset"])
        assert CLASSIC.report(report) == stream[frame["at"] : frame["at"] + CLASSIC.report_size]


def test_the_frames_of_rocketmqs_master_are_read_and_written_alike() -> None:
    stream = (RECORDED / "master-to-slave.bin").read_bytes()
    position = 0
    for frame in FRAMES["master-to-slave"]:
        header = CLASSIC.read_header(memoryview(stream)[position:])
        assert (position, header.offset, header.size) == (frame["at"], frame["offset"], frame["size"])
        assert CLASSIC.header(header) == stream[position : position + CLASSIC.header_size]
        position += CLASSIC.header_size + header.size
    assert position == len(stream)


def test_the_vectors_of_the_reference() -> None:
    assert CLASSIC.report(Report(1 << 30, 0)) == bytes.fromhex("0000000040000000")
    data = Header(1 << 30, 32768, 0, None, None)
    assert CLASSIC.header(data) == bytes.fromhex("000000004000000000008000")


def test_our_dialect_comes_back_as_it_was() -> None:
    header = Header(1 << 40, 4096, 7, 1 << 39, 0xDEADBEEF)
    assert OURS.read_header(memoryview(OURS.header(header))) == header
    assert OURS.read_report(memoryview(OURS.report(Report(9, 5)))) == Report(9, 5)


def _sealed(secret: bytes = b"secret") -> SealedOurs:
    return SealedOurs(secret, bytes(32), bytes(31) + b"m")


def test_sealed_reports_and_frames_come_back_as_they_were() -> None:
    maker, reader = _sealed(), _sealed()
    for number in range(3):
        header = Header(number, 4, 7, 1, 0xDEADBEEF)
        assert reader.read_header(memoryview(maker.header(header))) == header
        reader.check(b"data", memoryview(maker.seal(b"data")))
        assert reader.read_report(memoryview(maker.report(Report(number, 0)))) == Report(number, 0)


def test_whatever_was_changed_repeated_left_out_or_made_without_the_secret_is_refused() -> None:
    maker = _sealed()
    first, second = (memoryview(maker.report(Report(number, 0))) for number in (1, 2))
    for told in (
        [bytes([0] * 7 + [9]) + first[8:]],
        [first, first],
        [second],
        [_sealed(b"other").report(Report(1, 0))],
    ):
        reader = _sealed()
        with pytest.raises(HaProtocolError, match="without the seal"):
            for report in told:
                reader.read_report(memoryview(report))
    with pytest.raises(HaProtocolError, match="without the seal"):
        _sealed().read_header(memoryview(maker.report(Report(1, 0)) + bytes(99)))  # sent back to its maker
    seal = _sealed().seal(b"data")
    with pytest.raises(HaProtocolError, match="without the seal"):
        _sealed().check(b"dada", memoryview(seal))


@pytest.mark.parametrize("report", [OPENER, bytes.fromhex("8000000000000000")])
def test_a_negative_report_is_refused(report: bytes) -> None:
    with pytest.raises(HaProtocolError):
        CLASSIC.read_report(memoryview(report))


def test_a_report_of_more_durable_than_received_is_refused() -> None:
    with pytest.raises(HaProtocolError):
        OURS.read_report(memoryview(OURS.report(Report(5, 6))))


@pytest.mark.parametrize("header", [Header(-1, 0, 0, 0, 0), Header(0, -1, 0, 0, 0), Header(0, 1, 0, -1, 0)])
def test_a_header_with_a_negative_number_is_refused(header: Header) -> None:
    with pytest.raises(HaProtocolError):
        OURS.read_header(memoryview(OURS.header(header)))


def test_a_frame_that_no_slave_has_room_for_is_refused() -> None:
    header = Header(0, FRAME_LIMIT_BYTES, 0, None, None)
    assert CLASSIC.read_header(memoryview(CLASSIC.header(header))) == header
    with pytest.raises(HaProtocolError):
        CLASSIC.read_header(memoryview(CLASSIC.header(header._replace(size=FRAME_LIMIT_BYTES + 1))))
