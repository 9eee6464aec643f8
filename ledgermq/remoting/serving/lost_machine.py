"""Notices that the machine at the other end of a connection is gone, though nothing closed the connection."""

import asyncio
import socket
from typing import Final

_UNACKED_MS: Final = 5000
_RESENDS_AT: Final = 2
"""Where Linux's `struct tcp_info` has the number of times that unacknowledged bytes were sent again, in one byte."""
_RESENDS_MAX: Final = 2


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


def acknowledges(transport: asyncio.Transport) -> bool:
    """Whether the other machine acknowledges what is sent to it, as far as this one's kernel tells.

    It does while the process there stands still, and not when the network loses what is sent.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or not hasattr(socket, "TCP_INFO"):
        return True
    info: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RESENDS_AT + 1)
    return info[_RESENDS_AT] < _RESENDS_MAX
