"""What stands on the store: made between its recovery and its start, so that no record goes by unseen.

    recovered store -> tables from config/ -> parts -> replay of the state records behind them -> store starts

It is also the state machine that Raft hands to a member that starts anew.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Protocol

from broker.config import BrokerConfig
from broker.parts import Parts
from broker.state_files import encode_files, load_state, write_files
from broker.state_saver import StateSaver
from broker.timers import Timers
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.telemetry.metrics import Histogram
from store.message_store import MessageStore

log = logging.getLogger(__name__)


class Announcer(Protocol):
    """Tells the nameservers what is true of this broker."""

    def announce_soon(self) -> None:
        """Without waiting."""

    def announce(self) -> Awaitable[None]:
        """And wait, not for long, until those that answer know."""


class LogFollower:
    """Makes the parts when the store is recovered.

    Attributes:
        flushes: seconds of each sync of the log.
    """

    def __init__(
        self, config: BrokerConfig, store_host: bytes, announcer: Announcer, timers: Timers, flushes: Histogram
    ) -> None:
        self._config = config
        self._store_host = store_host
        self._announcer = announcer
        self._timers = timers
        self._directory = config.store_dir / "config"
        self._parts: Parts | None = None
        self._saver: StateSaver | None = None
        self.flushes = flushes

    @property
    def parts(self) -> Parts:
        """What serves.

        Raises:
            Refusal: RECOVERING, before the store is recovered.
        """
        if self._parts is None:
            raise Refusal(Cause.RECOVERING, "the log is being recovered", retry_after_ms=100)
        return self._parts

    @property
    def saver(self) -> StateSaver:
        """What keeps the tables on disk; errors as `parts`."""
        if self._saver is None:
            raise Refusal(Cause.RECOVERING, "the log is being recovered", retry_after_ms=100)
        return self._saver

    def prepare(self, store: MessageStore) -> None:
        """See `log_choice.Follower`.

        Raises:
            StoreFormatError: the tables on disk cannot be read.
        """
        loop = asyncio.get_running_loop()
        state = load_state(self._directory)
        self._saver = StateSaver(state, self._directory, loop)
        self._parts = parts = Parts(
            self._config,
            state,
            store,
            self._store_host,
            loop,
            announce=self._announcer.announce,
            announce_soon=self._announcer.announce_soon,
            spawn=self._timers.spawn,
        )
        replayed = parts.state_log.replay(store)
        log.info("%d topics, %d groups; %d state records replayed", len(state.topics), len(state.groups), replayed)
        parts.follow()

    def on_flushed(self, _flushed_offset: int, seconds: float) -> None:
        """One sync of the log is done."""
        self.flushes.observe(seconds)

    def snapshot(self) -> bytes:
        """The tables, for a member that starts anew; errors as `parts`."""
        return self.parts.state.snapshot()

    def restore(self, state: bytes) -> None:
        """Take a leader's tables; they are on disk on return.

        Raises:
            StateFormatError: it is no snapshot; nothing has changed.
            OSError: the disk refused.
        """
        parts = self.parts
        parts.restore(state)
        write_files(self._directory, encode_files(parts.state))
        log.warning("tables taken over from the leader, up to %d", parts.state.applied_offset)
