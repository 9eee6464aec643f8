"""An address and port as records and message ids hold them: 4 or 16 address bytes, then the port as i32.

Source: apache/rocketmq `common/message/MessageExt.java` (socketAddress2ByteBuffer).
"""

import functools
import ipaddress
import struct
from dataclasses import dataclass
from typing import Final

from ledgermq.message.errors import InvalidHostError

_PORT: Final = struct.Struct(">i")
HOST_V4_LENGTH: Final = 8
HOST_V6_LENGTH: Final = 20


@dataclass(frozen=True, slots=True)
class Host:
    """An IP address in its shortest text form, and a port. The port may be any i32, as in some old records."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@functools.lru_cache(maxsize=4096)
def encode_host(host: Host) -> bytes:
    """Return the encoded host: 8 bytes for IPv4, 20 for IPv6. A scope id is dropped.

    Raises:
        InvalidHostError: a name instead of an address, or a port outside of 32 bits.
    """
    try:
        address = ipaddress.ip_address(host.address.partition("%")[0])
        return address.packed + _PORT.pack(host.port)
    except (ValueError, struct.error) as error:
        raise InvalidHostError(host, str(error)) from None


def decode_host(encoded: bytes | memoryview) -> Host:
    """Return the host that these 8 or 20 bytes encode.

    Raises:
        InvalidHostError: another length.
    """
    raw = bytes(encoded)
    if len(raw) not in (HOST_V4_LENGTH, HOST_V6_LENGTH):
        raise InvalidHostError(raw, f"{len(raw)} bytes instead of 8 or 20")
    return _decode(raw)


@functools.lru_cache(maxsize=4096)
def _decode(raw: bytes) -> Host:
    packed = raw[:-4]
    # an integer would not show the address family
    address = ipaddress.IPv4Address(packed) if len(packed) == 4 else ipaddress.IPv6Address(packed)
    return Host(str(address), _PORT.unpack(raw[-4:])[0])
