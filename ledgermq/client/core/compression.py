"""Compression of bodies by the sender, and decompression by the reader.

    sysFlag bit 0     compressed
    sysFlag bits 8-10 codec: 0 zlib (as written before there was a choice), 1 lz4, 2 zstd, 3 zlib

lz4 and zstd can be used when their modules are installed (`lz4`, `zstandard`). Decompressed bodies are bounded by
`INFLATED_SIZE_MAX`, whatever size the data claims.

Source: apache/rocketmq `common/.../compression/CompressionType.java`, `common/.../sysflag/MessageSysFlag.java`.
"""

import asyncio
import importlib
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Final, Literal

from ledgermq.client.core.checks import check_count, given
from ledgermq.client.errors import CompressionUnavailableError, InvalidArgumentError, UndecodableError
from ledgermq.message.flags import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD

CODEC_SHIFT: Final = 8
CODEC_MASK: Final = 0x7
INFLATED_SIZE_MAX: Final = 64 * 1024 * 1024  # no message of 4 MiB inflates to more, only an attack
ZLIB_LEVEL: Final = 5
ZSTD_LEVEL: Final = 3
ZSTD_STEP_BYTES: Final = 1024  # one block of four bytes can inflate to 128 KiB
OFF_LOOP_BYTES: Final = 64 * 1024  # larger ones would hold up the event loop for milliseconds

Codec = Literal["zlib", "lz4", "zstd"]


class Compression:
    """How one producer compresses.

    Args:
        codec: see the module.
        over_bytes: bodies of at least so many bytes are compressed; None for no compression.

    Raises:
        InvalidArgumentError: not a codec.
        CompressionUnavailableError: the codec's module is not installed.
    """

    def __init__(self, codec: Codec, over_bytes: int | None) -> None:
        check_count(least=0, **given(compress_over_bytes=over_bytes))
        if not isinstance(codec, str) or codec not in _DEFLATERS:
            raise InvalidArgumentError(f"compression {codec!r} is none of {', '.join(_DEFLATERS)}")
        self._deflate, self._flag = _DEFLATERS[codec]
        self._over_bytes = float("inf") if over_bytes is None else over_bytes
        if over_bytes is not None:
            self._deflate(b"is the module there?")

    def wants(self, length: int) -> bool:
        """Return whether a body of that many bytes is to be compressed."""
        return length >= self._over_bytes

    async def pack(self, body: bytes | bytearray | memoryview) -> tuple[bytes | bytearray | memoryview, int]:
        """Return the body to send and its flags; the body stays as it is if it is small or does not get smaller."""
        if not self.wants(len(body)):
            return body, 0
        deflate = self._deflate
        packed = deflate(body) if len(body) < OFF_LOOP_BYTES else await asyncio.to_thread(deflate, bytes(body))
        return (packed, COMPRESSED | self._flag) if len(packed) < len(body) else (body, 0)


def decompress(body: bytes | memoryview, sys_flag: int) -> bytes:
    """Return the body as the sending program gave it.

    Raises:
        CompressionUnavailableError: the codec's module is not installed.
        UndecodableError: unknown codec, corrupt data, or larger than `INFLATED_SIZE_MAX`.
    """
    codec = sys_flag >> CODEC_SHIFT & CODEC_MASK
    inflate = _INFLATERS.get(codec)
    if inflate is None:
        raise UndecodableError(f"body is compressed with codec {codec}, which is not known")
    try:
        inflated = inflate(body)
    except (zlib.error, RuntimeError, ValueError, OSError, EOFError) as error:
        raise UndecodableError(f"compressed body of {len(body)} bytes: {error}") from error
    if len(inflated) > INFLATED_SIZE_MAX:
        raise UndecodableError(f"compressed body of {len(body)} bytes is larger than {INFLATED_SIZE_MAX} bytes")
    return inflated


# Each of these stops soon after `INFLATED_SIZE_MAX` bytes.


def _inflate_zlib(body: bytes | memoryview) -> bytes:
    engine = zlib.decompressobj()
    inflated = engine.decompress(body, INFLATED_SIZE_MAX + 1)
    if not engine.eof and not engine.unconsumed_tail:
        raise ValueError("ends early")
    return inflated


def _inflate_lz4(body: bytes | memoryview) -> bytes:
    engine = _module("lz4", "lz4.frame", "lz4").LZ4FrameDecompressor()
    inflated: bytes = engine.decompress(bytes(body), INFLATED_SIZE_MAX + 1)
    if not engine.eof and len(inflated) <= INFLATED_SIZE_MAX:
        raise ValueError("ends early")
    return inflated


def _inflate_zstd(body: bytes | memoryview) -> bytes:
    zstd = _module("zstd", "zstandard", "zstandard")
    engine = zstd.ZstdDecompressor(max_window_size=INFLATED_SIZE_MAX).decompressobj()
    parts: list[bytes] = []
    size = 0
    view = memoryview(body)
    try:
        for start in range(0, len(view), ZSTD_STEP_BYTES):
            parts.append(engine.decompress(view[start : start + ZSTD_STEP_BYTES]))
            size += len(parts[-1])
            if engine.eof or size > INFLATED_SIZE_MAX:
                return b"".join(parts)
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error
    raise ValueError("ends early")


def _deflate_zlib(body: bytes | bytearray | memoryview) -> bytes:
    return zlib.compress(body, ZLIB_LEVEL)


def _deflate_lz4(body: bytes | bytearray | memoryview) -> bytes:
    return bytes(_module("lz4", "lz4.frame", "lz4").compress(bytes(body)))


def _deflate_zstd(body: bytes | bytearray | memoryview) -> bytes:
    return bytes(_module("zstd", "zstandard", "zstandard").ZstdCompressor(ZSTD_LEVEL).compress(bytes(body)))


def _module(codec: str, module: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise CompressionUnavailableError(codec, package) from error


_INFLATERS: Final[dict[int, Callable[[bytes | memoryview], bytes]]] = {
    0: _inflate_zlib,
    1: _inflate_lz4,
    2: _inflate_zstd,
    3: _inflate_zlib,
}
_DEFLATERS: Final[dict[str, tuple[Callable[[bytes | bytearray | memoryview], bytes], int]]] = {
    "zlib": (_deflate_zlib, COMPRESSION_ZLIB),
    "lz4": (_deflate_lz4, COMPRESSION_LZ4),
    "zstd": (_deflate_zstd, COMPRESSION_ZSTD),
}
