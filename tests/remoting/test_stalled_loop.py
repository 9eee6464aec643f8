"""An event loop that the program holds up: answers that have come meanwhile count, whatever the clock says."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.frame import FrameParser, encode_response_head
from ledgermq.remoting.errors import RequestTimeoutError
from ledgermq.remoting.limits import Limits
from tests.limits import WAIT_S

STALL_S = 0.5


def serve(listener: socket.socket, answers: int, answered: threading.Event) -> None:
    """Answer so many requests of one connection, each at once; in a thread, which no event loop holds up."""
    connection, _ = listener.accept()
    limits = Limits()
    parser = FrameParser(limits.frame_bytes, limits.header_bytes)
    with connection:
        while data := connection.recv(65536):
            for command in parser.feed(data):
                if answers > 0:
                    connection.sendall(encode_response_head(command.opaque, 0, None, None, 0, command.header_type))
                    answers -= 1
                    answered.set()


async def stalled(address: str, answered: threading.Event) -> list[object]:
    """What becomes of two requests that are under way while the loop stands still."""
    client = RemotingClient()
    await client.connection(address)
    requests = [asyncio.ensure_future(client.request(address, Command(105, ext={}), STALL_S / 2)) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    time.sleep(STALL_S)  # noqa: ASYNC251  # the point
    assert answered.wait(WAIT_S)  # a busy machine may run the thread late
    outcomes: list[object] = list(await asyncio.gather(*requests, return_exceptions=True))
    await client.close()
    return outcomes


Runner = Callable[[Coroutine[Any, Any, list[object]]], list[object]]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_an_answer_that_came_while_the_loop_stood_still_is_taken(run: Runner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sent = threading.Event()
        thread = threading.Thread(target=serve, args=(listener, 1, sent), daemon=True)
        thread.start()
        answered, unanswered = run(stalled(f"127.0.0.1:{listener.getsockname()[1]}", sent))
        thread.join(WAIT_S)
    assert isinstance(answered, Command)
    assert isinstance(unanswered, RequestTimeoutError)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_request_whose_time_is_already_over_times_out_as_does_the_one_after_it(run: Runner) -> None:
    async def two_late_ones(address: str) -> list[object]:
        client = RemotingClient()
        connection = await client.connection(address)
        requests = [connection.request(Command(105, ext={}), timeout_s) for timeout_s in (2e-9, 1e-9)]
        outcomes: list[object] = await asyncio.gather(*requests, return_exceptions=True)
        await client.close()
        return outcomes

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener, 0, threading.Event()), daemon=True)
        thread.start()
        outcomes = run(two_late_ones(f"127.0.0.1:{listener.getsockname()[1]}"))
        thread.join(WAIT_S)
    assert [type(outcome) for outcome in outcomes] == [RequestTimeoutError, RequestTimeoutError]
