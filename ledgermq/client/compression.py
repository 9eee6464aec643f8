"""Bodies that the sender has compressed: which codec, and how it is undone.

    sysFlag bit 0     compressed
    sysFlag bits 8-10 codec: 0 zlib (as written before there was a choice), 1 lz4, 2 zstd, 3 zlib

lz4 and zstd are read when their modules are installed (`lz4`, `zstandard`).

Source: apache/rocketmq `common/.../compression/CompressionType.java`, `common/.../sysflag/MessageSysFlag.java`.
"""

import importlib
import zlib
from collections.abc import Callable

from ledgermq.client.errors import CompressionUnavailableError, UndecodableError

CODEC_SHIFT = 8
CODEC_MASK = 0x7
INFLATED_SIZE_MAX = 64 * 1024 * 1024  # a body of 4 MiB that claims to be more is an attack, not a message


def decompress(body: bytes | memoryview, sys_flag: int) -> bytes:
    """The body as the sender's program gave it.

    Raises:
        CompressionUnavailableError: the codec's module is not installed.
        UndecodableError: unknown codec, corrupt data, or larger than `INFLATED_SIZE_MAX`.
    """
    codec = sys_flag >> CODEC_SHIFT & CODEC_MASK
    inflate = CODECS.get(codec)
    if inflate is None:
        raise UndecodableError(f"body is compressed with codec {codec}, which is not known")
    try:
        return inflate(body)
    except (zlib.error, RuntimeError, ValueError, OSError) as error:
        raise UndecodableError(f"compressed body of {len(body)} bytes: {error}") from error


def _inflate_zlib(body: bytes | memoryview) -> bytes:
    engine = zlib.decompressobj()
    inflated = engine.decompress(body, INFLATED_SIZE_MAX)
    if not engine.eof:
        raise ValueError("ends early, or is too large" if not engine.unconsumed_tail else "is too large")
    return inflated


def _inflate_lz4(body: bytes | memoryview) -> bytes:
    frame = _optional("lz4", "lz4.frame", "lz4")
    inflated: bytes = frame.LZ4FrameDecompressor().decompress(bytes(body), INFLATED_SIZE_MAX)
    return inflated


def _inflate_zstd(body: bytes | memoryview) -> bytes:
    zstandard = _optional("zstd", "zstandard", "zstandard")
    reader = zstandard.ZstdDecompressor().stream_reader(bytes(body))
    inflated: bytes = reader.read(INFLATED_SIZE_MAX)
    return inflated


def _optional(codec: str, module: str, package: str):  # type: ignore[no-untyped-def]  # a module object of no known type
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise CompressionUnavailableError(codec, package) from error


CODECS: dict[int, Callable[[bytes | memoryview], bytes]] = {
    0: _inflate_zlib,
    1: _inflate_lz4,
    2: _inflate_zstd,
    3: _inflate_zlib,
}
