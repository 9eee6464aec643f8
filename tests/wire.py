"""What tests write to and read from the wire."""

from collections.abc import Mapping

from ledgermq.message.batch import cut_batch
from ledgermq.remoting.codec.frame import encode_response_head


def encode_response(
    opaque: int, code: int, ext: Mapping[str, str] | None = None, remark: str | None = None, body: bytes = b""
) -> bytes:
    """Return the frame of an answer, with a JSON header."""
    return encode_response_head(opaque, code, ext, remark, len(body)) + body


def split_batch(body: bytes | memoryview) -> list[tuple[int, memoryview, bytes]]:
    """Return flag, body and encoded properties of each message of a batch body; raises as `cut_batch`."""
    cuts, properties = cut_batch(body)
    view = memoryview(body)
    return [(flag, view[start:end], own) for (flag, start, end), own in zip(cuts, properties, strict=True)]
