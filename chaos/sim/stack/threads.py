"""Threads in virtual time: each job of a thread or executor runs at a moment drawn from the seed, all of it at once.

    submit, put ---- a time drawn from the seed, longer on a slow disk ----> job ---> future set, loop woken
                                                 not at all on a stalled one

A sync makes durable what was written when its job began to wait for the disk. Waiting for a future on the loop's thread
runs the jobs before it, and its own, at once.
"""

import concurrent.futures
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from chaos.sim.process import ProcessDiesError

STALLED_RETRY_US = 20_000


class ThreadHost(Protocol):
    """The interface of a process to its threads."""

    workers: list["SimWorker"]

    def latency_us(self) -> int:
        """Return the time in us until the next job is done."""

    def is_stalled(self) -> bool:
        """Return whether the disk does not answer."""

    def call_in(self, delay_us: int, what: str, callback: Callable[[], None]) -> None:
        """Run an event of this process later."""

    def disk_asked(self) -> dict[int, bytes]:
        """Return what a sync covers that starts now and takes effect later."""

    def disk_answers(self, covered: dict[int, bytes], work: Callable[[], None]) -> None:
        """Run work whose syncs cover what `disk_asked` returned."""

    def later_us(self) -> int:
        """Return the time in us for which a thread sleeps that waits with a time-out."""


class SleepsError(Exception):
    """The job waits with a time-out, so it must be started again later."""


class SimEvent:
    """`threading.Event` for a job: a job that has to wait is started again later."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """Wake the waiting jobs."""
        self._is_set = True

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def wait(self, _timeout: float | None = None) -> bool:
        """Return True if it is set. Raises `SleepsError`: it is not."""
        if self._is_set:
            return True
        raise SleepsError


class SimFuture(concurrent.futures.Future[Any]):
    """The future of a job of one `SimThread`."""

    def __init__(self, lane: "SimThread") -> None:
        super().__init__()
        self._lane = lane

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self._lane.run_up_to(self, can_wait=timeout is None)
        if not self.done():
            raise concurrent.futures.TimeoutError
        return super().result()


class SimThread:
    """One thread: runs jobs in order, each at its time."""

    def __init__(self, host: ThreadHost) -> None:
        self._host = host
        self._jobs: deque[tuple[SimFuture, Callable[[], Any]]] = deque()
        self._is_waiting = False

    def submit(self, job: Callable[[], Any]) -> SimFuture:
        """Run a job after those that wait."""
        future = SimFuture(self)
        self._jobs.append((future, job))
        self._wait(self._host.latency_us())
        return future

    def run_up_to(self, future: SimFuture, *, can_wait: bool) -> None:
        """Run jobs now until `future` is done, for a waiting loop; with a time-out not on a stalled disk."""
        while not future.done() and self._jobs and (can_wait or not self._host.is_stalled()):
            self._run_next()

    def do_now(self) -> bool:
        """Run the next job; return whether there was one."""
        if self._jobs:
            self._run_next()
            return True
        return False

    def _wait(self, delay_us: int) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self._host.call_in(delay_us, "thread", self._is_time)

    def _is_time(self) -> None:
        self._is_waiting = False
        if not self._jobs:
            return
        if self._host.is_stalled():
            self._wait(STALLED_RETRY_US)
            return
        self._run_next()
        if self._jobs:
            self._wait(self._host.latency_us())

    def _run_next(self) -> None:
        future, job = self._jobs.popleft()
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = job()
        except ProcessDiesError:
            raise
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)


class SimWorker:
    """`store.worker.Worker` in virtual time: the jobs put since the last batch began are the next batch."""

    def __init__(self, host: ThreadHost, work: Callable[[list[Any]], None]) -> None:
        self._host = host
        self._work = work
        self._jobs: list[Any] = []
        self._begun: list[Any] = []
        self._covered: dict[int, bytes] = {}
        host.workers.append(self)

    def put(self, job: Any) -> None:
        """Add a job."""
        self._jobs.append(job)
        if not self._begun:
            self._begin()

    def end(self) -> None:
        """Do nothing: there is no thread."""

    def close(self) -> None:
        """Finish the waiting work now."""
        while self._begun:
            self._do()

    def do_now(self) -> bool:
        """Finish the batch under way; return whether there was one."""
        if self._begun:
            self._do()
            return True
        return False

    def _begin(self) -> None:
        """Begin a batch of all waiting jobs."""
        self._begun, self._jobs = self._jobs, []
        self._covered = self._host.disk_asked()
        self._host.call_in(self._host.latency_us(), "worker", self._is_time)

    def _is_time(self) -> None:
        if self._begun:
            if self._host.is_stalled():
                self._host.call_in(STALLED_RETRY_US, "worker", self._is_time)
            else:
                self._do()

    def _do(self) -> None:
        try:
            self._host.disk_answers(self._covered, lambda: self._work(self._begun))
        except SleepsError:
            self._host.call_in(self._host.later_us(), "worker", self._is_time)
            return
        self._begun = []
        if self._jobs:
            self._begin()
