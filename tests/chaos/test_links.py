"""Links on a real Toxiproxy: each change takes effect and is proven, one without effect is refused, all is undone."""

import contextlib
import math
import re
import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest
import requests
from toxiproxy.proxy import Proxy

from chaos.fabric import links as links_module
from chaos.fabric.contract import Link
from chaos.fabric.links import Links, find_server
from node.errors import CommandError
from tests.limits import WAIT_S
from tests.ports import free_ports


def serve(listener: socket.socket) -> None:
    """As a broker's listener does: challenge who connects, and close on wrong bytes."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.settimeout(1.0)
                connection.sendall(b"challenge")
                connection.recv(64)


@pytest.fixture(scope="module")
def listeners() -> Iterator[list[int]]:
    """The ports of two listeners."""
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        for listener in (first, second):
            threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield [first.getsockname()[1], second.getsockname()[1]]


@pytest.fixture(scope="module")
def links(listeners: list[int]) -> Iterator[Links]:
    """Links between `a` and `b`, who dial each other."""
    try:
        server = find_server()
    except CommandError as error:
        pytest.skip(str(error))
    api, first, second = free_ports(3)
    process = subprocess.Popen([server, "-port", str(api)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    a, b = (f"127.0.0.1:{port}" for port in listeners)
    made = Links(
        f"127.0.0.1:{api}",
        [
            Link("a", "b", f"127.0.0.1:{first}", b, b"wrong"),
            Link("b", "a", f"127.0.0.1:{second}", a, b"wrong"),
        ],
    )
    made.create()
    yield made
    process.kill()
    process.wait()


def crossings(links: Links, pair: str, limit_s: float = 0.25) -> list[float]:
    return [after_s for _, after_s in links._crossings(links._ways([pair]), limit_s)]


def passes(links: Links, pair: str) -> bool:
    return max(crossings(links, pair, WAIT_S)) < math.inf


def test_a_cut_drops_one_direction_and_leaves_the_other_until_it_is_healed(links: Links) -> None:
    assert max(crossings(links, "a>b") + crossings(links, "b>a")) < 0.25
    assert "no byte passed 2 streams" in links.cut(["a>b"])
    assert crossings(links, "a>b") == [math.inf, math.inf]
    assert passes(links, "b>a")
    links.heal(["a>b"])
    assert passes(links, "a>b")


def test_a_delay_takes_the_place_of_a_cut_and_all_is_undone_at_once(links: Links) -> None:
    links.cut(["b>a"])
    proof = re.fullmatch(r"bytes took (\d+) ms or more on 2 streams of proxies", links.delay(["b>a"], 60))
    assert proof and int(proof[1]) >= 60
    assert 0.06 <= min(crossings(links, "b>a", WAIT_S)) < math.inf
    links.heal_all()
    assert passes(links, "b>a")
    assert not any(proxy.toxics() for proxy in links._proxies.values())


def test_a_change_without_effect_is_refused(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Proxy, "add_toxic", lambda self, **_: None)
    monkeypatch.setattr(Proxy, "destroy_toxic", lambda self, name: True)
    with pytest.raises(CommandError, match="still passes bytes"):
        links.cut(["a>b"])
    with pytest.raises(CommandError, match="not after 500 ms"):
        links.delay(["a>b"], 500)
    links.heal_all()


def test_a_change_whose_answer_was_lost_is_undone_with_all_others(
    links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_toxic = Proxy.add_toxic

    def add_and_lose_the_answer(proxy: Proxy, **toxic: object) -> None:
        add_toxic(proxy, **toxic)
        raise requests.ConnectionError("the answer is lost")

    with monkeypatch.context() as patch, pytest.raises(CommandError, match="the answer is lost"):
        patch.setattr(Proxy, "add_toxic", add_and_lose_the_answer)
        links.cut(["a>b"])
    assert math.inf in crossings(links, "a>b")
    links.heal_all()
    assert passes(links, "a>b")


@pytest.mark.parametrize("pair", ["a>c", "a", "", "b>b"])
def test_a_link_that_is_not_there_is_named(links: Links, pair: str) -> None:
    with pytest.raises(CommandError, match="there is no link"):
        links.cut([pair])


def test_a_server_that_is_not_here_is_said_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module.shutil, "which", lambda name: None)  # type: ignore[attr-defined]
    monkeypatch.setenv("GOBIN", "/nowhere")
    monkeypatch.delenv("TOXIPROXY_SERVER", raising=False)
    with pytest.raises(CommandError, match=r"go install github\.com/Shopify/toxiproxy/v2/cmd/server@v2\.12\.0"):
        find_server()
    monkeypatch.setenv("TOXIPROXY_SERVER", "/bin/true")
    with pytest.raises(CommandError, match="/bin/true is not Toxiproxy"):
        find_server()


def test_a_proxy_that_takes_no_connection_proves_neither_that_bytes_pass_nor_that_they_do_not() -> None:
    with socket.socket() as bound:  # not listening: connections are refused
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        dead = Links("127.0.0.1:1", [Link("a", "b", address, address, b"wrong")])
        for pair in ("a>b", "b>a"):
            with pytest.raises(CommandError, match=f"was not tried: no connection to {address}"):
                crossings(dead, pair)
