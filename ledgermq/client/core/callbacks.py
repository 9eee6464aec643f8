"""Tells which callback of the program the running code belongs to.

`close` waits for callbacks to end; called inside one of them, it would wait for itself. A task that a callback starts
belongs to the callback while that runs, since the callback may wait for the task (`asyncio.wait_for` makes one).
"""

import asyncio
import contextvars
from typing import Final, Self


class Callback:
    """One call of the program's own code; a context manager around it.

    Args:
        owner: the object that makes the call.
        name: of the callback, as the program knows it.

    Attributes:
        task: the task in which it runs.
    """

    __slots__ = ("_is_over", "_token", "name", "owner", "task")

    def __init__(self, owner: object, name: str) -> None:
        self.owner = owner
        self.name = name
        self.task = asyncio.current_task()
        self._is_over = False

    def __enter__(self) -> Self:
        self._token = _under_way.set((*_under_way.get(), self))
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_over = True
        _under_way.reset(self._token)

    @staticmethod
    def around(owner: object) -> "Callback | None":
        """Return the running callback of that object to which the running code belongs; None outside of one."""
        inside = (call for call in _under_way.get() if call.owner is owner and not call._is_over)
        return next(inside, None)


_under_way: Final[contextvars.ContextVar[tuple[Callback, ...]]] = contextvars.ContextVar("callbacks", default=())
