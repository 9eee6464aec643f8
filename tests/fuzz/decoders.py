"""Level `decoders`: whatever takes bytes or text from outside, in this process, thousands of times a second.

A case draws a target and an input. The target must return or raise one of its own errors, use less than a second of
processor time, and leave the process as large as it was.
"""

import asyncio
import inspect
import itertools
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from broker.auth.plain_acl import PlainAclError, convert
from broker.delay.timer_requests import RecallHandle
from broker.groups.clients import Heartbeat
from broker.groups.subscription import Subscription, parse_tags
from broker.pop.handles import parse_handle
from broker.sql.errors import SqlSyntaxError
from broker.sql.parser import compile_filter
from broker.state.settings import GroupConfig, TopicConfig
from broker.state.users import Acl, UserChange
from dledger.errors import PeerProtocolError
from dledger.peers import wire
from dledger.peers.frame_stream import FrameStream
from ledgermq.client.core.compression import decompress
from ledgermq.client.errors import UndecodableError
from ledgermq.message.errors import MessageFormatError
from ledgermq.message.ids import parse_offset_message_id
from ledgermq.message.properties import decode_properties, encode_properties, find_property
from ledgermq.message.record import decode_records
from ledgermq.remoting.codec.command import BINARY_HEADER, JSON_HEADER, NoFields
from ledgermq.remoting.codec.frame import FrameParser, encode
from ledgermq.remoting.codec.headers import decode_binary_header, decode_odd_json_header
from ledgermq.remoting.codec.java_json import load_json as load_java_file
from ledgermq.remoting.codec.lenient_json import loads, loads_numbers_as_text
from ledgermq.remoting.codec.properties_text import parse_properties
from ledgermq.remoting.errors import FrameError, JsonError
from ledgermq.remoting.refusal import Refusal
from nameserver.register_body import parse_register_body
from tests.fuzz.bodies import BODIES
from tests.fuzz.cases import Failure, kept_bytes
from tests.fuzz.frames import Frames
from tests.fuzz.values import PROPERTY_NAMES, Values
from tests.wire import split_batch

LIMIT_S: Final = 1.0
TAKEN_MAX_BYTES: Final = 192 << 20
"""While a case is fed: the largest input that is allowed here inflates to 64 MiB."""

WARM_UP: Final = 400
GROWTH_MAX_BYTES: Final = 64 << 20
"""What the process keeps of all cases behind the first ones."""

_CODES: Final = range(wire.HELLO, wire.REFUSAL + 1)


@dataclass(frozen=True, slots=True)
class Target:
    """What is fed: `draw` makes an input, `feed` takes it, `errors` are what it may raise."""

    draw: Callable[[Values], Any]
    feed: Callable[[Any], object]
    errors: tuple[type[Exception], ...] = ()


def _frames(values: Values) -> tuple[bytes, list[int]]:
    frames = Frames(values, values.random.choice("BN"))
    whole = [frames.bytes_of(frames.request(opaque)) for opaque in range(values.random.choice((1, 1, 3)))]
    data = b"".join(whole)
    starts = list(itertools.accumulate(map(len, whole), initial=0))
    near = [
        values.random.choice(starts) + values.random.randrange(12) for _ in range(values.random.choice((0, 0, 1, 2)))
    ]
    anywhere = [values.random.randrange(len(data) + 1) for _ in range(values.random.choice((0, 0, 1, 5)))]
    return data, sorted(min(cut, len(data)) for cut in near + anywhere)


def _parse(frames: tuple[bytes, list[int]]) -> None:
    data, cuts = frames
    whole, error = _commands([data])
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    divided, divided_error = _commands(pieces)
    assert whole == divided, f"whole and in pieces differ: {whole} {divided}"
    assert str(error) == str(divided_error), f"{error!r} when whole, {divided_error!r} in pieces"
    if error is not None:
        raise error


def _commands(pieces: list[bytes]) -> tuple[list[object], FrameError | None]:
    parser, found = FrameParser(), []
    error: FrameError | None = None
    try:
        for piece in pieces:
            found += parser.feed(piece)
    except FrameError as caught:
        found += caught.parsed
        error = caught
    for command in found:
        if command.header_type == JSON_HEADER and type(command.ext) is not NoFields:
            (again,) = FrameParser().feed(encode(command))
            assert (again.code, dict(again.ext), again.remark) == (command.code, dict(command.ext), command.remark)
    return [(c.code, c.opaque, c.flag, dict(c.ext), bytes(c.body), c.remark, c.language) for c in found], error


def _filter(text: str) -> None:
    matches = inspect.unwrap(compile_filter)(text)
    for properties in (
        b"",
        b"a\x011\x02b\x01x\x02TAGS\x01s\x02",
        b"a\x01" + b"9" * 400 + b"\x02b\x011e400",
        b"\xff\x01\xff",
    ):
        matches(properties)


def _json(values: Values) -> bytes:
    return values.json(values.random.choice(list(BODIES.values())))


def _parsed(values: Values) -> Any:
    for _ in range(20):
        try:
            return loads(_json(values))
        except JsonError:
            continue
    return None


def _properties(text: str) -> None:
    raw = text.encode(errors="replace")
    found = decode_properties(raw)
    assert decode_properties(encode_properties(found)) == found if all(found) else True
    for name in PROPERTY_NAMES:
        if name:
            find_property(raw, name.encode())


def _bad_bytes(values: Values) -> bytes:
    return values.random.choice((values.batch, values.deflated, lambda: values.random.randbytes(300)))()


