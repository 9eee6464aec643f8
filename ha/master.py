"""The part of a master: it accepts slaves, sends them the log, and decides what is confirmed and acknowledged.

    CommitLog --on_placed--> links: send        links --reported--> Copies --settle()--> CommitLog: confirm, done

There is no task or timer per message: a report settles every batch below it.
"""

import asyncio
import contextlib
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ha.config import LEVEL_BYTES, MasterConfig
from ha.core.copies import Copies, Copy
from ha.core.epochs import Epochs
from ha.errors import HaError
from ha.sender import SlaveLink
from ledgermq.remoting.rate_limited_log import RateLimitedLog
from ledgermq.remoting.refusal import Cause, LeaderHint, Refusal
from store.directory.checkpoint import StoreCheckpoint
from store.files.mapped_file_queue import MappedFileQueue
from store.log.commit_log import CommitLog
from store.log.part import Settlement, appointed, flush_timeout
from store.replicated_log import AppendReceipt, Generation, LogRole, LogState, Readiness, Replica, StateMachine
from telemetry.families import Buckets, Family

LOOK_S: Final = 0.25
_TELL_S: Final = 0.002
_DRAIN_S: Final = 1.0
_DRAIN_LOOK_S: Final = 0.002
_UNKNOWN_MAX: Final = 64
_UNKNOWN_PER_HOST_MAX: Final = 16
_SLAVES_MAX: Final = 64
_LAG_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_log = logging.getLogger(__name__)


