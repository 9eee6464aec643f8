"""SimLoop: the event loop of one process, in virtual time.

    call_soon --> ready --one turn of the clock--> all that was ready when it began
    call_at ----> an event of the clock ---------> ready

Tasks and futures are asyncio's own. A loop belongs to a process: it stands still while that is paused, and for ever
when that is dead.
"""

import asyncio
import contextlib
import contextvars
import inspect
import math
import weakref
from asyncio import events
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from chaos.sim.clock import SimClock
from chaos.sim.process import ProcessDiesError

_T = TypeVar("_T")
Dial = Callable[[Callable[[], asyncio.BaseProtocol], int], Awaitable[tuple[Any, asyncio.BaseProtocol]]]
_TURN_US = 2
_UNWOUND_MAX = 20


class SimLoop:
    """The event loop of one process, as far as `asyncio` and the shipping code use one.

    Args:
        clock: the simulation's clock.
        now_us: the process's own monotonic clock.
        run: runs a turn as an event of the process: now, after its pause, or never.
        submit: runs a function in an executor of the process.
        do_a_job: runs the next job of a thread; returns whether there was one.
        is_dead: returns whether the process died within a file call.

    Attributes:
        as_loop: this object, typed as asyncio's loop.
        dial: connects to a simulated port; None in a process that connects to nothing.
        accept: makes the protocol of a connection to this process; None while it does not listen.
        errors: exceptions of callbacks and of tasks that no one awaited.
    """

    def __init__(
        self,
        clock: SimClock,
        now_us: Callable[[], int],
        rate: float,
        run: Callable[[str, Callable[[], None]], None],
        submit: Callable[[Any, Callable[[], Any]], "asyncio.Future[Any]"],
        do_a_job: Callable[[], bool],
        is_dead: Callable[[], bool],
    ) -> None:
        self.as_loop = cast(asyncio.AbstractEventLoop, self)
        self._clock = clock
        self._now_us = now_us
        self._rate = rate
        self._run = run
        self._submit = submit
        self._do_a_job = do_a_job
        self._is_dead = is_dead
        self._ready: deque[asyncio.Handle] = deque()
        self._is_turn_due = False
        self._tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], None] = weakref.WeakKeyDictionary()  # in order
        self.is_stopped = False
        self.dial: Dial | None = None
        self.accept: Callable[[], asyncio.BaseProtocol] | None = None
        self.errors: list[BaseException] = []

    # -- scheduling

    def time(self) -> float:
        return self._now_us() / 1e6

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self.as_loop, context)
        self._ready.append(handle)
        self._due()
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self.as_loop, context)
        delay_us = max(0, math.ceil((when * 1e6 - self._now_us()) / self._rate))
        self._clock.call_in(delay_us, lambda: self._timer_is_up(handle))
        return handle

    def _timer_is_up(self, handle: asyncio.TimerHandle) -> None:
        if not handle.cancelled() and not self.is_stopped:
            self._ready.append(handle)
            self._due()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled handle is skipped when its time comes."""

    def _due(self) -> None:
        if not self._is_turn_due and not self.is_stopped:
            self._is_turn_due = True
            self._clock.call_in(_TURN_US, self._turn_is_due)

    def _turn_is_due(self) -> None:
        if self.is_stopped:
            return
        what = self._ready[0] if self._ready else None
        self._run("turn" if what is None else _name_of(what), self.turn)

    def turn(self) -> None:
        """Run what was ready when this began."""
        self._is_turn_due = False
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()
            if self.is_stopped or self._is_dead():
                return
        if self._ready:
            self._due()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Make this the running event loop inside the block."""
        events._set_running_loop(self.as_loop)
        try:
            yield
        finally:
            events._set_running_loop(None)

    def run_event(self, event: Callable[[], object]) -> None:
        """Run an event in this process; raise an error that was left behind."""
        events._set_running_loop(self.as_loop)
        try:
            event()
        finally:
            events._set_running_loop(None)
        if self.errors:
            raise self.errors.pop(0)

    def run_now(self, main: Coroutine[Any, Any, _T]) -> _T:
        """Run until `main` is done while no time passes; for starts, before requests are served."""
        with self.running():
            task = self.create_task(main)
            try:
                while not task.done() and not self._is_dead():
                    if not self._ready:
                        assert self._do_a_job(), f"{main} waits for what does not come"
                    self.turn()
                if self._is_dead():
                    raise ProcessDiesError
            except ProcessDiesError:
                _unwind(main)
                raise
        result: _T = task.result()
        return result

    def stop(self) -> None:
        """End everything under way, and run nothing any more."""
        self.is_stopped = True
        ended: set[asyncio.Task[Any]] = set()
        for _ in range(_UNWOUND_MAX):  # tasks that end may start others
            tasks = [task for task in self._tasks if task not in ended and not task.done()]
            self._ready.clear()  # listed first: only its turn may hold a task that has not begun
            if not tasks:
                break
            ended.update(tasks)
            for task in tasks:
                _unwind(task.get_coro())

    # -- what asyncio asks of a loop

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self.as_loop)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self.as_loop, name=name, context=context)
        self._tasks[task] = None
        return task

    async def create_connection(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], _host: str, port: int, *, ssl: object = None
    ) -> tuple[Any, asyncio.BaseProtocol]:
        if self.dial is None or ssl is not None:
            raise OSError(f"nothing is simulated that listens at {port}")
        return await self.dial(protocol_factory, port)

    async def create_server(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int, **_: object
    ) -> SimpleNamespace:
        self.accept = protocol_factory
        return SimpleNamespace(sockets=[SimpleNamespace(getsockname=lambda: (host, port))])

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        return self._submit(executor, lambda: func(*args))

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_stopped

    def is_closed(self) -> bool:
        return self.is_stopped

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not self.is_stopped:
            self.errors.append(error)


def _unwind(main: Any) -> None:
    """End a coroutine of a dead process now, rather than whenever the garbage collector comes to it.

    A coroutine that has not begun has not taken over the coroutines among its arguments. One that waits again while it
    cleans up is cancelled once more: `close` would end those that await it at once, and leave it waiting.
    """
    frame = getattr(main, "cr_frame", None)
    if frame is not None and inspect.getcoroutinestate(main) == inspect.CORO_CREATED:
        for given in [value for value in frame.f_locals.values() if inspect.iscoroutine(value)]:
            _unwind(given)
    with contextlib.suppress(BaseException):  # errors of clean-up code, for which nothing works any more
        for _ in range(_UNWOUND_MAX):
            main.throw(ProcessDiesError())


def _name_of(handle: asyncio.Handle) -> str:
    callback = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        callback = owner.get_coro()
    return str(getattr(callback, "__qualname__", callback))
