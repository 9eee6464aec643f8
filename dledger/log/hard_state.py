"""The `currterm` file: term and vote, durable before any answer that depends on them.

    voteLeader=n1        "" when no vote was given in the term
    currTerm=2
    recovering=true      ours, absent when false: this node may have forgotten what it promised
    forgotVotes=true     ours, only with `recovering`: it may have voted in terms that it does not know

Invariants: the term never falls, and within a term the vote is set once. `forgotVotes` stands only with `recovering`.

Saves run in a thread, because a sync takes long and the loop must keep receiving heartbeats. The first two keys are
Java's, which ignores ours (`MemberState.java`). Unlike Java's the file is synced, so it needs no `.bak`.
"""

import logging
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from dledger.core.messages import HardState
from dledger.log.small_file import write_durably
from ledgermq.message.java_properties import parse_properties
from store.errors import DiskFullError, StoreError, StoreFormatError
from store.worker import Worker

FILE_NAME = "currterm"
RETRY_S = 0.5
_log = logging.getLogger(__name__)


def read_hard_state(directory: Path) -> HardState | None:
    """Read `directory/currterm`; None if there is no such file.

    Raises:
        StoreFormatError: the file cannot be parsed. A guess could lead to a second vote in one term.
    """
    path = directory / FILE_NAME
    try:
        return parse_hard_state(parse_properties(path.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError) as error:
        raise StoreFormatError(path, f"cannot read term and vote: {error}") from error


def parse_hard_state(values: Mapping[str, str]) -> HardState:
    """Return the values of the file's properties.

    Raises:
        ValueError, KeyError: they are none of a hard state.
    """
    return HardState(
        term=int(values["currTerm"]),
        voted_for=values.get("voteLeader", ""),
        recovering=(recovering := values.get("recovering", "false")) == "true",
        forgot_votes=values.get("forgotVotes", recovering) == "true",
    )


def write_hard_state(directory: Path, state: HardState) -> None:
    """Replace `directory/currterm`; durable on return.

    Raises:
        DiskFullError, DiskFailedError: as `write_durably`.
    """
    lines = [f"voteLeader={state.voted_for}", f"currTerm={state.term}"]
    if state.recovering:
        lines += ["recovering=true", f"forgotVotes={str(state.forgot_votes).lower()}"]
    write_durably(directory / FILE_NAME, ("\n".join(lines) + "\n").encode())


def make_recovering(directory: Path) -> None:
    """Have `directory/currterm`, if there is one, say `recovering`. Durable on return.

    Raises:
        StoreFormatError, DiskFullError, DiskFailedError: it cannot be read or written.
    """
    state = read_hard_state(directory)
    if state is not None and not state.recovering:
        write_hard_state(directory, replace(state, recovering=True))


def settle_hard_state(directory: Path, *, last_term: int, doubt: str | None) -> None:
    """Make sure that `directory/currterm` exists, and says `recovering` if there is a doubt. Durable on return.

    Args:
        directory: the node's Raft directory.
        last_term: term of the log's last entry, used when no term was ever saved; -1 for none.
        doubt: why this node may have forgotten what it acknowledged; None when it has not.

    Raises:
        StoreFormatError, DiskFullError, DiskFailedError: it cannot be read or written.
    """
    found = read_hard_state(directory)
    state = found or HardState(term=max(last_term, 0), voted_for="", recovering=True, forgot_votes=True)
    if doubt:
        state = replace(state, recovering=True)
    if state != found:
        _log.warning("recovering in term %d: %s", state.term, doubt or "no record of term and vote here")
        write_hard_state(directory, state)


class HardStateFile:
    """`dledger.ports.HardStateStore` in a directory for which `settle_hard_state` was called.

    A save that finds no room is tried again every `RETRY_S` until there is room; the node does not vote or campaign
    until then. Any other disk error is final.

    Args:
        directory: the node's Raft directory.
        loop: the event loop on which `done` is called.
        on_failed: called on the loop, once, when a save failed; no later save is tried.
    """

    def __init__(
        self,
        directory: Path,
        *,
        loop: AbstractEventLoop,
        on_failed: Callable[[StoreError], None],
    ) -> None:
        self._directory = directory
        self._loop = loop
        self._on_failed = on_failed
        self._is_closing = threading.Event()
        self._is_over = False
        self._worker: Worker[tuple[HardState, Callable[[], None]]] = Worker("hard-state", self._work)

    def load(self) -> HardState:
        """Return the last durable state.

        Raises:
            StoreFormatError: the file cannot be read, or is missing.
        """
        found = read_hard_state(self._directory)
        if found is None:
            raise StoreFormatError(self._directory / FILE_NAME, "is missing; it was there when the log was opened")
        return found

    def save(self, state: HardState, done: Callable[[], None]) -> None:
        """Make `state` durable, then call `done` on the loop."""
        self._worker.put((state, done))

    def close(self) -> None:
        """Finish the saves that wait, if there is room for them, and stop the thread."""
        self._is_closing.set()
        self._worker.close()

    def _work(self, batch: list[tuple[HardState, Callable[[], None]]]) -> None:
        """Run in the thread: write one state after the other, until the disk refuses one."""
        for state, done in batch:
            if self._is_over:
                return
            try:
                self._is_over = not self._write(state)
            except StoreError as error:
                self._is_over = True
                self._call(partial(self._on_failed, error))
            else:
                if not self._is_over:
                    self._call(done)

    def _write(self, state: HardState) -> bool:
        """Write, again and again until there is room; False if `close` was called before that.

        Raises:
            DiskFailedError: the disk failed.
        """
        is_logged = False
        while True:
            try:
                write_hard_state(self._directory, state)
            except DiskFullError as error:
                if not is_logged:
                    _log.error(
                        "term %d cannot be saved; this node does not vote until the disk has room: %s",
                        state.term,
                        error,
                    )
                    is_logged = True
                if self._is_closing.wait(RETRY_S):
                    return False
            else:
                return True

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            _log.debug("the loop closed before a saved term could be reported")
