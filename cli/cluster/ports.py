"""TCP ports of a local cluster: finds free ports, names the processes that use others, and reserves blocks.

A block is reserved by binding abstract unix sockets, one for every twenty ports. Like ports, their names belong to the
network namespace and become free when the process ends.
"""

import random
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.errors import CommandError

# Below Linux's range for outgoing connections (32768 and up), so that no client socket gets a port in between.
_FIRST_BASE, _END_BASE = 20_000, 32_000
_CELL = 20


@dataclass(frozen=True, slots=True)
class PortBlock:
    """`size` consecutive ports from `base`, kept from other clusters while the reserved `names` are open."""

    base: int
    size: int
    names: list[socket.socket]

    def release(self) -> None:
        for name in self.names:
            name.close()


def is_free(port: int) -> bool:
    """Return whether a server could listen at this port of 127.0.0.1 now; ports in TIME_WAIT count as free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def require_free(ports: Iterable[int]) -> None:
    """Check that no process listens at these ports.

    Raises:
        CommandError: names each port in use and, if /proc shows it, the process.
    """
    busy = [describe(port) for port in ports if not is_free(port)]
    if busy:
        raise CommandError(f"{', '.join(busy)}; nothing was started")


def reserve_block(size: int, used: Sequence[int], base: int | None, *, preferred: int | None = None) -> PortBlock:
    """Reserve `size` ports, of which those at the offsets `used` must be free.

    Args:
        size: ports in the block.
        used: offsets from its base at which the cluster will listen.
        base: where the block must begin; None: anywhere, searched from a random place.
        preferred: the base to try first when `base` is None.

    Raises:
        CommandError: the ports at `base` are in use or reserved, or no block is free.
    """
    if base is not None:
        require_free(base + offset for offset in used)
        if (block := _try_reserve(base, size)) is None:
            raise CommandError(f"ports from {base} are reserved by another cluster that is starting or running")
        return block
    for candidate in _candidates(size, preferred):
        if (block := _try_reserve(candidate, size)) is None:
            continue
        if all(is_free(candidate + offset) for offset in used):
            return block
        block.release()
    raise CommandError(f"no {size} free ports in a row between {_FIRST_BASE} and {_END_BASE}; give --base-port")


def _candidates(size: int, preferred: int | None) -> list[int]:
    bases = list(range(_FIRST_BASE, _END_BASE - size, _CELL))
    begin = random.randrange(len(bases))
    return [*([] if preferred is None else [preferred]), *bases[begin:], *bases[:begin]]


def _try_reserve(base: int, size: int) -> PortBlock | None:
    """Reserve every cell of twenty ports that the block touches, so that blocks of any size exclude each other."""
    block = PortBlock(base, size, [])
    for cell in range(base // _CELL, (base + size - 1) // _CELL + 1):
        name = socket.socket(socket.AF_UNIX)
        block.names.append(name)
        try:
            name.bind(f"\0ledgermq-ports-{cell * _CELL}")
        except OSError:
            block.release()
            return None
    return block


def describe(port: int) -> str:
    """Return `port 9876 is in use by pid 4711 (java)`; without the process if this user may not see it."""
    owner = owner_of(port)
    return f"port {port} is in use by {owner}" if owner else f"port {port} is in use"


def owner_of(port: int) -> str | None:
    """Return `pid N (command)` of a process that listens at `port`; None if there is none or /proc does not show it."""
    wanted = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening_inodes(table, port)}
    if not wanted:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        if _holds(process, wanted):
            return f"pid {process.name} ({_command(process)})"
    return None


def _listening_inodes(table: str, port: int) -> list[str]:
    try:
        rows = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    except OSError:
        return []
    cells = [row.split() for row in rows]
    return [cell[9] for cell in cells if cell[3] == "0A" and int(cell[1].rsplit(":", 1)[1], 16) == port]


def _holds(process: Path, sockets: set[str]) -> bool:
    try:
        return any(str(link.readlink()) in sockets for link in (process / "fd").iterdir())
    except OSError:
        return False  # it has ended, or belongs to another user


def _command(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "ended"
