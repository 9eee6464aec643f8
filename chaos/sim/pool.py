"""Runs seeds in several processes, and removes the folders of their runs when all have ended."""

import contextlib
import gc
import multiprocessing
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from chaos.crash.campaign import memory_directory

_T = TypeVar("_T")
_PREFIX: Final = "ledgermq-sim-"
_OBJECTS_A_COLLECTION: Final = 20_000
"""A run makes millions of objects, nearly all without cycles: by default collections take a tenth of its time."""
_parent: Path | None = None


def new_folder() -> Path:
    """Make a folder for the files of one run, in memory if possible."""
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_parent or memory_directory()))


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise SystemExit within the block, so that files of runs are removed as after Ctrl-C."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_beside(work: Callable[..., _T], jobs: int, *items: Iterable[Any], chunk: int = 1) -> Generator[_T, None, None]:
    """Yield what `work` returns for each item, in order, from `jobs` processes.

    They are killed when the caller stops early or is interrupted; otherwise they would finish the items they have.
    """
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=memory_directory()) as folder:
        pool = ProcessPoolExecutor(jobs, initializer=_begin, initargs=(Path(folder),))
        try:
            yield from pool.map(work, *items, chunksize=chunk)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.kill()
            raise
        finally:
            pool.shutdown()


def _begin(folder: Path) -> None:
    """Leave SIGINT and the removal of files to the parent; run the garbage collector rarely, and not over modules."""
    global _parent
    _parent = folder
    gc.freeze()
    gc.set_threshold(_OBJECTS_A_COLLECTION)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
