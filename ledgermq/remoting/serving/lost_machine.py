"""Notices that the machine at the other end of a connection is gone, though nothing closed the connection."""

import asyncio
import socket
from typing import Final

_UNACKED_MS: Final = 5000


def watch(transport: asyncio.Transport) -> None:
    """Let the kernel close the connection after unanswered bytes or keepalive probes; send small frames at once."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    options = (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKED_MS),
    )
    for option in options:
        sock.setsockopt(*option)
