import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest

from telemetry.health import CONNECTIONS_MAX, HealthListenError, HealthServer
from telemetry.http_pages import HEAD_BYTES_MAX
from telemetry.metrics import CONTENT_TYPE, Registry
from telemetry.process import register_process_metrics
from tests.limits import WAIT_S

Answer = tuple[bool, str]


class Node:
    """What a process would answer."""

    def __init__(self) -> None:
        self.ready: Callable[[], Answer] = lambda: (True, "leader of term 3")
        self.live: Callable[[], Answer] = lambda: (True, "fine")
        self.registry = Registry()
        self.server = HealthServer(self.registry.page, lambda: self.ready(), lambda: self.live())

    async def get(self, path: str, method: str = "GET") -> tuple[int, str, str]:
        """Status, content type and text."""
        url = f"http://127.0.0.1:{self.server.port}{path}"
        async with aiohttp.ClientSession() as session, session.request(method, url) as answer:
            return answer.status, answer.headers["Content-Type"], await answer.text()


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node()
    await node.server.start("127.0.0.1", 0)
    yield node
    await node.server.close()


async def test_ready_says_200_and_why(node: Node) -> None:
    status, kind, text = await node.get("/readyz")
    assert (status, kind, text) == (
        200,
        "application/json; charset=utf-8",
        '{"ok": true, "detail": "leader of term 3"}',
    )


async def test_not_ready_says_503_and_why(node: Node) -> None:
    node.ready = lambda: (False, "recovering: 40 %")
    status, _, text = await node.get("/readyz")
    assert (status, text) == (503, '{"ok": false, "detail": "recovering: 40 %"}')
    assert (await node.get("/livez"))[0] == 200


async def test_live_is_its_own_answer(node: Node) -> None:
    node.live = lambda: (False, "the disk does not answer")
    assert (await node.get("/livez"))[0] == 503
    assert (await node.get("/readyz"))[0] == 200


