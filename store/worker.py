"""Worker: a thread of its own for work that blocks on the disk, in the order in which it is put.

any thread    put(a) put(b) put(c) .........
the thread        work([a]) --------> work([b, c])        what gathers while it works is done in one go
"""

import contextlib
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Worker(Generic[_T]):
    """One thread, from construction to `close`.

    Args:
        name: of the thread.
        work: called in the thread with what was put since the last call, in order; must not raise.
    """

    def __init__(self, name: str, work: Callable[[list[_T]], None]) -> None:
        self._work = work
        self._jobs: SimpleQueue[_T | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: _T) -> None:
        """Hand over a job; in any thread."""
        self._jobs.put(job)

    def end(self) -> None:
        """Stop when what was put is done; return at once."""
        self._jobs.put(None)

    def close(self) -> None:
        """Stop when what was put is done. Blocks until then."""
        self.end()
        self._thread.join()

    def _run(self) -> None:
        is_open = True
        while is_open:
            jobs = [self._jobs.get()]
            with contextlib.suppress(Empty):
                while True:
                    jobs.append(self._jobs.get_nowait())
            is_open = None not in jobs
            batch = [job for job in jobs if job is not None]
            if batch:
                self._work(batch)
