"""Results that hang on texts of clients, kept because clients repeat them: many of short texts, few of long ones.

An expression of a quarter of a megabyte takes megabytes once it is parsed: whoever may ask could fill the memory with a
few thousand of them.
"""

import functools
from collections.abc import Callable
from typing import Final, TypeVar

R = TypeVar("R")

SHORT_MAX: Final = 1024
"""Characters of all arguments together."""
_SHORT_KEPT: Final = 1024
_LONG_KEPT: Final = 16


def text_cache(make: Callable[..., R]) -> Callable[..., R]:
    """A function of texts that remembers; as a decorator. What it raises is not kept."""
    of_short = functools.lru_cache(_SHORT_KEPT)(make)
    of_long = functools.lru_cache(_LONG_KEPT)(make)

    @functools.wraps(make)
    def find(*texts: str) -> R:
        return of_short(*texts) if len("".join(texts)) <= SHORT_MAX else of_long(*texts)

    return find
