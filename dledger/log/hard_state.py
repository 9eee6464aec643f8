"""The `currterm` file: term and vote, durable before any answer that rests on them.

    voteLeader=n1        "" when no vote was given in the term
    currTerm=2
    recovering=true      ours, absent when false: this node may have forgotten what it promised
    forgotVotes=true     ours, only with `recovering`: it may have voted in terms that it does not know

A save runs in a thread of its own, because a sync takes long and the loop must go on hearing heartbeats. Java's keys
stay Java's and Java skips ours (`MemberState.java`); unlike Java the file is synced, and its `.bak` is not needed.
"""

import logging
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from dledger.core.messages import HardState
from dledger.log.small_file import write_durably
from ledgermq.message.java_properties import parse_properties
from store.errors import StoreError, StoreFormatError

FILE_NAME = "currterm"
_log = logging.getLogger(__name__)


def read_hard_state(directory: Path) -> HardState | None:
    """What `directory/currterm` says; None when there is no such file.

    Raises:
        StoreFormatError: it is there and cannot be parsed. A guess could give a second vote in one term.
    """
    path = directory / FILE_NAME
    try:
        values = parse_properties(path.read_text("utf-8"))
        return HardState(
            term=int(values["currTerm"]),
            voted_for=values.get("voteLeader", ""),
            recovering=(recovering := values.get("recovering", "false")) == "true",
            forgot_votes=values.get("forgotVotes", recovering) == "true",
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError) as error:
        raise StoreFormatError(path, f"cannot read term and vote: {error}") from error


def write_hard_state(directory: Path, state: HardState) -> None:
    """Replace `directory/currterm`; durable on return.

    Raises:
        DiskFullError, DiskFailedError: as `write_durably`.
    """
    lines = [f"voteLeader={state.voted_for}", f"currTerm={state.term}"]
    if state.recovering:
        lines += ["recovering=true", f"forgotVotes={str(state.forgot_votes).lower()}"]
    write_durably(directory / FILE_NAME, ("\n".join(lines) + "\n").encode())


class HardStateFile:
    """`dledger.ports.HardStateStore` on a directory.

    Args:
        directory: the node's Raft directory.
        last_term: term of the log's last entry: where to go on when no term was ever written down.
        doubt: why this node may have forgotten what it acknowledged; None when it has not.
        loop: where `done` is called.
        on_failed: called on the loop, once, when a save failed; no later save is tried.
    """

    def __init__(
        self,
        directory: Path,
        *,
        last_term: int,
        doubt: str | None,
        loop: AbstractEventLoop,
        on_failed: Callable[[StoreError], None],
    ) -> None:
        self._directory = directory
        self._last_term = last_term
        self._doubt = doubt
        self._loop = loop
        self._on_failed = on_failed
        self._queue: SimpleQueue[tuple[HardState, Callable[[], None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hard-state", daemon=True)
        self._thread.start()

    def load(self) -> HardState:
        """The last durable state. A doubt is made durable here, before anybody can be told otherwise."""
        found = read_hard_state(self._directory)
        state = found or HardState(term=max(self._last_term, 0), voted_for="", recovering=True, forgot_votes=True)
        if self._doubt:
            state = replace(state, recovering=True)
        if state != found:
            _log.warning("recovering in term %d: %s", state.term, self._doubt or "no record of term and vote here")
            write_hard_state(self._directory, state)
        return state

    def save(self, state: HardState, done: Callable[[], None]) -> None:
        """Make `state` durable; then call `done` on the loop."""
        self._queue.put((state, done))

    def close(self) -> None:
        """Finish the saves that wait, stop the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            state, done = job
            try:
                write_hard_state(self._directory, state)
            except StoreError as error:
                self._call(partial(self._on_failed, error))
                return
            self._call(done)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            _log.debug("the loop closed before a saved term could be reported")
