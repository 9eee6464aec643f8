"""The handshake: who belongs here, and from where a slave goes on."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from ha.core.handshake import (
    MESSAGE_LIMIT_BYTES,
    TAIL_BYTES,
    MasterWelcome,
    SlaveHello,
    join_offset,
    refusal,
    seal,
    unseal,
)
from ha.errors import DivergedLogError, HaProtocolError, MasterRefusedError, WrongGroupError

WHO: dict[str, Any] = {
    "cluster": "c",
    "name": "b",
    "file_size": 1000,
    "nonce": "0a" * 32,
    "client_address": "h:1",
    "inside_address": "i:1",
}
HELLO = SlaveHello(**WHO, broker_id=1, min_offset=0, tail_start=100, end=200, tail_crc=7, epoch=0, epochs="")
WELCOME = MasterWelcome(
    **WHO,
    epoch=0,
    epochs="",
    start=0,
    snapshot_size=0,
    wants_durable=False,
    heartbeat_ms=5000,
)


def test_both_messages_come_back_as_they_were() -> None:
    assert SlaveHello.decode(HELLO.encode()) == HELLO
    assert MasterWelcome.decode(WELCOME.encode()) == WELCOME


@pytest.mark.parametrize("field", ["version", "cluster", "name", "file_size"])
def test_a_stranger_is_told_which_field_differs_and_no_more(field: str) -> None:
    change: Any = {field: 99 if field in ("version", "file_size") else "elsewhere"}
    other = replace(HELLO, **change)
    with pytest.raises(WrongGroupError) as raised:
        WELCOME.check(other)
    told = refusal(raised.value)
    assert b"elsewhere" not in told and b"99" not in told
    with pytest.raises(MasterRefusedError, match=raised.value.field):
        MasterWelcome.decode(told)


@pytest.mark.parametrize(
    "change",
    [{"broker_id": "1"}, {"end": -1}, {"end": True}, {"nonce": "0a"}, {"nonce": "zz" * 32}, {"cluster": None}],
    ids=str,
)
def test_a_hello_with_a_wrong_value_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(HaProtocolError):
        SlaveHello.decode(json.dumps(asdict(HELLO) | change).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b"\xff" * 20, b"[" * 4000])
def test_what_is_no_hello_is_refused(data: bytes) -> None:
    with pytest.raises(HaProtocolError):
        SlaveHello.decode(data)


def joined(hello: SlaveHello, min_offset: int, end: int, crc: int | None = 7) -> int:
    return join_offset(hello, min_offset, end, lambda _start, _end: crc)


def test_a_slave_goes_on_where_its_log_ends() -> None:
    assert joined(HELLO, 0, 200) == 200
    assert joined(HELLO, 0, 5000) == 200


def test_an_empty_slave_gets_everything() -> None:
    empty = replace(HELLO, tail_start=0, end=0, tail_crc=0)
    assert joined(empty, 0, 5000, None) == 0
    assert joined(empty, 3000, 5000, None) == 3000


def test_a_slave_that_fell_behind_the_oldest_file_begins_anew() -> None:
    assert joined(HELLO, 1000, 5000, None) == 1000
    assert joined(HELLO, 200, 5000, None) == 200, "what shows that the logs agree is not there any more"


def test_a_log_that_differs_is_refused_and_the_slave_learns_how() -> None:
    for end, crc, what in ((199, 7, "longer"), (200, 8, "other bytes"), (5000, None, "other bytes")):
        with pytest.raises(DivergedLogError) as raised:
            joined(HELLO, 0, end, crc)
        assert raised.value.what == what
        with pytest.raises(DivergedLogError, match=what):
            MasterWelcome.decode(refusal(raised.value))


@pytest.mark.parametrize("size", [-1, TAIL_BYTES + 1])
def test_a_tail_that_is_too_long_is_refused_before_its_crc_is_computed(size: int) -> None:
    hello = replace(HELLO, tail_start=TAIL_BYTES, end=TAIL_BYTES + size)
    with pytest.raises(HaProtocolError, match=f"a tail from {TAIL_BYTES} to {TAIL_BYTES + size}; it may have"):
        join_offset(hello, 0, 1 << 30, lambda _start, _end: pytest.fail("a CRC of so much"))


def test_a_message_is_taken_once_it_is_whole() -> None:
    message = seal(b"said", bytes(32))
    for size in range(len(message)):
        assert unseal(memoryview(message[:size])) is None
    assert unseal(memoryview(message + b"more")) == (len(message), bytes(32), b"said")


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1", b"\0\0\0\0\0", b"\0\0\0\x05\x07aaaa", b"\xff" * 8])
def test_garbage_is_refused_before_it_is_waited_for(data: bytes) -> None:
    with pytest.raises(HaProtocolError):
        unseal(memoryview(data))


def test_a_message_has_a_limit() -> None:
    with pytest.raises(HaProtocolError):
        unseal(memoryview(seal(bytes(MESSAGE_LIMIT_BYTES))))
