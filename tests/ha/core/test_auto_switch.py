"""RocketMQ's dialect of elected masters: its recorded streams, and what cannot be."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from ha.core.auto_switch import (
    AUTO_SWITCH,
    MasterAnswer,
    SlaveHandshake,
    encode_answer,
    encode_handshake,
    read_answer,
    read_handshake,
)
from ha.core.epochs import Epoch, part_at
from ha.core.stream import Header, Report
from ha.errors import HaProtocolError

RECORDED = Path(__file__).parents[2] / "golden" / "wire" / "ha"
EPOCHS = (Epoch(1, 0), Epoch(2, 500))


def recorded(name: str, direction: str) -> tuple[bytes, list[dict[str, Any]]]:
    frames = json.loads((RECORDED / name / "frames.json").read_text())[direction]
    return (RECORDED / name / f"{direction}.bin").read_bytes(), frames


@pytest.mark.parametrize("name", ["auto-1", "auto-2", "auto-3", "auto-back-1"])
def test_what_rocketmqs_slave_says_is_read_and_written_alike(name: str) -> None:
    stream, frames = recorded(name, "slave-to-master")
    for frame in frames:
        data = memoryview(stream)[frame["at"] : frame["at"] + frame["length"]]
        if frame["kind"] == "handshake":
            handshake = SlaveHandshake(frame["brokerId"], frame["asyncLearner"] != 0, frame["syncFromLastFile"] != 0)
            assert read_handshake(data) == (frame["length"], handshake)
            assert encode_handshake(handshake) == bytes(data)
        else:
            report = AUTO_SWITCH.read_report(data)
            assert report == Report(frame["offset"], frame["offset"])
            assert AUTO_SWITCH.report(report) == bytes(data)
    assert sum(frame["length"] for frame in frames) == len(stream)


@pytest.mark.parametrize("name", ["auto-1", "auto-2", "auto-3", "auto-back-1"])
def test_what_rocketmqs_master_says_is_read_and_written_alike(name: str) -> None:
    stream, frames = recorded(name, "master-to-slave")
    for frame in frames:
        data = memoryview(stream)[frame["at"] : frame["at"] + frame["length"]]
        if frame["kind"] == "handshake":
            answer = MasterAnswer(frame["offset"], tuple(Epoch(*entry) for entry in frame["entries"]))
            assert read_answer(data) == (frame["length"], answer)
            assert read_answer(data[:-1]) is None
            assert encode_answer(answer) == bytes(data)
        else:
            header = AUTO_SWITCH.read_header(data)
            assert (header.offset, header.size) == (frame["offset"], frame["size"])
            assert (header.epoch, header.epoch_start) == (frame["epoch"], frame["epochStartOffset"])
            assert header.confirm_offset == frame["confirmOffset"]
            assert AUTO_SWITCH.header(header) == bytes(data[: AUTO_SWITCH.header_size])
    assert sum(frame["length"] for frame in frames) == len(stream)


def test_the_vectors_of_the_reference() -> None:
    assert encode_handshake(SlaveHandshake(2)).hex() == "00000001" + "0000" + "0000" + "0000000000000002"
    answer = "00000001" + "00000018" + "00000000000003e8" + "00000002"
    answer += "00000001" + "0000000000000000" + "00000002" + "00000000000001f4"
    assert encode_answer(MasterAnswer(1000, EPOCHS)).hex() == answer
    heartbeat = "00000002" + "00000000" + "00000000000003e8" + "00000002" + "00000000000001f4" + "0000000000000384"
    assert AUTO_SWITCH.header(Header(1000, 0, 2, 900, None, 500)).hex() == heartbeat


def test_the_part_of_an_offset_ends_where_the_next_epoch_begins() -> None:
    assert [part_at(EPOCHS, offset) for offset in (0, 499, 500, 9000)] == [
        (Epoch(1, 0), 500), (Epoch(1, 0), 500), (Epoch(2, 500), None), (Epoch(2, 500), None),
    ]  # fmt: skip
    assert part_at(EPOCHS[1:], 100) == (Epoch(2, 500), 500)


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack(">iiqi", 2, 0, 0, 0),
        struct.pack(">iiqi", 1, 13, 0, 0),
        struct.pack(">iiqi", 1, 12 * 1001, 0, 0),
        struct.pack(">iiqi", 1, -12, 0, 0),
        struct.pack(">iiqi", 1, 0, -1, 0),
        struct.pack(">iiqiiq", 1, 12, 9, 0, 0, 0),
        struct.pack(">iiqiiqiq", 1, 24, 9, 2, 2, 0, 1, 5),
    ],
)
def test_an_answer_that_cannot_be_is_refused(answer: bytes) -> None:
    with pytest.raises(HaProtocolError):
        read_answer(memoryview(answer))


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(HaProtocolError):
        read_handshake(memoryview(struct.pack(">ihhq", 1, 0, 0, 0)))
    for report in ((1, 5), (2, -1)):
        with pytest.raises(HaProtocolError):
            AUTO_SWITCH.read_report(memoryview(struct.pack(">iq", *report)))
    for header in ((1, 0, 0), (2, -1, 0), (2, 0, -1)):
        with pytest.raises(HaProtocolError):
            AUTO_SWITCH.read_header(memoryview(struct.pack(">iiqiqq", *header, 1, 0, 0)))


def test_an_end_that_is_confirmed_by_nobody_yet_is_none() -> None:
    assert AUTO_SWITCH.read_header(memoryview(struct.pack(">iiqiqq", 2, 0, 0, 1, 0, -1))).confirm_offset == 0
