"""One node as a child process: starts it, sends it signals, notices its end.

The event loop watches a pidfd: this needs neither a thread nor polling, and no signal can reach another process with a
reused process id. Linux only, as is `cli.lifeline`.
"""

import asyncio
import contextlib
import enum
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol


class Process(Protocol):
    """The interface of a started process."""

    @property
    def pid(self) -> int:
        """Process id; kept after the end of the process, until `wait` has returned."""

    def wait(self) -> int:
        """Return the exit code, negative for a signal, once the process has ended."""


Launch = Callable[[Path], Process]
"""Starts a process that appends its output to a file and has no input."""


def program(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> Launch:
    """Return a function that starts a program in a session of its own, by default with our environment."""

    def launch(log_path: Path) -> Process:
        with log_path.open("ab") as log:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )

    return launch


def our_argv(*words: str) -> list[str]:
    """Return the command line of `ledgermq WORDS` as a child of this process, run by this interpreter."""
    # -P: modules in the user's current folder must not hide ours
    return [sys.executable, "-P", "-m", "ledgermq_server", "--die-with-parent", str(os.getpid()), *words]


def process_state(pid: int | None) -> str:
    """Return the kernel's letter for the state of a process: R, S, D, T (stopped), Z; X when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "X"


class ChildState(enum.StrEnum):
    """State of a process."""

    UP = "up"
    PAUSED = "paused"
    DOWN = "down"


class Child:
    """A node's process; `start` may be called again once it has ended.

    Args:
        name: for messages.
        launch: starts the process. It is called on the loop's thread, since the process ends when that thread ends.
        log_path: the process's output is appended to it.
        on_exit: called on the loop with this child when the process has ended, for any reason.
    """

    def __init__(self, name: str, launch: Launch, log_path: Path, on_exit: Callable[["Child"], None]) -> None:
        self.name = name
        self.log_path = log_path
        self.state = ChildState.DOWN
        self.exit_code: int | None = None
        self._launch = launch
        self._on_exit = on_exit
        self._process: Process | None = None
        self._ended = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Process id, or None when it does not run."""
        return self._process.pid if self._process and self.state is not ChildState.DOWN else None

    def start(self) -> None:
        """Start the process. Errors as those of `launch`."""
        self._ended.clear()
        self._process = self._launch(self.log_path)
        self.state, self.exit_code = ChildState.UP, None
        pidfd = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(pidfd, self._reap, pidfd)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._signal(signal.SIGKILL)

    def pause(self) -> None:
        """Send SIGSTOP: the process stops running and keeps its connections and locks."""
        self._signal(signal.SIGSTOP)
        self.state = ChildState.PAUSED

    def resume(self) -> None:
        """Send SIGCONT."""
        self._signal(signal.SIGCONT)
        self.state = ChildState.UP

    async def stop(self, limit_s: float) -> bool:
        """Send SIGTERM, and SIGKILL after `limit_s` seconds; return whether SIGTERM was enough."""
        if self.state is ChildState.DOWN:
            return True
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        if await self.ended_within(limit_s):
            return True
        self.kill()
        await self._ended.wait()
        return False

    async def ended_within(self, limit_s: float) -> bool:
        """Wait for the end; return False when the process still runs after `limit_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._ended.wait()
        return self.state is ChildState.DOWN

    def last_line(self) -> str:
        """Return the last line of its output, for a message about its end."""
        try:
            lines = self.log_path.read_text(errors="replace").split("\n")
        except OSError as error:
            return f"no log: {error}"
        return next((line.strip() for line in reversed(lines) if line.strip()), "it printed no output")

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.state is not ChildState.DOWN:
            os.kill(self._process.pid, number)  # its id is not reused before `_reap`

    def _reap(self, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        assert self._process is not None, "a pidfd of a process that was never started"
        self.exit_code = self._process.wait()
        self.state = ChildState.DOWN
        self._ended.set()
        self._on_exit(self)
