"""Chooses the held requests that are given up when no more can be held, so that one client cannot keep out others."""

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Final, TypeVar

_Connection = TypeVar("_Connection")
_Held = TypeVar("_Held")

_SHARE: Final = 8
"""The connection that holds most gives up this fraction of what it holds more than the one that needs room: an
eighth."""


def giving_way(holders: Mapping[_Connection, Collection[_Held]], connection: _Connection) -> list[_Held]:
    """Return the requests to be given up so that `connection` can hold one more; none if it holds as many as any other.

    Args:
        holders: the held requests of each connection, its oldest first.
        connection: the one that needs room.
    """
    most = max(holders.values(), key=len, default=())
    more = len(most) - len(holders.get(connection, ())) - 1
    return list(islice(most, more // _SHARE + 1)) if more >= 1 else []
