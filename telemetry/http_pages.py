"""HTTP for pages that are only read: GET and HEAD, one request a connection, no request body.

    read_request(reader) -> Request -> Page -> write_page(writer, request, page)

It is written here because all that a node serves is three pages: a web framework would be a third of a node's start.
"""

import asyncio
import http
import re
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

HEAD_BYTES_MAX: Final = 16 << 10
"""Most bytes of a request's line and headers together."""

_END: Final = b"\r\n\r\n"
_METHOD_SO_FAR: Final = re.compile(rb"[A-Z]{1,20}(?: |\Z)")
_REQUEST_LINE: Final = re.compile(r"([A-Z]{1,20}) ([!-~]+) HTTP/1\.([01])")
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")


class BadRequestError(Exception):
    """The request is not served here; `status` is the answer's."""

    def __init__(self, status: http.HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Request(NamedTuple):
    """The head of a request. `path` is without the query; names of `headers` are in lower case."""

    method: str
    path: str
    is_http_1_0: bool
    headers: dict[str, str]


class Page(NamedTuple):
    """An answer: `body` is the whole text, the pieces of one whose length is not known yet, or None to HEAD."""

    status: http.HTTPStatus
    content_type: str
    body: bytes | AsyncIterator[bytes] | None
    headers: Sequence[tuple[str, str]] = ()


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """Read a request's head; None when the peer closes before its end.

    Raises:
        BadRequestError: it is not HTTP, is longer than `HEAD_BYTES_MAX`, or has another method than GET and HEAD.
    """
    head = b""
    while _END not in head:
        if len(head) > HEAD_BYTES_MAX:
            raise BadRequestError(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {HEAD_BYTES_MAX} bytes")
        data = await reader.read(HEAD_BYTES_MAX)
        if not data:
            return None
        head += data
        if not _METHOD_SO_FAR.match(head):
            raise _bad(head)
    return _parse(head.partition(_END)[0])


def _parse(head: bytes) -> Request:
    first, *rest = head.decode("latin-1").split("\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        raise _bad(head)
    headers: dict[str, str] = {}
    for text in rest:
        header = _HEADER.fullmatch(text)
        if header is None:
            raise _bad(text.encode("latin-1"))
        name = header[1].lower()
        headers[name] = f"{headers[name]},{header[2]}" if name in headers else header[2]
    if line[1] not in ("GET", "HEAD"):
        raise BadRequestError(http.HTTPStatus.METHOD_NOT_ALLOWED, f"method {line[1]}")
    return Request(line[1], line[2].partition("?")[0], line[3] == "0", headers)


def _bad(data: bytes) -> BadRequestError:
    return BadRequestError(http.HTTPStatus.BAD_REQUEST, f"not HTTP: {data[:80]!r}")


async def write_page(writer: asyncio.StreamWriter, request: Request | None, page: Page) -> None:
    """Write an answer, slowly to a peer that reads slowly; the caller closes the connection. HEAD gets no body.

    Raises:
        Exception: what making the body raises; the head has been written then.
        ConnectionError: the peer has gone.
    """
    has_body = request is None or request.method != "HEAD"
    headers = [("Content-Type", page.content_type), *page.headers, ("Connection", "close")]
    if isinstance(page.body, bytes):
        writer.write(_head(page.status, [*headers, ("Content-Length", str(len(page.body)))]))
        writer.write(page.body if has_body else b"")
    elif page.body is None or not has_body:
        writer.write(_head(page.status, headers))
    else:
        is_chunked = request is not None and not request.is_http_1_0
        writer.write(_head(page.status, [*headers, ("Transfer-Encoding", "chunked")] if is_chunked else headers))
        async for piece in page.body:
            writer.write(_chunk(piece) if is_chunked else piece)
            await writer.drain()
        writer.write(b"0\r\n\r\n" if is_chunked else b"")
    await writer.drain()


def _chunk(piece: bytes) -> bytes:
    """Return a chunk of a body; nothing for an empty piece, since an empty chunk would end the body."""
    return b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""


def _head(status: http.HTTPStatus, headers: list[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
