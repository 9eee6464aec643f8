"""The frame parser: identity, any division of the input, and every kind of bad frame."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.remoting.codec.command import BINARY_HEADER, JSON_HEADER, LANGUAGES, Command
from ledgermq.remoting.codec.frame import FRAME_LENGTH_MAX, HEADER_LENGTH_MAX, FrameParser, encode
from ledgermq.remoting.errors import FrameError
from tests.wire import encode_response

i16 = st.integers(-(2**15), 2**15 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
filled = texts.filter(bool)

json_commands = st.builds(
    Command,
    code=i32,
    opaque=i32,
    flag=i32,
    ext=st.none() | st.dictionaries(texts, texts, max_size=5),
    body=st.binary(max_size=50),
    remark=st.none() | texts,
    language=texts,
    version=i32,
    header_type=st.just(JSON_HEADER),
)
binary_commands = st.builds(
    Command,
    code=i16,
    opaque=i32,
    flag=i32,
    ext=st.none() | st.dictionaries(filled, filled, min_size=1, max_size=5),
    body=st.binary(max_size=50),
    remark=st.none() | filled,
    language=st.sampled_from(LANGUAGES),
    version=i16,
    header_type=st.just(BINARY_HEADER),
)
commands = st.one_of(json_commands, binary_commands)


def _parts(command: Command) -> tuple[object, ...]:
    return (
        command.code,
        command.opaque,
        command.flag,
        type(command.ext),
        dict(command.ext),
        bytes(command.body),
        command.remark,
        command.language,
        command.version,
        command.header_type,
    )


def _frame(header: bytes, body: bytes = b"", header_type: int = JSON_HEADER) -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), header_type << 24 | len(header)) + header + body


def _json_frame(header: object) -> bytes:
    return _frame(json.dumps(header).encode())


def _parse(data: bytes) -> Command:
    (command,) = FrameParser().feed(data)
    return command


@given(st.lists(commands, max_size=4))
def test_parsing_undoes_encoding(sent: list[Command]) -> None:
    received = FrameParser().feed(b"".join(map(encode, sent)))
    assert list(map(_parts, received)) == list(map(_parts, sent))


@given(st.lists(commands, min_size=1, max_size=3), st.data())
def test_any_division_of_the_input_gives_the_same_commands(sent: list[Command], data: st.DataObject) -> None:
    stream = b"".join(map(encode, sent))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=8)))
    parser = FrameParser()
    received = [
        command
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for command in parser.feed(stream[start:end])
    ]
    assert list(map(_parts, received)) == list(map(_parts, sent))
    assert parser.held_bytes == 0


@given(st.lists(commands, min_size=1, max_size=2))
def test_byte_by_byte(sent: list[Command]) -> None:
    parser = FrameParser()
    stream = b"".join(map(encode, sent))
    received = [command for at in range(len(stream)) for command in parser.feed(stream[at : at + 1])]
    assert list(map(_parts, received)) == list(map(_parts, sent))


@given(st.binary(max_size=200), st.integers(0, 60))
def test_garbage_is_refused_or_waits_for_more(garbage: bytes, cut: int) -> None:
    parser = FrameParser(limit=1024)
    try:
        parser.feed(garbage[:cut])
        parser.feed(garbage[cut:])
    except FrameError:
        return
    assert parser.held_bytes <= 1024


@given(commands, st.data())
def test_a_flipped_bit_is_a_command_a_refusal_or_a_wait(command: Command, data: st.DataObject) -> None:
    frame = bytearray(encode(command))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= 1 << data.draw(st.integers(0, 7))
    parser = FrameParser()
    try:
        for parsed in parser.feed(bytes(frame)):
            encode_response(parsed.opaque, 1, parsed.ext, parsed.remark)
    except FrameError:
        pass


def test_a_body_inside_one_piece_is_a_view_of_it() -> None:
    data = encode(Command(10, body=b"body"))
    body = _parse(data).body
    assert isinstance(body, memoryview)
    assert body.obj is data


def test_a_divided_body_stays_valid_after_later_frames() -> None:
    parser = FrameParser()
    first, second = encode(Command(10, body=b"first")), encode(Command(10, body=b"second"))
    assert parser.feed(first[:-2]) == []
    (one,) = parser.feed(first[-2:] + second[:-1])
    (two,) = parser.feed(second[-1:])
    assert (bytes(one.body), bytes(two.body)) == (b"first", b"second")


def test_the_golden_frames_of_the_protocol_page() -> None:
    binary = bytes.fromhex(
        "0000002601000022006900" + "01df000000050000000000000000" + "0000000d0005746f706963000000025431"
    )
    command = Command(105, 5, ext={"topic": "T1"}, language="JAVA", header_type=BINARY_HEADER)
    assert encode(command) == binary
    assert _parts(_parse(binary)) == _parts(command)
    header = (
        b'{"code":105,"extFields":{"topic":"T1"},"flag":0,"language":"JAVA","opaque":0,'
        b'"serializeTypeCurrentRPC":"JSON","version":0}'
    )
    assert encode(Command(105, ext={"topic": "T1"}, language="JAVA", version=0)) == _frame(header)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (struct.pack(">iI", 0, 0), "frame length 0"),
        (struct.pack(">iI", 3, 0), "frame length 3"),
        (struct.pack(">iI", -1, 0), "frame length -1"),
        (struct.pack(">iI", FRAME_LENGTH_MAX - 3, 10), f"frame length {FRAME_LENGTH_MAX - 3}"),
        (struct.pack(">iI", 2**31 - 1, 10), f"frame length {2**31 - 1}"),
        (struct.pack(">iI", 100, 97), "header length 97, must be at most 96"),
        (struct.pack(">iI", 4 * HEADER_LENGTH_MAX, HEADER_LENGTH_MAX + 1), f"header length {HEADER_LENGTH_MAX + 1}"),
        (struct.pack(">iI", 100, 2 << 24 | 10), "header type 2"),
        (struct.pack(">iI", 100, 255 << 24 | 10), "header type 255"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "a TLS handshake"),
        (b"GET / HTTP/1.1\r\n\r\n", "frame length"),
        (_frame(b""), "header of 0 bytes"),
        (_frame(b"\xff\xfe"), "not UTF-8"),
        (_frame(b"{"), "a key expected"),
        (_frame(b"[]"), "not a JSON object"),
        (_frame(b"null"), "not a JSON object"),
        (_frame(b"{}"), "code is 'None'"),
        (_json_frame({"code": 10}), "opaque is 'None'"),
        (_json_frame({"code": "ten", "opaque": 1}), "code is 'ten'"),
        (_json_frame({"code": 2**31, "opaque": 1}), f"code is {2**31}, which does not fit into 32 bits"),
        (_json_frame({"code": 10, "opaque": 2**63}), f"opaque is '{2**63}', not an int"),
        (_json_frame({"code": 10, "opaque": 10**400}), "opaque is"),
        (_json_frame({"code": 1.5, "opaque": 1}), "code is '1.5'"),
        (_json_frame({"code": 10, "opaque": [1]}), r"opaque is \"\['1'\]\""),
        (_json_frame({"code": 10, "opaque": 1, "extFields": [1]}), "extFields is"),
        (_frame(b"[" * 10_000), "nested deeper"),
        (_frame(b'{"a":' * 10_000), "nested deeper"),
        (_frame(b"{" * 10_000), "within another such key"),
        (_frame(b'{"code":10,"opaque":1,"extFields":{"a":' + b"[" * 300 + b"]" * 300 + b"}}"), "nested deeper"),
        (_frame(bytes(20), header_type=BINARY_HEADER), "is incomplete"),
        (_frame(bytes(13) + b"\xff\xff\xff\xff" + bytes(4), header_type=BINARY_HEADER), "length -1"),
        (_frame(bytes(17) + b"\0\0\0\x09" + bytes(4), header_type=BINARY_HEADER), "length 9"),
        (_frame(bytes(17) + b"\0\0\0\x06" + b"\xff\xff" + bytes(4), header_type=BINARY_HEADER), "key length -1"),
        (_frame(bytes(17) + b"\0\0\0\x06" + bytes(2) + b"\0\0\0\x01", header_type=BINARY_HEADER), "value length 1"),
        (_frame(bytes(17) + b"\0\0\0\x03" + bytes(3), header_type=BINARY_HEADER), "is incomplete"),
        (_frame(bytes(16) + b"\1\xff" + bytes(4), header_type=BINARY_HEADER), "utf-8"),
    ],
)
def test_bad_frames_are_refused_with_their_place(data: bytes, complaint: str) -> None:
    good = encode(Command(10, 7))
    for divided in (False, True):
        parser = FrameParser()
        with pytest.raises(FrameError, match=complaint) as caught:
            if divided:
                assert [command.opaque for command in parser.feed(good + data[:5])] == [7]
                parser.feed(data[5:])
            else:
                parser.feed(good + data)
        assert caught.value.stream_offset == len(good)
        assert [command.opaque for command in caught.value.parsed] == ([] if divided else [7])


def test_an_oversized_length_is_refused_before_its_bytes_come() -> None:
    parser = FrameParser(limit=100)
    with pytest.raises(FrameError, match="frame length 97"):
        parser.feed(struct.pack(">iI", 97, 10))
    assert FrameParser(limit=100).feed(struct.pack(">iI", 96, 10)) == []


def test_headers_are_read_as_leniently_as_java_reads_them() -> None:
    header = (
        b'{"code":"310","opaque": 5, "extFields":{"d":4,"k":false,"t":true,"n":null,'
        b'"big":123456789012345678901234567890,'
        b'"f":1.50,"o":{"x":[1]},7:"seven"},"language":9,"unknown":[{}],"remark":12}'
    )
    command = _parse(_frame(header, b"body"))
    assert (command.code, command.opaque, command.flag, command.version) == (310, 5, 0, 0)
    assert command.ext == {
        "d": "4",
        "k": "false",
        "t": "true",
        "big": "123456789012345678901234567890",
        "f": "1.50",
        "o": '{"x":["1"]}',
        "7": "seven",
    }
    assert (command.language, command.remark, bytes(command.body)) == ("OTHER", "12", b"body")


def test_unknown_languages_are_kept() -> None:
    frame = _json_frame({"code": 1, "opaque": 1, "flag": 0, "version": 1, "language": "COBOL"})
    assert _parse(frame).language == "COBOL"
    binary = bytearray(encode(Command(1, header_type=BINARY_HEADER)))
    binary[10] = 99
    assert _parse(bytes(binary)).language == "OTHER"


def test_half_of_a_surrogate_pair_does_not_reach_the_handler() -> None:
    command = _parse(_frame(b'{"code":1,"opaque":1,"extFields":{"b":"x\\ud800y"}}'))
    command.ext["b"].encode()


def test_a_binary_header_has_sixteen_bits_for_a_code() -> None:
    with pytest.raises(ValueError, match="cannot be encoded as a binary header"):
        encode(Command(200050, header_type=BINARY_HEADER))
    with pytest.raises(ValueError, match="key has 40000 bytes"):
        encode(Command(1, ext={"k" * 40000: "v"}, header_type=BINARY_HEADER))


@given(i32, i32, st.none() | st.dictionaries(texts, texts, max_size=4), st.none() | texts, st.binary(max_size=30))
def test_the_fast_answer_is_the_general_one(
    opaque: int, code: int, ext: dict[str, str] | None, remark: str | None, body: bytes
) -> None:
    general = encode(Command(code, opaque, 1, ext, body, remark))
    assert encode_response(opaque, code, ext, remark, body) == general
