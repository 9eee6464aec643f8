"""The processes below this one: Spark's JVM and its Python workers."""

import contextlib
import ctypes
import os
from pathlib import Path

from benchmarks.node_process import TICK_S

_PR_SET_CHILD_SUBREAPER = 36


def descendants() -> dict[int, str]:
    """The processes below this one, with their command lines."""
    parents, commands = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            commands[int(path.name)] = (path / "cmdline").read_text()
        except OSError:
            continue
    found: dict[int, str] = {}
    todo = [os.getpid()]
    while todo:
        parent = todo.pop()
        below = [each for each, other in parents.items() if other == parent]
        found |= {each: commands[each] for each in below}
        todo += below
    return found


def adopt() -> None:
    """Make orphans children of this process: Spark ends a worker's parent, and starts a new one, when that is slow."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def cpu_s() -> float:
    """CPU time so far of this process and those below it; what has ended counts where its parent is alive."""
    ticks = 0
    for pid in (os.getpid(), *descendants()):
        with contextlib.suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks * TICK_S
