"""Frames and reports leave at once as far as the socket takes them, and by the transport otherwise, in order."""

import asyncio
import socket
from typing import Any

import uvloop

from ha.direct_writer import DirectWriter


class Transport(asyncio.Transport):
    def __init__(self, connected: socket.socket | None, unsent: int) -> None:
        super().__init__({"socket": connected, "peername": ("127.0.0.1", 1)})
        self.written = bytearray()
        self.unsent = unsent

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


async def test_what_the_socket_does_not_take_is_left_to_the_transport() -> None:
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    pieces = (b"head", memoryview(bytes(range(256)) * 8192), b"seal")
    whole = b"".join(pieces)
    transport = Transport(near, 0)
    DirectWriter(transport).write(*pieces)
    came = far.recv(1 << 22)
    assert 0 < len(came) < len(whole), "a socket takes a part of 2 MiB"
    while len(came) + len(transport.written) < len(whole):
        came += far.recv(1 << 22)
    assert came + transport.written == whole
    near.close()
    far.close()


async def test_nothing_overtakes_what_the_transport_has_not_sent() -> None:
    near, far = socket.socketpair()
    near.setblocking(False)
    transport = Transport(near, 1)
    DirectWriter(transport).write(b"head", b"data", b"")
    assert transport.written == b"headdata"
    near.close()
    transport = Transport(None, 0)
    DirectWriter(transport).write(b"head", b"data", b"")
    assert transport.written == b"headdata"
    far.close()


async def test_a_broken_socket_is_left_to_the_transport() -> None:
    near, far = socket.socketpair()
    far.close()
    transport = Transport(near, 0)
    DirectWriter(transport).write(b"head", b"data", b"")
    assert transport.written == b"headdata"
    near.close()


def test_bytes_leave_within_the_turn_of_the_loop_that_brokers_run_on() -> None:
    async def run() -> None:
        near, far = socket.socketpair()
        far.setblocking(False)
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=near)
        with far:
            DirectWriter(transport).write(b"ab", memoryview(b"c"), b"")
            assert far.recv(8) == b"abc"
            transport.close()

    uvloop.run(run())
