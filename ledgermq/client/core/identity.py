"""Who we are to brokers: one client id a process and object, `ip@pid#nonce`.

Brokers count members of a group by it, and all of a group sort by it to share out queues: it must be unique, and the
same on all connections.

Source: apache/rocketmq `client/.../ClientConfig.java` (buildMQClientId, changeInstanceNameToPID).
"""

import os
import socket
import time

from ledgermq.client.core.address import split_address

LOOPBACK = "127.0.0.1"


def local_address_towards(address: str) -> str:
    """The own IP address from which packets to `address` (`host:port`) leave; loopback when there is no way there.

    A datagram socket is connected, which sends nothing.
    """
    host, port = split_address(address)
    try:
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return LOOPBACK


def make_client_id(own_address: str, instance: str | None = None) -> str:
    """The id of the named instance at this address.

    Without a name a new one, unique in this process and, by address and process id, beyond it.
    """
    return f"{own_address}@{instance or f'{os.getpid()}#{time.monotonic_ns()}'}"
