"""`ledgermq health URL`: the text and the exit code when the URL is wrong, or something else listens there."""

import socket
import threading

import pytest

from cli.health import check_health
from node.errors import CommandError, UsageError
from tests.limits import WAIT_S


@pytest.mark.parametrize("url", ["127.0.0.1:8088", "", "ftp://h/", "file:///etc/hosts"])
def test_what_is_no_http_url_is_refused_with_the_form(url: str) -> None:
    with pytest.raises(UsageError, match="write http://HOST:PORT/readyz"):
        check_health(url)


def test_a_closed_port_is_told_by_the_systems_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(CommandError, match=rf"^http://127.0.0.1:{port}/readyz does not answer: .*refused$"):
        check_health(f"http://127.0.0.1:{port}/readyz")


def test_a_port_that_speaks_no_http_is_an_error_of_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"\0\0\0\1x\n\n")

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(CommandError, match="does not answer like a health port"):
            check_health(f"http://127.0.0.1:{port}/readyz")
        answering.join(WAIT_S)
