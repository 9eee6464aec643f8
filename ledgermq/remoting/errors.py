"""Errors of connections.

RemotingError
|- FrameError             the peer sent a malformed frame; its connection is closed
|- JsonError              a body is not JSON, even when read leniently
|- TlsFileError           a certificate or key cannot be read or used
|- ConnectError           no listener there, or the attempt to connect was not answered in time
|- ConnectionLostError    the connection closed before the answer: the request may or may not have been carried out
'- RequestTimeoutError    no answer in time: the request may or may not have been carried out
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledgermq.remoting.codec.command import Command


class RemotingError(Exception):
    """Base class of the errors of this package."""


class FrameError(RemotingError):
    """The frame at `stream_offset` of a connection's input is malformed, so nothing after it can be read.

    Args:
        stream_offset: bytes of the connection before the bad frame.
        detail: the wrong number and its limit.
    """

    def __init__(self, stream_offset: int, detail: str) -> None:
        super().__init__(f"bad frame at byte {stream_offset} of the connection: {detail}")
        self.stream_offset = stream_offset
        self.detail = detail
        self.parsed: list[Command] = []
        """The frames before the malformed one in the same piece of input, which are still to be served."""


class JsonError(RemotingError):
    """The text at `position` is neither standard JSON nor JSON as Java's library writes it."""

    def __init__(self, position: int, detail: str) -> None:
        super().__init__(f"no JSON at character {position}: {detail}")
        self.position = position
        self.detail = detail


class TlsFileError(RemotingError):
    """A file of a TLS identity cannot be used; `what` names it."""

    def __init__(self, what: str, detail: str) -> None:
        super().__init__(f"{what} cannot be used: {detail}")
        self.what = what


class ConnectError(RemotingError):
    """No connection to `address` could be made; nothing was sent."""

    def __init__(self, address: str, detail: str) -> None:
        super().__init__(f"cannot connect to {address}: {detail}")
        self.address = address


class ConnectionLostError(RemotingError):
    """The connection to `address` closed while an answer was awaited. A retry may do the work twice."""

    def __init__(self, address: str, detail: str) -> None:
        super().__init__(f"connection to {address} lost: {detail}")
        self.address = address


class RequestTimeoutError(RemotingError):
    """`address` did not answer a request within `timeout_s`. A retry may do the work twice."""

    def __init__(self, address: str, request: str, timeout_s: float) -> None:
        super().__init__(f"{address} did not answer {request} within {timeout_s:g} s")
        self.address = address
        self.timeout_s = timeout_s