async def test_a_failing_check_is_a_no_with_its_reason(node: Node) -> None:
    node.ready = lambda: (bool(1 // 0), "never")
    status, _, text = await node.get("/readyz")
    assert status == 503
    assert "ZeroDivisionError" in text


async def test_metrics_are_prometheus_text(node: Node) -> None:
    node.registry.counter("a_total", "Ü.", {"topic": "тест"}).add(2)
    status, kind, text = await node.get("/metrics")
    assert (status, kind) == (200, CONTENT_TYPE)
    assert 'a_total{topic="тест"} 2\n' in text


async def test_other_pages_and_methods_are_refused(node: Node) -> None:
    assert (await node.get("/"))[0] == 404
    assert (await node.get("/metrics", "POST"))[0] == 405


async def test_a_port_in_use_is_a_typed_error_that_names_it(node: Node) -> None:
    second = HealthServer(Registry().page, lambda: (True, ""))
    with pytest.raises(HealthListenError, match=f"health port: cannot listen at 127.0.0.1:{node.server.port}: "):
        await second.start("127.0.0.1", node.server.port)
    await second.close()


async def test_process_metrics_are_readable() -> None:
    registry = Registry()
    register_process_metrics(registry)
    figures = dict(line.rsplit(" ", 1) for line in registry.render().splitlines() if not line.startswith("#"))
    for name in (
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "ledgermq_process_anonymous_memory_bytes",
    ):
        assert float(figures[name]) > 0
    assert float(figures["process_open_fds"]) >= 3


async def test_one_connection_too_many_is_closed_at_once_and_room_is_used_again(node: Node) -> None:
    port = node.server.port
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(WAIT_S):
        assert await reader.read() == b""
    for _, one in (*silent, (reader, writer)):
        one.close()

    async def is_served() -> bool:
        try:
            return (await node.get("/livez"))[0] == 200
        except aiohttp.ClientError:
            return False

    async with asyncio.timeout(WAIT_S):
        while not await is_served():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "said", [b"", b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"]
)
async def test_a_connection_is_kept_for_a_while_and_no_longer(said: bytes) -> None:
    server = HealthServer(Registry().page, lambda: (True, ""), connection_s=0.1)
    await server.start("127.0.0.1", 0)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(said)
        async with asyncio.timeout(WAIT_S):
            answer = await reader.read()
        assert (b"200 OK" in answer) == said.endswith(b"\r\n\r\n")
        writer.close()
    finally:
        await server.close()


async def raw(node: Node, accepted: str | None, method: str = "GET") -> tuple[str | None, bytes]:
    """How /metrics is coded, and its body as it came."""
    headers = {} if accepted is None else {"Accept-Encoding": accepted}
    session = aiohttp.ClientSession(auto_decompress=False, skip_auto_headers=["Accept-Encoding"])
    async with (
        session,
        session.request(method, f"http://127.0.0.1:{node.server.port}/metrics", headers=headers) as answer,
    ):
        assert answer.status == 200
        return answer.headers.get("Content-Encoding"), await answer.read()


@pytest.mark.parametrize("accepted", ["gzip", "deflate, GZIP;q=0.5", "br,gzip"])
async def test_the_page_is_compressed_for_those_who_take_it(node: Node, accepted: str) -> None:
    node.registry.gauge("a", "A.").set(1)
    coding, body = await raw(node, accepted)
    assert (coding, gzip.decompress(body)) == ("gzip", node.registry.render().encode())


@pytest.mark.parametrize("accepted", [None, "identity", "gzip;q=0", "deflate, gzip; q=0.0"])
async def test_the_page_is_plain_for_everybody_else(node: Node, accepted: str | None) -> None:
    node.registry.gauge("a", "A.").set(1)
    assert await raw(node, accepted) == (None, node.registry.render().encode())


async def test_only_the_head_of_the_page_is_sent_where_only_that_is_asked_for(node: Node) -> None:
    assert await raw(node, "gzip", "HEAD") == (None, b"")


async def test_a_page_that_cannot_be_made_is_an_error_and_the_server_lives_on(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(node.registry, "render", lambda: str(1 // 0))
        assert (await node.get("/metrics"))[0] == 500
    assert (await node.get("/metrics"))[0] == 200


async def test_who_does_not_read_a_long_page_is_dropped_and_the_page_with_it() -> None:
    ended: list[bool] = []

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(1 << 20)
        finally:
            ended.append(True)

    server = HealthServer(endless, lambda: (True, ""), connection_s=0.1)
    await server.start("127.0.0.1", 0)
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(WAIT_S):
            while not ended:
                await asyncio.sleep(0.01)
        writer.close()
    finally:
        await server.close()


async def exchange(node: Node, said: bytes) -> bytes:
    """All that is answered to these bytes, up to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.server.port)
    try:
        writer.write(said)
        async with asyncio.timeout(WAIT_S):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01", 400),  # a TLS handshake, answered though no head has ended
        (b"GET /livez\r\n\r\n", 400),
        (b"GET /livez HTTP/2.0\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\n folded: x\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nlong: " + b"x" * HEAD_BYTES_MAX * 2, 431),
        (b"POST /livez HTTP/1.1\r\nContent-Length: 90000\r\n\r\n" + b"x" * 90_000, 405),
        (b"GET /livez?full=1 HTTP/1.1\r\nHost: x\r\n\r\n", 200),
    ],
)
async def test_whatever_comes_is_answered_with_its_status_and_the_next_one_is_served(
    node: Node, said: bytes, status: int
) -> None:
    assert (await exchange(node, said)).startswith(b"HTTP/1.1 %d " % status)
    assert (await node.get("/livez"))[0] == 200


async def test_a_request_may_come_byte_by_byte(node: Node) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.server.port)
    for byte in b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n":
        writer.write(bytes([byte]))
        await asyncio.sleep(0)
    async with asyncio.timeout(WAIT_S):
        assert b"200 OK" in await reader.read()
    writer.close()


async def test_an_old_client_gets_the_page_without_chunks(node: Node) -> None:
    node.registry.gauge("a", "A.").set(1)
    head, _, body = (await exchange(node, b"GET /metrics HTTP/1.0\r\n\r\n")).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert body == node.registry.render().encode()


async def test_close_does_not_wait_for_connections_that_ask_nothing(node: Node) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.server.port)
    assert (await node.get("/livez"))[0] == 200  # so the first connection has been accepted
    await node.server.close()
    async with asyncio.timeout(WAIT_S):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()
