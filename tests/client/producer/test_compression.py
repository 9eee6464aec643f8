"""Bodies that the producer compresses, JSON bodies, and what comes back."""

import asyncio
import random
import sys
import zlib
from collections.abc import Callable

import lz4.frame  # type: ignore[import-untyped]  # it has none
import pytest
import zstandard

from ledgermq.client import Admin, Producer
from ledgermq.client.core.compression import Codec, Compression, decompress
from ledgermq.client.errors import CompressionUnavailableError, InvalidArgumentError, UndecodableError
from tests.client.reading import read

CODECS: tuple[Codec, ...] = ("zlib", "lz4", "zstd")
LIMIT = 4 << 20
DEFLATE: dict[int, Callable[[bytes], bytes]] = {
    0x001: zlib.compress,
    0x101: lz4.frame.compress,
    0x201: zstandard.ZstdCompressor().compress,
    0x301: zlib.compress,
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [1, 100, 70_000, 4 << 20])
async def test_what_is_packed_is_inflated_and_never_larger(codec: Codec, size: int) -> None:
    repeated, noise = b"ab" * (size // 2) or b"a", random.Random(7).randbytes(size)
    for body in (repeated, noise, bytearray(repeated), memoryview(noise)):
        packed, flags = await Compression(codec, 0).pack(body)
        assert len(packed) <= len(body)
        assert bytes(decompress(bytes(packed), flags) if flags else packed) == bytes(body)


@pytest.mark.parametrize("flags", DEFLATE)
def test_what_inflates_without_end_or_breaks_off_is_refused(flags: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledgermq.client.core.compression.INFLATED_SIZE_MAX", LIMIT)
    packed = DEFLATE[flags](bytes(LIMIT))
    assert len(decompress(packed, flags)) == LIMIT
    for bad in (
        DEFLATE[flags](bytes(LIMIT + 1)),
        packed[:-6],
        packed[: len(packed) // 2],
        b"nonsense",
        b"",
    ):
        with pytest.raises(UndecodableError):
            decompress(bad, flags)


@pytest.mark.parametrize(("codec", "module"), [("lz4", "lz4.frame"), ("zstd", "zstandard")])
def test_a_codec_that_is_not_installed_is_named_when_the_producer_is_made(
    codec: Codec, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(CompressionUnavailableError, match=codec):
        Producer("127.0.0.1:9876", compression=codec)
    Producer("127.0.0.1:9876", compression=codec, compress_over_bytes=None)
    with pytest.raises(InvalidArgumentError, match="rar"):
        Producer("127.0.0.1:9876", compression="rar")  # type: ignore[arg-type]  # the point


async def test_large_bodies_are_compressed_and_keep_the_order_of_their_key(namesrv: str) -> None:
    bodies = [b"%d" % n * size for n, size in enumerate([1, 5000, 1, 300_000, 1])]
    async with Admin(namesrv) as admin:
        await admin.create_topic("T", queue_count=4)
    for codec in CODECS:
        async with Producer(namesrv, compression=codec) as producer:
            await asyncio.gather(*(producer.send("T", body, order_key="one") for body in bodies))
    async with Producer(namesrv, compress_over_bytes=None) as producer:
        await producer.send("T", bytes(5000), order_key="one")
    messages = await read(namesrv, "T", 16)
    assert [message.body for message in messages] == [*bodies * 3, bytes(5000)]
    stored = [len(message.record.body) for message in messages]
    assert max(stored[:15]) < 2000
    assert stored[15] == 5000


async def test_json_goes_there_and_back(namesrv: str) -> None:
    value = {"fruit": ["apple", 7, 1.5, None, True], "gr\u00fcn": {}}
    async with Producer(namesrv) as producer:
        await producer.send_json("T", value, tags="json", keys="k")
        (message,) = await read(namesrv, "T", 1)
        assert (message.json(), message.tags, message.keys) == (value, "json", ["k"])
        with pytest.raises(InvalidArgumentError, match="set as JSON"):
            await producer.send_json("T", {1})
        for value_no_json in (object(), 1 << 70, "\ud800", {"a": {1: object()}}):
            with pytest.raises(InvalidArgumentError):
                await producer.send_json("T", value_no_json)
        wrong_bodies = (b"{", b"\xff", b"NaN")
        for body in wrong_bodies:
            await producer.send("T", body)
        wrong = [message for message in await read(namesrv, "T", 4) if message.body in wrong_bodies]
        assert len(wrong) == 3
        for message in wrong:
            with pytest.raises(UndecodableError, match="not JSON"):
                message.json()
