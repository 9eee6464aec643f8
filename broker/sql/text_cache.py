"""A cache of results by the texts that clients send: many results of short texts, few of long ones.

A parsed expression of 256 KiB takes megabytes, so with one bound for all texts clients could fill the memory.
"""

import functools
from collections.abc import Callable
from typing import Final, TypeVar

R = TypeVar("R")

SHORT_MAX: Final = 1024
"""Most characters, all arguments together, of a short call; others are long."""
_SHORT_KEPT: Final = 1024
_LONG_KEPT: Final = 16


def text_cache(make: Callable[..., R]) -> Callable[..., R]:
    """Decorate a function of texts with a cache; errors are not cached."""
    of_short = functools.lru_cache(_SHORT_KEPT)(make)
    of_long = functools.lru_cache(_LONG_KEPT)(make)

    @functools.wraps(make)
    def find(*texts: str) -> R:
        return of_short(*texts) if len("".join(texts)) <= SHORT_MAX else of_long(*texts)

    return find