class Master:
    """`store.log.part.Part` of the node that writes. `attach` its log, then `start`.

    Args:
        machine: the broker's state, for slaves that begin in the middle of the log.
        copies: which slaves count; None: those that the configuration's rules name.

    Attributes:
        refused_count: connections refused, or closed because of a protocol error.
        is_active: whether slaves are served: by an appointed master always, by an elected one from `begin` to `end`.
        epoch: of an elected master; 0 of an appointed one.
        epochs: of the log; none where masters are appointed.
        on_judged: called when the copies may have changed.
        on_newer_epoch: called when a slave knows of a newer master.
    """

    def __init__(
        self,
        config: MasterConfig,
        loop: asyncio.AbstractEventLoop,
        machine: StateMachine,
        copies: Copies | None = None,
    ) -> None:
        self.config = config
        self.limit_s = config.limit_s
        self.refused_count = 0
        self.is_active = copies is None
        self.epoch = 0
        self.epochs: Epochs = ()
        self.on_judged: Callable[[], None] = _nothing
        self.on_newer_epoch: Callable[[], None] = _nothing
        self._loop = loop
        self._machine = machine
        self._copies = copies if copies is not None else Copies(config.rules)
        self._links: dict[SlaveLink, None] = {}
        self._server: asyncio.Server | None = None
        self._log: CommitLog | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._acknowledged = self._confirmed = 0
        self._is_telling = False
        self._is_closing = False
        self._lag_counts = [0] * (len(_LAG_BOUNDS_S) + 1)
        self._lag_sum_s = 0.0
        self._strangers = RateLimitedLog(_log)
        self._hint = LeaderHint(f"{config.group.name}/0", config.group.client_address)

    def attach(self, log: CommitLog) -> None:
        """Set the log whose part this is."""
        self._log = log

    async def start(self) -> None:
        """Listen to slaves.

        Raises:
            OSError: the port is taken, or the address is not ours.
        """
        config = self.config
        self._server = await self._loop.create_server(
            lambda: SlaveLink(self, self._loop), config.listen_host, config.listen_port
        )
        self._timer = self._loop.call_later(LOOK_S, self._look)
        _log.info("slaves are listened to at %s:%d", config.listen_host, self.port)

    def begin(self, epoch: int, epochs: Epochs) -> None:
        """Serve slaves from now on: this node was elected. Everything confirmed so far counts as acknowledged."""
        self.epoch, self.epochs = epoch, epochs
        self._acknowledged = self._confirmed = self.confirm_offset
        self.is_active = True

    def end(self) -> None:
        """Stop serving slaves: another node was elected."""
        self.is_active = False
        for link in list(self._links):
            link.close()

    @property
    def acknowledged(self) -> int:
        """End of the records whose senders are answered."""
        return self._acknowledged

    @property
    def port(self) -> int:
        """Port at which slaves are accepted."""
        assert self._server is not None, "start() comes first"
        return int(self._server.sockets[0].getsockname()[1])

    # ---- the part of the log

    def state(self, refusal: Refusal | None) -> LogState:
        """See `Part`: writable, by appointment."""
        return LogState(LogRole.MASTER, 0, self._hint, refusal)

    def recovered(self, end: int, checkpoint: StoreCheckpoint, damaged: Sequence[int]) -> int:
        """See `Part`: the whole log is confirmed."""
        self._acknowledged = self._confirmed = end
        return end

    def check(self) -> None:
        """See `Part`; IN_SYNC_REPLICAS_NOT_ENOUGH."""
        if not self._copies.takes_records:
            there, least = self._copies.in_sync_count, self.config.rules.least
            raise Refusal(
                Cause.IN_SYNC_REPLICAS_NOT_ENOUGH,
                f"in-sync replicas not enough: {there} of at least {least} copies are in sync; nothing was stored",
                retry_after_ms=1000,
            )

    @property
    def sendable_offset(self) -> int:
        """Offset up to which slaves are sent the log: all that is placed, even before it is durable here.

        With `SYNC_FLUSH` an appointed master sends only what is durable, so that after a power cut no slave has more
        than the master's disk. The slaves of an elected master cut what it lacks.
        """
        return self.queue.flushed_offset if self._flushes_first else self.queue.committed_offset

    def on_placed(self) -> None:
        """Send placed records. While no sender waits for slaves, frames are 2 ms apart."""
        self._send()

    def _send(self) -> None:
        if self._may_send_now:
            for link in list(self._links):
                link.send()
            if self._links and not self._copies.are_waited_for:
                self._tell_soon()
            return
        for link in self._links:
            link.mark()

    def settle(self, local: int, flushed: int) -> Settlement:
        """See `Part`. The receipt has the smallest number of copies of the acknowledged records."""
        confirmed, acknowledged, lacks_slaves = self._copies.promise(local, self._acknowledged)
        self._acknowledged = acknowledged
        received, durable = self._copies.copies_of(acknowledged)
        if confirmed > self._confirmed:
            self._confirmed = confirmed
            if self._links:  # slaves get it with the next frame, or in a frame of its own if none follows soon
                self._tell_soon()
        shortfall = None
        if lacks_slaves:
            text = f"stored here; {self._copies.wanted} copies are wanted, and no slave is in sync"
            shortfall = Refusal(Cause.SLAVE_NOT_AVAILABLE, text)
        own = int(flushed >= acknowledged)
        return Settlement(confirmed, acknowledged, AppendReceipt(0, 1 + received, own + durable, shortfall))

    def late(self) -> Refusal:
        """See `Part`: FLUSH_SLAVE_TIMEOUT if the batch waits for slaves, and not for this node's flush."""
        limit_ms = int((self.limit_s or 0) * 1000)
        copied = self._copies.promise(self.queue.max_offset, self._acknowledged).acknowledged
        lacks_own_flush = self._flushes_first and self.queue.flushed_offset <= self._acknowledged
        if self._copies.wanted <= 1 or copied > self._acknowledged or lacks_own_flush:
            return flush_timeout(limit_ms)
        there = self._copies.in_sync_count
        return Refusal(
            Cause.REPLICA_TIMEOUT,
            f"stored here; no {self._copies.wanted} copies within {limit_ms} ms, {there} are in sync",
        )

    def on_flushed(self) -> None:
        """Send more, since more is durable here; the log settles by itself."""
        if self._flushes_first:
            self._send()

    def needed_offset(self) -> int | None:
        """See `Part`: what the slowest connected slave has not reported."""
        return self._copies.needed_offset()

    def readiness(self) -> Readiness:
        """See `Part`: not ready while records are refused for lack of slaves."""
        there, least = self._copies.in_sync_count, self.config.rules.least
        if not self._copies.takes_records:
            return Readiness(False, f"{there} copies are in sync, at least {least} are needed")
        return Readiness(True, f"master, {there} copies in sync")

    def generations(self) -> Sequence[Generation]:
        """See `Part`: none, since there are no elections."""
        return ()

    def replicas(self) -> Sequence[Replica]:
        """See `Part`: the connected slaves."""
        least = self.confirm_offset - LEVEL_BYTES
        return [
            Replica(
                copy.address,
                copy.received,
                copy.durable,
                copy.in_sync,
                copy.serves_at,
                copy.broker_id,
                copy.in_sync and copy.received >= least,
            )
            for copy in self._copies.slaves.values()
        ]

    def metrics(self) -> Iterator[Family]:
        """See `Part`: slaves in sync, how far each is behind, and how long reports take."""
        copies = self._copies
        end = self.queue.committed_offset
        names = [(("slave", copy.name),) for copy in copies.slaves.values()]
        lags = [(labels, end - copy.received) for labels, copy in zip(names, copies.slaves.values(), strict=True)]
        yield Family(
            "ledgermq_in_sync_copies", "gauge", "Copies in sync, the own included.", [((), copies.in_sync_count)]
        )
        yield Family("ledgermq_slave_lag_bytes", "gauge", "Of the log that a slave has not reported.", lags)
        buckets = Buckets(_LAG_BOUNDS_S, self._lag_counts, self._lag_sum_s)
        explanation = "From when records can be sent to a slave's report of them."
        yield Family("ledgermq_slave_lag_seconds", "histogram", explanation, [((), buckets)])
        explanation = "Connections at the port for slaves refused, or closed for what was said."
        yield Family("ledgermq_refused_peers_total", "counter", explanation, [((), self.refused_count)])

    def transfer(self, target: str | None) -> str:
        """See `Part`: always refused."""
        raise appointed()

    async def drain(self) -> None:
        """See `Part`: slaves in sync get the rest of the log, within a second."""
        if self._timer is not None:
            self._timer.cancel()
        deadline_s = self._loop.time() + _DRAIN_S
        while self._loop.time() < deadline_s and any(
            copy.in_sync and copy.received < self.queue.committed_offset for copy in self._copies.slaves.values()
        ):
            await asyncio.sleep(_DRAIN_LOOK_S)

    async def close(self) -> None:
        """Close the listener and all connections; called after the last flush, so nothing more is confirmed."""
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        for link in list(self._links):
            link.tell(0.0)  # the last confirm offset: slaves serve up to it while there is no master
            link.close()
        if self._server is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._server.wait_closed()

    # ---- for the links

    @property
    def queue(self) -> MappedFileQueue:
        """The files of the log."""
        assert self._log is not None, "attach() comes first"
        return self._log.local.queue

    @property
    def confirm_offset(self) -> int:
        """Confirm offset of the log."""
        assert self._log is not None, "attach() comes first"
        return self._log.confirm_offset

    def snapshot(self) -> bytes:
        """See `SlaveLinkOwner`."""
        return self._machine.snapshot()

    def admit(self, link: SlaveLink) -> None:
        """Accept a new connection; of a host with too many connections without a handshake the oldest is closed."""
        self._links[link] = None
        if not self.is_active:
            link.close()
            return
        unknown = [other for other in self._links if other.copy is None]
        host, most = Counter(other.host for other in unknown).most_common(1)[0]
        if most > _UNKNOWN_PER_HOST_MAX or len(unknown) > _UNKNOWN_MAX:
            oldest = next(other for other in unknown if other.host == host)
            oldest.close(HaError(f"{host} has {most} connections that have not said who they are"))

    def joined(self, link: SlaveLink, copy: Copy) -> None:
        """Add a slave whose handshake is done; an older connection of it is closed."""
        for other in list(self._links):
            if other is not link and other.copy is not None and other.copy.name == copy.name:
                if link.hello is None and other.hello is not None:
                    raise HaError(f"{copy.name} has proved who it is, and {link.address} has not")
                other.close(HaError("its slave has connected again"))
        if len(self._copies.slaves) >= _SLAVES_MAX:
            raise HaError(f"there are {_SLAVES_MAX} slaves already")
        self._copies.join(copy)
        _log.info("slave %s at %s: sends from %d of %d", copy.name, copy.address, copy.sent, self.queue.max_offset)
        self._judge()

    def reported(self, link: SlaveLink) -> None:
        """Handle a new report: settle the batches that it completes, and send what the slave has room for."""
        self._judge()
        self._settle_log()
        if self._may_send_now:
            link.send()

    def newer_epoch(self, link: SlaveLink) -> None:
        """See `SlaveLinkOwner`."""
        self.on_newer_epoch()

    def complain(self, link: SlaveLink, error: Exception) -> None:
        """Count and log why a connection is closed."""
        self.refused_count += 1
        if link.copy is not None:
            _log.warning("slave %s at %s is dropped: %s", link.copy.name, link.address, error)
        else:
            self._strangers.warning("%s is refused at the port for slaves: %s", link.address, error)

    def closed(self, link: SlaveLink) -> None:
        """Handle the end of a connection; batches that waited only for its slave are settled."""
        self._links.pop(link, None)
        if link.copy is not None and self._copies.slaves.get(link.copy.name) is link.copy:
            self._copies.leave(link.copy)
            _log.warning("slave %s is gone at %d; %d copies are in sync", *self._where(link.copy))
            self.on_judged()
            self._settle_log()

    def observe_lag(self, seconds: float) -> None:
        """See `SlaveLinkOwner`."""
        self._lag_counts[bisect_left(_LAG_BOUNDS_S, seconds)] += 1
        self._lag_sum_s += seconds

    # ---- internals

    def _where(self, copy: Copy) -> tuple[str, int, int]:
        return copy.name, copy.received, self._copies.in_sync_count

    def _judge(self) -> None:
        for copy in self._copies.update_in_sync(self.queue.committed_offset, self.confirm_offset, self._loop.time()):
            text = "slave %s joins the copies in sync" if copy.in_sync else "slave %s falls behind and does not count"
            _log.info(text + ", at %d; they are %d", *self._where(copy))
        self.on_judged()

    @property
    def _flushes_first(self) -> bool:
        return self._log is not None and self._log.local.is_sync and not self.epochs

    @property
    def _may_send_now(self) -> bool:
        return not self._is_telling or self._copies.are_waited_for

    def _tell_soon(self) -> None:
        if not self._is_telling:
            self._is_telling = True
            self._loop.call_later(_TELL_S, self._tell)

    def _tell(self) -> None:
        self._is_telling = False
        for link in list(self._links):
            if (link.send() and not self._copies.are_waited_for) or link.tell(_TELL_S):
                self._tell_soon()

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)
        if not self.is_active:
            return
        now_s = self._loop.time()
        for link in list(self._links):
            link.beat(now_s)
        self._judge()
        self._settle_log()

    def _settle_log(self) -> None:
        if self._log is not None and self.is_active and not self._is_closing:
            self._log.settle()


def _nothing() -> None:
    pass
