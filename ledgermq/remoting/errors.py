"""What can go wrong between two ends of a connection.

RemotingError
|- FrameError             the peer sent bytes that are no frame; its connection is closed
|- JsonError              a body that should be JSON is not, even leniently
|- TlsFileError           a certificate or key cannot be read or used
|- ConnectError           nobody listens there, or no answer to the connection attempt in time
|- ConnectionLostError    the connection closed before the answer came: it may or may not have been carried out
'- RequestTimeoutError    no answer in time: it may or may not have been carried out
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledgermq.remoting.codec.command import Command


class RemotingError(Exception):
    """Base of everything this package raises."""


class FrameError(RemotingError):
    """The bytes at `stream_offset` of a connection's input are no frame, so nothing behind them can be read.

    Args:
        stream_offset: bytes of the connection before the bad frame.
        detail: the offending number and its limit.
    """

    def __init__(self, stream_offset: int, detail: str) -> None:
        super().__init__(f"bad frame at byte {stream_offset} of the connection: {detail}")
        self.stream_offset = stream_offset
        self.detail = detail
        self.parsed: list[Command] = []
        """Good frames that came before the bad one in the same piece of input; nobody has seen them yet."""


class JsonError(RemotingError):
    """Text at `position` is JSON neither by the standard nor as Java's library writes it."""

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
