"""Ports for what tests start: reserved as the local cluster reserves its own, so that no run takes another's.

A port that the system lends (bind to 0, close, use later) may be lent again meanwhile, to any connection of anybody.
"""

import functools
import itertools
from collections.abc import Iterator

from cli.cluster.ports import PortBlock, is_free, reserve_block

_STEP = 10
_COUNT = 80
_AROUND = (-2, 0, 1, 2)
_kept: list[PortBlock] = []


def free_ports(count: int) -> list[int]:
    """Ports nobody listens at: each `p` leaves `p - 2` (Java's fast port), `p + 1` (HA), `p + 2` (Raft) free.

    They come round: one is given again after 80 others, if it is free then.
    """
    fresh = (port for port in itertools.islice(_round(), _COUNT) if all(is_free(port + off) for off in _AROUND))
    found = list(itertools.islice(fresh, count))
    assert len(found) == count, f"{len(found)} free ports, {count} wanted"
    return found


def free_block(size: int) -> int:
    """The first of `size` consecutive ports that nobody listens at; this process keeps them to its end."""
    block = reserve_block(size, range(size), None)
    _kept.append(block)
    return block.base


@functools.cache
def _round() -> Iterator[int]:
    block = reserve_block(_STEP * _COUNT, (), None)
    _kept.append(block)
    return itertools.cycle(range(block.base + 2, block.base + block.size, _STEP))
