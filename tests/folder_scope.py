"""Fixtures shared by the tests of a folder, for what costs processor time for as long as it stands."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

import pytest

T = TypeVar("T")


def shared_in_folder(
    request: pytest.FixtureRequest, key: pytest.StashKey[T], start: Callable[[], AbstractContextManager[T]]
) -> T:
    """Return what `start` makes, the same for all tests of the folder; it is left when the next test is of another one.

    A session-wide fixture would stand until the end of the whole run, in each of pytest's worker processes.
    """
    folder: pytest.Dir | None = request.node.getparent(pytest.Dir)
    assert folder is not None
    if key not in folder.stash:
        manager = start()
        folder.stash[key] = manager.__enter__()

        def leave() -> None:
            del folder.stash[key]
            manager.__exit__(None, None, None)

        folder.addfinalizer(leave)
    return folder.stash[key]
