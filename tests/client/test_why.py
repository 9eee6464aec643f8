"""What a user is told when a call fails: the last real refusal, and what is wrong with an address."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ledgermq.client import Admin, Consumer, Producer
from ledgermq.client.core.address import parse_addresses
from ledgermq.client.errors import DeadlineExceededError, InvalidArgumentError, NoRouteError
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.server import RemotingServer
from ledgermq.remoting.tls import ReloadedContext, ServerTls
from tests.client.fake import FakeCluster, Node, ignore, refuse
from tests.remoting.certificates import make_identity

SEND = RequestCode.SEND_MESSAGE_V2


@asynccontextmanager
async def tls_listener(folder: Path) -> AsyncIterator[str]:
    """Address of a port that takes TLS only."""
    node = make_identity(folder, "node")
    server = RemotingServer(
        Node(), tls=ReloadedContext(ServerTls(certificate=node.certificate, key=node.key)), takes_plain=False
    )
    await server.start("127.0.0.1", 0)
    yield f"127.0.0.1:{server.port}"
    await server.close()


async def failed_send(namesrv: str, *, tls: bool = False) -> DeadlineExceededError:
    async with Producer(namesrv, deadline_s=0.6, tls=tls) as producer:
        with pytest.raises(DeadlineExceededError) as caught:
            await producer.send("T", b"x")
    return caught.value


async def test_no_try_begins_when_the_deadline_leaves_no_time_for_an_answer(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.plan(SEND, refuse(14, "disk full", cause="disk-full", retryAfterMs="590"), *[ignore] * 9)
    failure = await failed_send(cluster.namesrv)
    assert broker.count(SEND) == 1
    assert (failure.attempts, failure.code) == (1, 14)
    assert str(failure).endswith("last: " + str(failure.failures[-1]))
    assert "disk full" in str(failure)


async def test_an_attempt_without_an_answer_does_not_hide_the_refusal_before_it(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.plan(SEND, refuse(14, "disk full", cause="disk-full"), *[ignore] * 9)
    failure = await failed_send(cluster.namesrv)
    assert failure.attempts > 1
    assert failure.code == 14
    assert "disk full; after that: " in str(failure)


async def test_a_nameserver_that_is_not_there_is_named(cluster: FakeCluster) -> None:
    await cluster.nameserver.kill()
    failure = await failed_send(cluster.namesrv)
    assert "no nameserver answered: check that the addresses are right and the nameservers run" in str(failure)
    assert cluster.namesrv in str(failure)
    assert "does not exist" not in str(failure)


async def test_a_brokers_port_given_as_the_nameserver_is_named_soon(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(broker.address, deadline_s=600) as producer:
        with pytest.raises(NoRouteError, match=f"{broker.address}.*this may be a broker's port") as caught:
            await producer.send("T", b"x")
    assert "no address given is a nameserver's" in str(caught.value)
    assert caught.value.was_answered


async def test_tls_towards_a_port_without_it_is_named(cluster: FakeCluster) -> None:
    failure = await failed_send(cluster.namesrv, tls=True)
    assert f"cannot connect to {cluster.namesrv}: the TLS handshake failed (" in str(failure)
    assert "is it a port without TLS?" in str(failure)


async def test_a_port_that_expects_tls_is_named(tmp_path: Path) -> None:
    async with tls_listener(tmp_path) as namesrv:
        failure = await failed_send(namesrv)
    assert f"connection to {namesrv} lost" in str(failure)
    assert "expects TLS" in str(failure)


@pytest.mark.parametrize("given", ["http://127.0.0.1:9876", "127.0.0.1:1;https://127.0.0.1:9876"])
def test_a_url_is_refused_with_the_form_that_is_wanted(given: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is a URL: write host:port only"):
        parse_addresses(given)


async def test_dead_letters_that_no_nameserver_could_locate_are_not_taken_for_none(cluster: FakeCluster) -> None:
    await cluster.add(topics={"T": 1})
    async with Admin(cluster.namesrv, deadline_s=0.1) as admin:
        assert await admin.dead_letters("g") == []
        await cluster.nameserver.kill()
        with pytest.raises(NoRouteError, match="no nameserver answered"):
            await admin.dead_letters("g")


async def test_an_http_port_given_as_the_nameserver_is_named() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        failure = await failed_send(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert "an HTTP answer: this is an HTTP server's port" in str(failure)


async def test_messages_asked_for_at_a_dead_nameserver_are_no_empty_list(cluster: FakeCluster) -> None:
    await cluster.nameserver.kill()
    async with Consumer(cluster.namesrv, "g", "T") as consumer:
        with pytest.raises(NoRouteError, match="check that the addresses are right and the nameservers run"):
            await consumer.get_many(1, wait_s=0.5)


async def test_messages_asked_for_of_a_topic_that_nobody_made_yet_are_an_empty_list(cluster: FakeCluster) -> None:
    await cluster.add(topics={"T": 1})
    async with Consumer(cluster.namesrv, "g", "Later") as consumer:
        assert await consumer.get_many(1, wait_s=0.5) == []
