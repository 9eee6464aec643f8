"""Headers that repeat an earlier one are read as JSON reads them, whatever they hold."""

import json
import random
import struct
from typing import Any

import pytest

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.frame import FrameParser
from ledgermq.remoting.codec.repeated_headers import LEARN_AFTER, PATTERNS_MAX, RepeatedSend
from ledgermq.remoting.errors import FrameError

FIELDS = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": "1700000000000", "h": "0"}
FIELDS |= {"i": "UNIQ_KEY\x0107F00A\x02WAIT\x01true\x02TAGS\x01T\x02", "j": "0", "k": "false", "m": "false"}


def header(opaque: int = 1234, first: str = "", code: int = 310, **changes: str) -> bytes:
    command = {"code": code, "extFields": FIELDS | changes, "flag": 0, "language": "JAVA", "opaque": opaque}
    members = list((command | {"version": 473}).items())
    if first:
        members.sort(key=lambda member: member[0] != first)
    return json.dumps(dict(members), separators=(",", ":"), ensure_ascii=False).encode()


def frame(head: bytes, body: bytes = b"body") -> bytes:
    return struct.pack(">ii", 4 + len(head) + len(body), len(head)) + head + body


def learned(*heads: bytes) -> FrameParser:
    parser = FrameParser()
    for head in heads:
        parser.feed(frame(head) * LEARN_AFTER)
    return parser


def parts(parser: FrameParser, head: bytes) -> object:
    try:
        (command,) = parser.feed(frame(head))
    except FrameError as error:
        return str(error).partition(":")[2]
    values: list[Any] = [command.code, command.opaque, command.flag, list(command.ext.items()), bytes(command.body)]
    return [*values, command.remark, command.language, command.version, command.header_type]


def one(parser: FrameParser, head: bytes) -> Command:
    (command,) = parser.feed(frame(head))
    return command


@pytest.mark.parametrize("first", ["", "opaque", "flag"])
def test_a_header_like_others_before_it_has_its_own_values(first: str) -> None:
    parser = learned(header(first=first))
    head = header(9876, first, b="U", e="7", g="1712345678901", i=FIELDS["i"].replace("07F00A", "zZ9900"))
    command = one(parser, head)
    assert type(command) is RepeatedSend
    assert (command.opaque, command.topic, command.queue_id) == (9876, b"U", b"7")
    assert (command.born, command.key) == (b"1712345678901", b"zZ9900")
    assert parts(parser, head) == parts(FrameParser(), head)


@pytest.mark.parametrize("seed", range(8))
def test_headers_changed_anywhere_are_read_as_without_a_pattern(seed: int) -> None:
    source = random.Random(seed)
    head = header(
        source.choice([12, 1234, 1_999_999_999]), source.choice(["", "opaque"]), i=FIELDS["i"] + 'x\x01"é\x02'
    )
    parser = learned(head)
    assert type(one(parser, head)) is RepeatedSend
    for _ in range(1500):
        changed = bytearray(head)
        for _ in range(source.choice([1, 1, 2, 5])):
            changed[source.randrange(len(head))] = source.choice(b'0123456789azAZ"\\{}:,_-+. u\x00\x7f\xc3')
        assert parts(parser, bytes(changed)) == parts(FrameParser(), bytes(changed)), bytes(changed)


@pytest.mark.parametrize("opaque", [b"0234", b"-234", b"1e10", b"12.4", b"9999999999", b"2147483648"])
def test_numbers_that_are_none_in_a_header_are_not_taken(opaque: bytes) -> None:
    like = header(10 ** (len(opaque) - 1))
    parser = learned(like)
    assert type(one(parser, like)) is RepeatedSend
    head = like.replace(b'"opaque":1' + b"0" * (len(opaque) - 1), b'"opaque":' + opaque)
    assert len(head) == len(like)
    assert parts(parser, head) == parts(FrameParser(), head)


@pytest.mark.parametrize(
    "head",
    [
        header().replace(b'"f":"0"', b'"e":"1"'),
        header().replace(b'"f":"0"', b'"\\u0065":"1"'),
        header().replace(b'"flag":0', b'"flag":0,"z":{"opaque":17}'),
        header().replace(b'"opaque"', b'"opaqe":4,"\\u006fpaque"'),
        header().replace(b'"e":"3",', b"").replace(b'"flag":0', b'"flag":0,"e":"3"'),
        header().replace(b'"g"', b'"G"'),
        header(i="WAIT\x01true\x02"),
        header(i="UNIQ_KEY\x01a b\x02"),
        header(i="", z="UNIQ_KEY\x01AA\x02"),
        header(code=320),
        header(code=10),
        header(7),
        header(e="-1"),
    ],
)
def test_a_header_whose_values_are_not_where_they_seem_to_be_makes_no_pattern(head: bytes) -> None:
    parser = learned(head)
    assert type(one(parser, head)) is Command
    assert parts(parser, head) == parts(FrameParser(), head)


def test_a_connection_keeps_few_patterns_and_forgets_them_when_it_ends() -> None:
    heads = [header(b="T" * length) for length in range(1, 3 * PATTERNS_MAX)]
    parser = learned(*heads[:PATTERNS_MAX])
    assert all(type(one(parser, head)) is RepeatedSend for head in heads[:PATTERNS_MAX])
    for head in heads * 100:
        parser.feed(frame(head))
    assert 0 < len(parser._patterns) <= PATTERNS_MAX
    parser.forget()
    assert not parser._patterns


@pytest.mark.parametrize("remark", ["", ',"remark":null', ',"remark":"passed on for 10.0.0.1:1"'])
def test_a_header_is_kept_as_it_came_unless_it_has_a_remark(remark: str) -> None:
    head = header(i=FIELDS["i"] + 'x\x01"\u00e9\x02')[:-1] + remark.encode() + b"}"
    command = one(learned(head), head)
    assert isinstance(command, RepeatedSend) == ("10.0.0.1" not in remark)
    if isinstance(command, RepeatedSend):
        assert command.header == head


@pytest.mark.parametrize("name", ["B", "%", "_", "-", "é", "\\", '"', "\x7f", "+"])
def test_the_name_of_any_topic_is_read_as_it_is(name: str) -> None:
    """The broker looks for the queue of each send by it: letters, digits and a few signs need no JSON."""
    head = header(b=name)
    command = one(learned(header(b="A" * (len(header(b=name)) - len(header(b=""))))), head)
    assert command.ext["b"] == name
    assert isinstance(command, RepeatedSend) == (name in "B%_-")
    if isinstance(command, RepeatedSend):
        assert (command.topic, command.queue_id) == (name.encode(), command.ext["e"].encode())
