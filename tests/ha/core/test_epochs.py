"""Which master wrote which part of a log: the file, and up to where two logs agree."""

import pytest

from ha.core.epochs import (
    SENT_MAX,
    Epoch,
    Epochs,
    begun,
    common_end,
    decode_file,
    encode_file,
    from_text,
    number_at,
    to_text,
    up_to,
)
from ha.errors import EpochFileError

TWO: Epochs = (Epoch(1, 0), Epoch(2, 500))


def test_the_file_is_rocketmqs() -> None:
    data = encode_file((Epoch(7, 7000), Epoch(8, 8000)))
    assert data == b"2\n773307083\n7-7000\n8-8000\n"
    assert encode_file(TWO).split(b"\n")[1] == b"441882442"
    assert decode_file(data) == (Epoch(7, 7000), Epoch(8, 8000))
    assert decode_file(b"2\n0\n7-7000\n8-8000\n") == (Epoch(7, 7000), Epoch(8, 8000))  # 0: unchecked
    assert decode_file(encode_file(())) == ()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "cannot be read"),
        (b"2\n0\n7-7000\n", "1 entries, its first line says 2"),
        (b"1\n5\n7-7000\n", "its second line says 5"),
        (b"2\n0\n8-7000\n7-8000\n", "'7-8000' follows 8-7000"),
        (b"2\n0\n7-7000\n8-7000\n", "'8-7000' follows 7-7000"),
        (b"1\n0\n0-7000\n", "out of range"),
        (b"1\n0\n7-99999999999999999999\n", "out of range"),
        (b"1\n0\nx-1\n", "cannot be read"),
    ],
)
def test_a_damaged_file_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(EpochFileError, match=what):
        decode_file(data)


def test_fifty_elections_without_a_write_leave_the_newest_epoch() -> None:
    epochs = TWO
    for number in range(3, 53):
        epochs = begun(epochs, number, 900)
    assert epochs == (*TWO, Epoch(52, 900))
    assert decode_file(encode_file(epochs)) == epochs
    with pytest.raises(ValueError, match="epoch 52 cannot begin"):
        begun(epochs, 52, 1000)


def test_a_cut_log_has_the_epochs_up_to_its_end() -> None:
    assert up_to(TWO, 499) == (Epoch(1, 0),)
    assert up_to(TWO, 500) == TWO
    assert [number_at(TWO, end) for end in (0, 499, 500)] == [1, 1, 2]
    assert number_at((), 100) == 0


@pytest.mark.parametrize(
    ("ours", "our_end", "theirs", "their_end", "common"),
    [
        ("1-0", 100, "1-0", 200, 100),
        ("1-0", 300, "1-0", 200, 200),
        ("1-0", 700, "1-0;2-500", 900, 500),  # the tail behind 500 is the old master's alone
        ("1-0", 400, "1-0;2-500", 900, 400),
        ("1-0;2-500", 800, "1-0;2-500;3-700", 900, 700),
        ("1-0;2-500", 800, "1-0;3-500", 900, 500),  # 2 and 3 both follow 1
        ("1-0;2-500", 600, "1-0;2-550", 900, 500),  # one number, two starts: not one epoch
        ("2-0", 100, "3-0", 100, None),
        ("", 0, "3-0", 100, None),
        ("1-0;2-500", 300, "1-0;2-500", 900, 300),  # told of an epoch whose bytes it has not got yet
    ],
)
def test_two_logs_agree_up_to_the_end_of_their_newest_common_part(
    ours: str, our_end: int, theirs: str, their_end: int, common: int | None
) -> None:
    assert common_end(from_text(ours), our_end, from_text(theirs), their_end) == common
    assert common_end(from_text(theirs), their_end, from_text(ours), our_end) == common


def test_a_handshake_tells_of_the_newest_epochs() -> None:
    many = tuple(Epoch(number, number * 10) for number in range(1, SENT_MAX + 50))
    assert from_text(to_text(many)) == many[-SENT_MAX:]
    with pytest.raises(ValueError):
        from_text("1-0;1-5")
