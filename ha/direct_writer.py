"""Writes to a connection at once, and not at the end of the loop's turn, as uvloop would: the other end can go on."""

import asyncio
import contextlib
import os


class DirectWriter:
    """Of one connection, from when it is made to when it is lost."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        connected = transport.get_extra_info("socket")
        self._descriptor = -1 if connected is None else connected.fileno()

    def write(self, *pieces: bytes | memoryview) -> None:
        """Write what the socket takes; the transport gets the rest, and finds out about errors."""
        transport, sent = self._transport, 0
        if self._descriptor >= 0 and not (transport.is_closing() or transport.get_write_buffer_size()):
            with contextlib.suppress(OSError):  # it is full or broken; the transport finds out which
                sent = os.writev(self._descriptor, pieces)
        for piece in pieces:
            if sent < len(piece):
                transport.write(piece[sent:])
            sent = max(sent - len(piece), 0)
