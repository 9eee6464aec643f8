"""Machinery: the event loop, threads and disk on which one process's shipping code runs, all in virtual time."""

from collections.abc import Callable
from functools import partial
from typing import Any

from chaos.sim.clock import SimClock
from chaos.sim.stack.disk import StoreDisk
from chaos.sim.stack.loop import SimLoop
from chaos.sim.stack.replacements import Replacements
from chaos.sim.stack.threads import SimThread, SimWorker

_SLEEP_US = 500_000


class Machinery:
    """The loop and threads of one process. The subclass has a name and a clock, and runs events.

    Attributes:
        files: the node's disk.
        lanes, workers: its threads.
    """

    def __init__(self, clock: SimClock, replaced: Replacements, files: StoreDisk, rate: float) -> None:
        self.files = files
        self.lanes: dict[Any, SimThread] = {}
        self.workers: list[SimWorker] = []
        self._clock = clock
        self._replaced = replaced
        self.loop = SimLoop(clock, self.now_us, rate, self._run, self._submit, self._do_a_job, self._is_dead)

    # -- for the subclass

    def now_us(self) -> int:
        """Return the process's own monotonic clock, in us."""
        raise NotImplementedError

    def _run(self, what: str, event: Callable[[], None]) -> None:
        """Run an event of this process: now, after its pause, or never."""
        raise NotImplementedError

    # -- threads

    def _submit(self, executor: Any, work: Callable[[], Any]) -> Any:
        """Run a function in an executor, as `run_in_executor` does."""
        future = self._replaced.lane(executor).submit(work)
        waiting = self.loop.create_future()
        future.add_done_callback(partial(self._job_is_done, waiting))
        return waiting

    def _job_is_done(self, waiting: Any, future: Any) -> None:
        if waiting.done() or future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self.loop.call_soon(lambda: waiting.done() or waiting.set_exception(error))
        else:
            self.loop.call_soon(lambda: waiting.done() or waiting.set_result(future.result()))

    def _do_a_job(self) -> bool:
        """Run the next job of any thread; return whether there was one. For a start, which waits for its threads."""
        return any(lane.do_now() for lane in list(self.lanes.values())) or any(
            worker.do_now() for worker in self.workers
        )

    def _is_dead(self) -> bool:
        return self.files.is_dead

    def latency_us(self) -> int:
        return self.files.latency_us()

    def later_us(self) -> int:
        return _SLEEP_US

    def is_stalled(self) -> bool:
        return self.files.is_stalled

    def call_in(self, delay_us: int, what: str, callback: Callable[[], None]) -> None:
        self._clock.call_in(delay_us, lambda: self._run(what, callback))

    def disk_asked(self) -> dict[int, bytes]:
        return self.files.contents_of_log()

    def disk_answers(self, covered: dict[int, bytes], work: Callable[[], None]) -> None:
        self.files.began = covered
        try:
            work()
        finally:
            self.files.began = {}
