"""The part of a replica whose master is elected: master or slave, as the controllers decide.

    controllers <--> Governance --lead, follow, lease--> Master or Slave <-- CommitLog

A master confirms and acknowledges only while it has a lease, since a successor is elected after the end of the lease.
It accepts records once everything that was in its log at its election is confirmed.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from ha.config import MemberConfig, SlaveConfig
from ha.core.auto_switch import AUTO_SWITCH
from ha.core.doubt import Doubt
from ha.core.elected_copies import ElectedCopies
from ha.core.epochs import number_at
from ha.core.replica_role import GroupDecision, ReplicationPart
from ha.core.stream import OURS, Dialect
from ha.elected.controllers import Controllers
from ha.elected.files import BootFile, EpochFile
from ha.elected.governance import NO_LEASES, Governance, GovernedMember
from ha.errors import HaError
from ha.master import Master
from ha.slave import Slave
from ledgermq.remoting.rate_limited_log import RateLimitedLog
from ledgermq.remoting.refusal import Cause, LeaderHint, Refusal
from store.directory.checkpoint import StoreCheckpoint
from store.errors import StoreError
from store.log.commit_log import CommitLog
from store.log.part import Settlement
from store.replicated_log import AppendReceipt, Generation, LogRole, LogState, Readiness, Replica, StateMachine
from telemetry.families import Family

_LOOK_S: Final = 0.5
_FULL_LOOKS: Final = 4
"""Number of checks of a full disk after which a master hands over; before that, deleted files may make room."""

_PATIENCE_S: Final = 1.0
"""Seconds without a lease after which a master refuses records; until then records wait for the lease."""

_NOT_NOW: Final = AppendReceipt(generation=0, copies=1, durable_copies=0)

_log = logging.getLogger(__name__)


class ElectedMember:
    """`store.log.part.Part` of an elected replica, and a `GovernedBroker`. `attach` its log, then `start`.

    Raises:
        StoreError, OSError: the file of the boot cannot be read or written.
    """

    def __init__(
        self,
        config: MemberConfig,
        loop: asyncio.AbstractEventLoop,
        machine: StateMachine,
        controllers: Controllers,
        boot: str | None = None,
    ) -> None:
        group = config.master.group
        self.config = config
        self.limit_s = config.master.limit_s
        self._loop = loop
        copies = ElectedCopies(config.master.rules)
        self._history = EpochFile(config.root)
        self._boot = BootFile(config.root, boot)
        self._has_lost_power = self._boot.has_lost_power()
        if self._has_lost_power:
            # before the store opens, since a failed start closes the store cleanly
            self._boot.write(is_durable=config.master.rules.counts_durable, in_doubt=True)
        self._doubt = Doubt()
        self.master = Master(config.master, loop, machine, copies)
        self.slave = Slave(SlaveConfig(group=group), loop, machine, self._history)
        self.master.on_judged = self._propose_if_needed
        self.master.on_newer_epoch = self.ask_controllers
        member = GovernedMember(group.broker_id, group.client_address, config.poll_s)
        self.governance = Governance(member, self, controllers, copies, loop, _now_s)
        self._acting: Master | Slave = self.slave
        self._own_hint = LeaderHint(f"{group.name}/{group.broker_id}", group.client_address)
        self._grants_leases: bool | None = None  # whether the controllers say so in their answers to heartbeats
        self._why_full: Callable[[], str | None] = lambda: None
        self._full: str | None = None  # why there was no room at the last check
        self._log: CommitLog | None = None
        self._trouble = RateLimitedLog(_log)
        self._routed = ("", "")  # a master's client and slave addresses, from a nameserver

    def attach(self, log: CommitLog) -> None:
        """Set the log whose part this is."""
        self._log = log
        self.master.attach(log)
        self.slave.attach(log)

    async def start(self) -> None:
        """Listen to slaves, begin to ask the controllers; returns before there is a master.

        Raises:
            OSError: the port is taken, or the address is not ours.
            EpochFileError: the file of epochs is damaged.
            StoreError: the disk refused.
        """
        end = self._attached.max_offset
        self._history.load(end)
        role = self.governance.role
        role.log_epoch = number_at(self._history.epochs, end)
        if self._has_lost_power:
            self._doubt = Doubt(self._history.newest)
            role.log_epoch = self._history.newest
            _log.warning(
                "the machine has stopped, and the end of the log may be missing: no candidate until it is copied"
            )
        self._note_doubt()
        await self.master.start()
        self.slave.start()
        self.governance.start()
        self.governance.spawn(self._watch_room())

    def watch_room(self, why_full: Callable[[], str | None]) -> None:
        """Hand over if this node is master and `why_full` returns a reason for two seconds."""
        self._why_full = why_full

    def ask_controllers(self) -> None:
        """Ask the controllers for their decision; called on a notice, which may be false."""
        self.governance.ask_soon()

    def follow(self, ha_address: str, client_address: str) -> bool:
        """See `Slave.follow`: RocketMQ's brokers tell nameservers their address for slaves, not controllers."""
        self._routed = (client_address, ha_address)
        role = self.governance.role
        known = role.known
        if self._acting is self.slave and role.play is ReplicationPart.SLAVE:
            self.slave.follow_elected(known.master_epoch, *self._master_of(known))
        return bool(self.slave.receiver.address) or not self.config.follows_rocketmq

    # ---- the part of the log

    def state(self, refusal: Refusal | None) -> LogState:
        """See `Part`."""
        if self._acting is self.slave:
            return self.slave.state(refusal)
        if (successor := self.governance.successor) is not None:
            text = f"the master of epoch {self.master.epoch} hands over to broker {successor}"
            refusal = refusal or Refusal(Cause.RECOVERING, text, retry_after_ms=100)
            return LogState(LogRole.MASTER, self.master.epoch, None, refusal)
        if refusal is None and not self.governance.is_open:
            text = f"elected master of epoch {self.master.epoch}, and not everything in the log is confirmed yet"
            if self._grants_leases is False:
                text = f"elected master of epoch {self.master.epoch}, and {NO_LEASES}"
            refusal = Refusal(Cause.RECOVERING, text, retry_after_ms=100)
        return LogState(LogRole.MASTER, self.master.epoch, self._own_hint, refusal)

    def recovered(self, end: int, checkpoint: StoreCheckpoint, damaged: Sequence[int]) -> int:
        """See `Part`: as for a slave, dispatched records are confirmed."""
        return self.slave.recovered(end, checkpoint, damaged)

    def check(self) -> None:
        """See `Part`: a slave refuses, and so does a master without a lease."""
        self._acting.check()
        overdue_s = _now_s() - self.governance.lease.ends_s
        if overdue_s > _PATIENCE_S:
            text = f"the lease of this master ended {overdue_s:.1f} s ago: no controller that leads answers"
            raise Refusal(Cause.RECOVERING, f"{text}; nothing was stored", retry_after_ms=1000)

    def on_placed(self) -> None:
        """See `Part`."""
        self._acting.on_placed()

    def settle(self, local: int, flushed: int) -> Settlement:
        """See `Part`: without a lease nothing is confirmed or acknowledged."""
        if self._acting is self.slave:
            return self.slave.settle(local, flushed)
        if not self.governance.holds_lease:
            return Settlement(self._attached.confirm_offset, self.master.acknowledged, _NOT_NOW)
        settlement = self.master.settle(local, flushed)
        governance = self.governance
        is_open = governance.is_open or governance.successor is not None
        if not is_open and settlement.confirmed >= self._attached.max_offset:
            self._loop.call_soon(self._open, self.master.epoch)
        return settlement

    def late(self) -> Refusal:
        """See `Part`."""
        if self._acting is self.master and not self.governance.holds_lease:
            text = "stored here; no controller that leads has answered in time, and another master may be elected"
            return Refusal(Cause.REPLICA_TIMEOUT, text)
        return self._acting.late()

    def on_flushed(self) -> None:
        """Note that more of the log is durable."""
        self._acting.on_flushed()

    def needed_offset(self) -> int | None:
        """See `Part`."""
        return self._acting.needed_offset()

    def readiness(self) -> Readiness:
        """See `Part`: a master is ready while it takes records."""
        if self.governance.role.play is ReplicationPart.NEITHER:
            return Readiness(False, "no master is elected, or no controller has answered yet", self.slave.is_level)
        if self._acting is self.slave:
            return self.slave.readiness()
        if not self.governance.is_open or not self.governance.holds_lease:
            why = f": {NO_LEASES}" if self._grants_leases is False else ""
            return Readiness(False, f"master of epoch {self.master.epoch}, without a lease{why}")
        return self.master.readiness()

    def generations(self) -> Sequence[Generation]:
        """See `Part`: the epochs of the log. After a master, only replicas that have copied its log are elected."""
        return [Generation(number, start, is_final=True) for number, start in self._history.epochs]

    def replicas(self) -> Sequence[Replica]:
        """See `Part`."""
        return self._acting.replicas()

    def metrics(self) -> Iterator[Family]:
        """See `Part`: those of the present part; the epoch, and whether there is a lease."""
        yield from self._acting.metrics()
        epoch = self.governance.role.known.master_epoch
        yield Family("ledgermq_master_epoch", "gauge", "Newest epoch of a master known.", [((), epoch)])
        holds = int(self.governance.holds_lease)
        yield Family("ledgermq_master_lease", "gauge", "1 while this master has a lease.", [((), holds)])

    def transfer(self, target: str | None) -> str:
        """See `Part` and `Governance.hand_over`."""
        return self.governance.hand_over(target)

    async def drain(self) -> None:
        """See `Part`: stop asking the controllers, then drain the present part."""
        await self.governance.close()
        await self.slave.drain()
        await self.master.drain()

    async def close(self) -> None:
        """See `Part`."""
        await self.master.close()

    # ---- the broker of the controllers

    @property
    def has_failed(self) -> bool:
        """See `GovernedBroker`."""
        return self._attached.has_failed

    @property
    def leads_in(self) -> int | None:
        """See `GovernedBroker`."""
        return self.master.epoch if self._acting is self.master else None

    @property
    def lacks_master(self) -> bool:
        """See `GovernedBroker`."""
        return self._acting is self.slave and not self.slave.receiver.address

    @property
    def is_in_doubt(self) -> bool:
        """See `GovernedBroker`."""
        return self._doubt.epoch is not None

    @property
    def is_confirmed(self) -> bool:
        """See `GovernedBroker`."""
        return self._attached.confirm_offset >= self._attached.max_offset

    def heartbeat(self) -> Mapping[str, object]:
        """See `GovernedBroker`."""
        log, group, config = self._attached, self.config.master.group, self.config
        confirmed = self.slave.heard if self._acting is self.slave else None
        # a new master may not have confirmed that much yet
        start = self._history.epochs[-1].start if self._history.epochs else 0
        if confirmed is not None and self._doubt.heard(self.slave.epoch, max(confirmed, start), log.max_offset):
            _log.info("the log has what the master of epoch %d confirmed: no longer in doubt", self.slave.epoch)
            # then the next process is in doubt, too, until it has asked the master
            with contextlib.suppress(StoreError, OSError):
                self._note_doubt()
        doubt = {} if self._doubt.epoch is None else {"doubtEpoch": self._doubt.epoch}
        room = {} if self._full is None else {"withoutRoom": "true"}
        return (
            doubt
            | room
            | {
                "brokerId": group.broker_id,
                "brokerAddr": group.client_address,
                "epoch": number_at(self._history.epochs, log.max_offset),
                "maxOffset": log.max_offset,
                "confirmOffset": log.confirm_offset,
                "heartbeatTimeoutMills": config.silence_ms,
                "electionPriority": config.priority,
                "holdsLease": "true",
                "haServerAddr": f"{config.ha_host}:{self.master.port}",
            }
        )

    def note_leases(self, *, are_granted: bool) -> None:
        """See `GovernedBroker`: a broker that cannot lead must not stay elected."""
        self._grants_leases = bool(self._grants_leases) or are_granted
        if self.slave.is_learner == self._grants_leases:
            self.slave.learn_only(not self._grants_leases)
        if self._acting is self.master and not self._grants_leases:
            self._trouble.warning("elected master of epoch %d, and %s", self.master.epoch, NO_LEASES)

    def confirm_more(self) -> None:
        """See `GovernedBroker`."""
        self._attached.settle()

    def tell_role(self) -> None:
        """See `GovernedBroker`."""
        self._attached.tell_role()

    def become_master(self, known: GroupDecision) -> None:
        """See `GovernedBroker`."""
        log = self._attached
        if self.slave.lacks_state:
            raise HaError("elected master, and the log here has begun anew without the tables that belong to it")
        if self._acting is self.master:
            self.stop_leading()
        self.slave.stop_following()
        end = log.max_offset
        self._doubt.leads()
        self._note_doubt()  # before the epoch begins, which happens once
        self._history.begin(known.master_epoch, end)
        self.governance.begins(known, end)
        self.master.begin(known.master_epoch, self._history.epochs)
        self._acting = self.master
        self.slave.is_in_sync = True  # for the time after this epoch, until the next decision is known
        _log.info("elected master of epoch %d, with a log that ends at %d", known.master_epoch, end)
        log.tell_role()
        log.local.sync(end, lambda _: log.settle())

    def _note_doubt(self) -> None:
        is_durable = self.config.master.rules.counts_durable
        self._boot.write(is_durable=is_durable, in_doubt=self._doubt.epoch is not None)

    def _open(self, epoch: int) -> None:
        if self.leads_in == epoch and not self.governance.is_open:
            self.governance.is_open = True
            self._attached.tell_role()

    def become_slave(self, known: GroupDecision, *, is_new: bool) -> None:
        """See `GovernedBroker`."""
        if self._acting is self.master:
            self.stop_leading()
        self.slave.is_in_sync = self.config.master.group.broker_id in known.ids
        self.slave.follow_elected(known.master_epoch, *self._master_of(known))
        if is_new:
            whom = "nobody" if known.master_id is None else f"broker {known.master_id} at {known.master_address}"
            _log.info("follows %s, epoch %d", whom, known.master_epoch)
            self._attached.tell_role()

    def stop_leading(self) -> None:
        """See `GovernedBroker`: the waiting batches are refused, since the next master may cut them."""
        self.governance.ends()
        self.master.end()
        self.slave.follow_elected(self.master.epoch, "", None)
        self.slave.resume()
        self._acting = self.slave
        log = self._attached
        log.tell_role()
        text = f"this broker was master of epoch {self.master.epoch}, and another one has been elected"
        log.stop_writing(Refusal(Cause.LEADER_CHANGED, f"{text} before the messages were acknowledged"))

    def _master_of(self, known: GroupDecision) -> tuple[str, LeaderHint | None, Dialect]:
        """Return the master's address for slaves, its hint for clients, and its dialect."""
        if known.master_id is None or known.master_id == self.config.master.group.broker_id:
            return "", None, OURS
        hint = LeaderHint(f"{self.config.master.group.name}/{known.master_id}", known.master_address)
        client_address, ha_address = self._routed
        if known.ha_address or not self.config.follows_rocketmq:
            return known.ha_address, hint, OURS
        return ha_address if client_address == known.master_address else "", hint, AUTO_SWITCH

    # ---- internals

    def _propose_if_needed(self) -> None:
        self.governance.propose_if_needed(self._attached.committed_offset, self._attached.confirm_offset)

    async def _watch_room(self) -> None:
        looks = 0
        while not self._attached.has_failed:
            self._full = self._why_full()
            looks = looks + 1 if self._full is not None and self.governance.is_open else 0
            if looks >= _FULL_LOOKS:
                try:
                    _log.warning(
                        "broker %s is to be master, since here is no room: %s", self.transfer(None), self._full
                    )
                except Refusal as refusal:
                    self._trouble.warning("no room for messages, and no hand-over: %s", refusal.remark)
            await asyncio.sleep(_LOOK_S)

    @property
    def _attached(self) -> CommitLog:
        assert self._log is not None, "attach() comes first"
        return self._log


def _now_s() -> float:
    """Return seconds of a monotonic clock that runs while the machine sleeps, as others' clocks do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
