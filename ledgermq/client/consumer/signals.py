"""Signals that stop handlers; several consumers of a program may use the same signal."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from ledgermq.client.errors import InvalidArgumentError

Signals = signal.Signals | Iterable[signal.Signals]
"""One signal or several."""

_waiting: Final[dict[int, list[Callable[[], None]]]] = {}
_before: Final[dict[int, Any]] = {}


@contextlib.contextmanager
def stopped_by(signals: Signals, stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at each of these signals within the block; afterwards they are handled as before.

    Raises:
        InvalidArgumentError: not a signal, one that cannot be caught, or called outside of the main thread.
    """
    with contextlib.ExitStack() as caught:
        for number in _numbers(signals):
            _install(number, stop)
            caught.callback(_uninstall, number, stop)
        yield


def _numbers(signals: Signals) -> list[int]:
    try:
        several = [signals] if isinstance(signals, int) else list(signals)
        if any(isinstance(number, bool) for number in several):
            raise ValueError("True and False are no signals")
        return [signal.Signals(number) for number in several]
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"stop_on {signals!r}: {error}") from error


def _install(number: int, stop: Callable[[], None]) -> None:
    if number not in _waiting:
        before = signal.getsignal(number)
        try:
            asyncio.get_running_loop().add_signal_handler(number, _stop_all, number)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            raise InvalidArgumentError(f"signal {number} cannot be caught: {error}") from error
        _waiting[number] = []
        is_the_loops = before == signal.getsignal(number)  # restore the program's own handler at the loop
        _before[number] = signal.SIG_DFL if before is None or is_the_loops else before
    _waiting[number].append(stop)


def _uninstall(number: int, stop: Callable[[], None]) -> None:
    _waiting[number].remove(stop)
    if not _waiting[number]:
        del _waiting[number]
        asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(number, _before.pop(number))


def _stop_all(number: int) -> None:
    for stop in list(_waiting.get(number, ())):
        stop()
