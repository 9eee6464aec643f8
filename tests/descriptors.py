"""Processes that may open no more files: their limit is taken away, and given back."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def limited_descriptors(process_id: int = 0, limit: int = 3) -> Iterator[None]:
    """A process, 0 for this one, may open no descriptor of this number or above, until the end."""
    before = resource.prlimit(process_id, resource.RLIMIT_NOFILE)
    resource.prlimit(process_id, resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process_id, resource.RLIMIT_NOFILE, before)