class _Peer:
    def on_open(self, transport: asyncio.Transport) -> None: ...

    def on_frame(self, code: int, body: memoryview) -> None:
        wire.decode(code, body, "n1")

    def on_closed(self, error: Exception | None) -> None: ...


class _Gone(asyncio.Transport):
    def abort(self) -> None: ...

    def close(self) -> None: ...


def peer_bytes(values: Values) -> bytes:
    """A frame between members of a Raft group; its checksum is right at times, its content never."""
    code = values.random.choice(_CODES)
    sealed = wire.seal(code, values.random.randbytes(values.random.choice((0, 8, 40, 72, 300))))
    return values.damaged(sealed) if values.chance(0.6) else sealed


def _peer(data: bytes) -> None:
    stream = FrameStream(_Peer(), 1 << 20)
    stream.connection_made(_Gone())
    while data:
        room = stream.get_buffer(-1)
        count = min(len(room), len(data))
        assert count, "no room in the buffer"
        room[:count] = data[:count]
        stream.buffer_updated(count)
        data = data[count:]


def _header(values: Values, header_type: int) -> bytes:
    frames = Frames(values, "B")
    command = frames.request(1)
    command.header_type, command.code = header_type, command.code & 0x7FFF
    whole = frames.bytes_of(command)
    return values.damaged(whole[8 : 8 + int.from_bytes(whole[5:8], "big")])


TARGETS: Final[dict[str, Target]] = {
    "frames": Target(_frames, _parse, (FrameError,)),
    "binary header": Target(lambda v: _header(v, BINARY_HEADER), decode_binary_header, (ValueError,)),
    "odd header": Target(lambda v: _header(v, JSON_HEADER), decode_odd_json_header, (ValueError, JsonError)),
    "json": Target(_json, loads, (JsonError,)),
    "json numbers": Target(_json, loads_numbers_as_text, (JsonError,)),
    "java file": Target(_json, load_java_file, (JsonError,)),
    "properties": Target(Values.properties, _properties),
    "settings": Target(Values.text, parse_properties, (Refusal,)),
    "batch": Target(Values.batch, lambda data: list(split_batch(data)), (MessageFormatError,)),
    "records": Target(_bad_bytes, decode_records, (MessageFormatError,)),
    "message id": Target(Values.text, parse_offset_message_id, (MessageFormatError,)),
    "registration": Target(
        lambda v: (v.deflated() if v.chance(0.7) else v.json(BODIES[103]), v.random.choice((0, 36, 37, 412, 413, 479))),
        lambda given: parse_register_body(given[0], given[1], "b"),
        (Refusal,),
    ),
    "sql": Target(Values.sql, _filter, (SqlSyntaxError,)),
    "tags": Target(Values.text, parse_tags, (Refusal,)),
    "handle": Target(Values.handle, parse_handle, (Refusal,)),
    "recall handle": Target(Values.text, RecallHandle.decode),
    "heartbeat": Target(_parsed, Heartbeat.from_json, (Refusal,)),
    "subscription": Target(_parsed, Subscription.from_json, (Refusal,)),
    "topic": Target(_parsed, TopicConfig.from_json, (Refusal,)),
    "group": Target(_parsed, GroupConfig.from_json, (Refusal,)),
    "acl": Target(_parsed, Acl.from_json, (Refusal,)),
    "user": Target(_parsed, UserChange.from_json, (Refusal,)),
    "plain acl": Target(_parsed, convert, (PlainAclError,)),
    "inflated body": Target(
        lambda v: (_bad_bytes(v), v.random.choice((0, 0x100, 0x200, 0x300, 0x400, 0x700))),
        lambda given: decompress(given[0], given[1]),
        (UndecodableError,),
    ),
    "peer": Target(peer_bytes, _peer, (PeerProtocolError,)),
}
"""By name."""


def run_case(seed: int, number: int) -> Failure | None:
    """One case."""
    values = Values(f"decoders {seed} {number}")
    name = values.random.choice(list(TARGETS))
    target = TARGETS[name]
    given = target.draw(values)
    before, began = _peak_bytes(), time.thread_time()
    try:
        target.feed(given)
    except target.errors:
        pass
    except Exception as error:
        return Failure("decoders", seed, number, f"{name}: {type(error).__name__}: {error}: {_shown(given)}")
    spent = time.thread_time() - began
    if spent > LIMIT_S:
        return Failure("decoders", seed, number, f"{name}: {spent:.2f} s of processor time: {_shown(given)}")
    if (taken := _peak_bytes() - before) > TAKEN_MAX_BYTES:
        return Failure("decoders", seed, number, f"{name}: took {taken >> 20} MiB: {_shown(given)}")
    return None


def run(seed: int, count: int | None, seconds: float, failures_max: int = 20) -> tuple[int, list[Failure]]:
    """Cases until `count` are done, so many failed, or the time is over; returns how many, and what failed."""
    before = 0
    deadline = time.monotonic() + seconds
    failures: list[Failure] = []
    number = 0
    while (count is None or number < count) and time.monotonic() < deadline and len(failures) < failures_max:
        if (failure := run_case(seed, number)) is not None:
            failures.append(failure)
        number += 1
        if number == WARM_UP:
            before = kept_bytes()
    grown = kept_bytes() - before if before else 0
    if grown > GROWTH_MAX_BYTES:
        failures.append(Failure("decoders", seed, number - 1, f"the process has grown by {grown >> 20} MiB"))
    return number, failures


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _shown(given: object) -> str:
    shown = given if isinstance(given, (bytes, str)) else orjson.dumps(given, default=repr)
    return repr(shown)[:600]
