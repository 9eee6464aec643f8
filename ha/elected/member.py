"""The part of a replica whose master is elected: master or slave, as the controllers decide.

    heartbeats --> lease --.
    controllers' decisions --> ReplicaRole --> Master or Slave <-- CommitLog
    Master's slaves --> in-sync set proposed --> controllers --> in-sync set agreed

A master confirms and acknowledges only while it has a lease, since a successor is elected after the end of the lease.
It accepts records once everything that was in its log at its election is confirmed.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final

from ha.config import MemberConfig, SlaveConfig
from ha.core.auto_switch import AUTO_SWITCH
from ha.core.doubt import Doubt
from ha.core.elected_copies import ElectedCopies, Proposal, id_of
from ha.core.epochs import number_at
from ha.core.lease import Lease, beat_s
from ha.core.replica_role import NOTHING, Election, GroupDecision, ReplicaRole, ReplicationPart
from ha.core.stream import OURS, Dialect
from ha.elected.controllers import Controllers, NoControllerError
from ha.elected.files import BootFile, EpochFile
from ha.errors import HaError, HaProtocolError
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

_BEAT_S: Final = 0.5
_RETRY_S: Final = 0.1
_RETRY_MAX_S: Final = 1.0
_GROWTH: Final = 1.3
_HAND_OVER_S: Final = 0.7
_HAND_OVER_LOOK_S: Final = 0.001
_LOOK_S: Final = 0.5
_FULL_LOOKS: Final = 4
"""Number of checks of a full disk after which a master hands over; before that, deleted files may make room."""

_PATIENCE_S: Final = 1.0
"""Seconds without a lease after which a master refuses records; until then records wait for the lease."""

_NO_LEASES: Final = "the controllers grant no leases, as RocketMQ's: this broker follows under them, and cannot lead"

_NOT_NOW: Final = AppendReceipt(generation=0, copies=1, durable_copies=0)

_log = logging.getLogger(__name__)


class ElectedMember:
    """`store.log.part.Part` of an elected replica. `attach` its log, then `start`.

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
        self._controllers = controllers
        self._copies = ElectedCopies(config.master.rules)
        self._history = EpochFile(config.root)
        self._boot = BootFile(config.root, boot)
        self._has_lost_power = self._boot.has_lost_power()
        if self._has_lost_power:
            # before the store opens, since a failed start closes the store cleanly
            self._boot.write(is_durable=config.master.rules.counts_durable, in_doubt=True)
        self._doubt = Doubt()
        self.master = Master(config.master, loop, machine, self._copies)
        self.slave = Slave(SlaveConfig(group=group), loop, machine, self._history)
        self.master.on_judged = self._propose_if_needed
        self.master.on_newer_epoch = self.ask_controllers
        self._acting: Master | Slave = self.slave
        self._replica_role = ReplicaRole(group.broker_id)
        self._own_hint = LeaderHint(f"{group.name}/{group.broker_id}", group.client_address)
        self._lease = Lease()
        self._grants_leases: bool | None = None  # whether the controllers say so in their answers to heartbeats
        self._is_open = False  # as master: the log of the election is confirmed, so records are accepted
        self._successor: int | None = None  # id of the successor during a hand-over
        self._why_full: Callable[[], str | None] = lambda: None
        self._full: str | None = None  # why there was no room at the last check
        self._without_room = frozenset[int]()  # ids of brokers without room, from the leading controller
        self._is_proposing = False
        self._log: CommitLog | None = None
        self._is_due = asyncio.Event()
        self._beats = {address: asyncio.Event() for address in controllers.addresses}
        self._tasks: set[asyncio.Task[None]] = set()
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
        self._replica_role.log_epoch = number_at(self._history.epochs, end)
        if self._has_lost_power:
            self._doubt = Doubt(self._history.newest)
            self._replica_role.log_epoch = self._history.newest
            _log.warning(
                "the machine has stopped, and the end of the log may be missing: no candidate until it is copied"
            )
        self._note_doubt()
        await self.master.start()
        self.slave.start()
        self._spawn(self._govern())
        self._spawn(self._watch_room())

    def watch_room(self, why_full: Callable[[], str | None]) -> None:
        """Hand over if this node is master and `why_full` returns a reason for two seconds."""
        self._why_full = why_full

    def ask_controllers(self) -> None:
        """Ask the controllers for their decision; called on a notice, which may be false."""
        self._is_due.set()

    def follow(self, ha_address: str, client_address: str) -> bool:
        """See `Slave.follow`: RocketMQ's brokers tell nameservers their address for slaves, not controllers."""
        self._routed = (client_address, ha_address)
        known = self._replica_role.known
        if self._acting is self.slave and self._replica_role.play is ReplicationPart.SLAVE:
            self.slave.follow_elected(known.master_epoch, *self._master_of(known))
        return bool(self.slave.receiver.address) or not self.config.follows_rocketmq

    # ---- the part of the log

    def state(self, refusal: Refusal | None) -> LogState:
        """See `Part`."""
        if self._acting is self.slave:
            return self.slave.state(refusal)
        if self._successor is not None:
            text = f"the master of epoch {self.master.epoch} hands over to broker {self._successor}"
            refusal = refusal or Refusal(Cause.RECOVERING, text, retry_after_ms=100)
            return LogState(LogRole.MASTER, self.master.epoch, None, refusal)
        if refusal is None and not self._is_open:
            text = f"elected master of epoch {self.master.epoch}, and not everything in the log is confirmed yet"
            if self._grants_leases is False:
                text = f"elected master of epoch {self.master.epoch}, and {_NO_LEASES}"
            refusal = Refusal(Cause.RECOVERING, text, retry_after_ms=100)
        return LogState(LogRole.MASTER, self.master.epoch, self._own_hint, refusal)

    def recovered(self, end: int, checkpoint: StoreCheckpoint, damaged: Sequence[int]) -> int:
        """See `Part`: as for a slave, dispatched records are confirmed."""
        return self.slave.recovered(end, checkpoint, damaged)

    def check(self) -> None:
        """See `Part`: a slave refuses, and so does a master without a lease."""
        self._acting.check()
        overdue_s = _now_s() - self._lease.ends_s
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
        if not self._lease.holds(_now_s()):
            return Settlement(self._attached.confirm_offset, self.master.acknowledged, _NOT_NOW)
        settlement = self.master.settle(local, flushed)
        if not self._is_open and self._successor is None and settlement.confirmed >= self._attached.max_offset:
            self._loop.call_soon(self._open, self.master.epoch)
        return settlement

    def late(self) -> Refusal:
        """See `Part`."""
        if self._acting is self.master and not self._lease.holds(_now_s()):
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
        if self._replica_role.play is ReplicationPart.NEITHER:
            return Readiness(False, "no master is elected, or no controller has answered yet", self.slave.is_level)
        if self._acting is self.slave:
            return self.slave.readiness()
        if not self._is_open or not self._lease.holds(_now_s()):
            why = f": {_NO_LEASES}" if self._grants_leases is False else ""
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
        epoch = self._replica_role.known.master_epoch
        yield Family("ledgermq_master_epoch", "gauge", "Newest epoch of a master known.", [((), epoch)])
        holds = int(self._lease.holds(_now_s()))
        yield Family("ledgermq_master_lease", "gauge", "1 while this master has a lease.", [((), holds)])

    def transfer(self, target: str | None) -> str:
        """See `Part`. A target is a broker id, or the address at which that broker serves clients.

        The target is a connected member of the in-sync set with room for messages. When everything in the log is
        confirmed, so that the target has it, this node gives up its lease and its epoch for good; the successor is then
        elected without waiting for a lease.
        """
        if self._acting is not self.master or not self._is_open:
            raise Refusal(Cause.BUSY, "this broker is not the master, or hands over already", retry_after_ms=1000)
        fit = self._copies.agreed - self._without_room
        members = [copy for copy in self._copies.slaves.values() if id_of(copy) in fit]
        able = [copy for copy in members if target in (None, str(id_of(copy)), copy.address)]
        if not able:
            known = ", ".join(f"{id_of(copy)} at {copy.address}" for copy in members) or "nobody"
            text = f"in sync, connected and with room besides this master: {known}; a hand-over needs one of them"
            raise Refusal(Cause.BUSY, text, retry_after_ms=1000)
        chosen = id_of(max(able, key=lambda copy: copy.received))
        self._successor, self._is_open = chosen, False
        self._spawn(self._hand_over(chosen))
        return str(chosen)

    async def drain(self) -> None:
        """See `Part`: stop asking the controllers, then drain the present part."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.slave.drain()
        await self.master.drain()

    async def close(self) -> None:
        """See `Part`."""
        await self.master.close()

    # ---- the controllers

    async def _govern(self) -> None:
        group = self.config.master.group
        is_registered, failures = False, 0
        while not self._attached.has_failed:
            self._is_due.clear()
            pause_s = self.config.poll_s
            try:
                if not is_registered:
                    await self._controllers.register(group.broker_id, group.client_address)
                    is_registered = True
                    for address, hurry in self._beats.items():
                        self._spawn(self._beat(address, hurry))
                self._take(await self._controllers.decided())
                if self._successor is None and (election := self._replica_role.election()) is not None:
                    pause_s = _RETRY_S
                    beat = self._heartbeat()  # so that no heartbeat of an earlier process is used
                    await asyncio.gather(*(self._controllers.beat(address, beat) for address in self._beats))
                    is_new = election is Election.NEW_PROCESS
                    epoch = await self._controllers.elect(group.broker_id, is_new_process=is_new)
                    if is_new:
                        self._replica_role.elected(epoch)
                    failures = 0
                    continue
                if self._acting is self.slave and not self.slave.receiver.address:
                    pause_s = _RETRY_S  # the master's address for slaves is not known yet
            except (NoControllerError, HaProtocolError) as error:
                self._trouble.warning("the part of this broker is not known anew: %s", error)
                pause_s = min(_RETRY_S * _GROWTH ** min(failures, 30), _RETRY_MAX_S)
                failures += 1
            else:
                failures = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._is_due.wait()

    async def _beat(self, address: str, hurry: asyncio.Event) -> None:
        while not self._attached.has_failed:
            hurry.clear()
            asked_s = _now_s()
            granted_s = self._beaten(asked_s, await self._controllers.beat(address, self._heartbeat()))
            pause_s = beat_s(granted_s) if self._acting is self.master else _BEAT_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, asked_s + pause_s - _now_s())):
                    await hurry.wait()
        self._lease.give_up()
        await self._controllers.leave()  # so that a replica with a working disk is elected

    async def _watch_room(self) -> None:
        looks = 0
        while not self._attached.has_failed:
            self._full = self._why_full()
            looks = looks + 1 if self._full is not None and self._acting is self.master and self._is_open else 0
            if looks >= _FULL_LOOKS:
                try:
                    _log.warning(
                        "broker %s is to be master, since here is no room: %s", self.transfer(None), self._full
                    )
                except Refusal as refusal:
                    self._trouble.warning("no room for messages, and no hand-over: %s", refusal.remark)
            await asyncio.sleep(_LOOK_S)

    def _heartbeat(self) -> Mapping[str, object]:
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

    def _beaten(self, asked_s: float, answer: Mapping[str, str] | None) -> float:
        """Handle the answer to a heartbeat sent at `asked_s`, None if there was none; return the lease in s, or 0.0."""
        if answer is None:
            return 0.0
        self._grants_leases = bool(self._grants_leases) or "masterEpoch" in answer
        if self.slave.is_learner == self._grants_leases:
            self.slave.learn_only(not self._grants_leases)  # since a broker that cannot lead must not stay elected
        if self._acting is self.master and not self._grants_leases:
            self._trouble.warning("elected master of epoch %d, and %s", self.master.epoch, _NO_LEASES)
        try:
            epochs = int(answer.get("masterEpoch", 0)), int(answer.get("syncStateSetEpoch", 0))
            length_ms, successor = int(answer.get("lease", 0)), int(answer.get("successor", 0))
            without_room = frozenset(map(int, filter(None, answer.get("withoutRoom", "").split(","))))
        except ValueError:
            return 0.0
        known = self._replica_role.known
        if known is not NOTHING and epochs > (known.master_epoch, known.set_epoch):
            self._is_due.set()
        granted_s = 0.0
        if length_ms > 0 and self._acting is self.master and epochs[0] == self.master.epoch:
            granted_s = length_ms / 1000
            self._without_room = without_room
            held = self._lease.holds(_now_s())
            self._lease.grant(asked_s, granted_s)
            if not held:
                self._attached.settle()
        if successor and self._is_open:
            try:
                self.transfer(str(successor))
            except Refusal as refusal:
                self._trouble.warning("no hand-over, as the controllers wish: %s", refusal.remark)
        return granted_s

    # ---- changes of the part

    def _take(self, decision: GroupDecision) -> None:
        if decision.master_epoch < self._replica_role.log_epoch:
            epochs = f"epoch {decision.master_epoch}, and the log here has epoch {self._replica_role.log_epoch}"
            self._trouble.warning(
                "the controllers answer %s: an old decision, or their state is lost; it is not followed", epochs
            )
        change = self._replica_role.take(decision, is_in_doubt=self._doubt.epoch is not None)
        if change is None:
            known = self._replica_role.known
            if self._acting is self.master and known.master_epoch == self.master.epoch:
                self._learn_set(known.ids, known.set_epoch)
            elif known.master_epoch == decision.master_epoch:
                self.slave.follow_elected(known.master_epoch, *self._master_of(known))
            return
        try:
            if change.play is ReplicationPart.MASTER:
                self._lead(change.known)
            else:
                self._follow(change.known)
        except (HaError, StoreError, OSError, ValueError) as error:
            _log.error("the change to epoch %d failed, and is tried again: %s", change.known.master_epoch, error)
            self._replica_role.play = ReplicationPart.NEITHER

    def _lead(self, known: GroupDecision) -> None:
        log = self._attached
        if self.slave.lacks_state:
            raise HaError("elected master, and the log here has begun anew without the tables that belong to it")
        if self._acting is self.master:
            self._stop_leading()
        self.slave.stop_following()
        end = log.max_offset
        self._doubt.leads()
        self._note_doubt()  # before the epoch begins, which happens once
        self._history.begin(known.master_epoch, end)
        self._lease.give_up()
        self._is_open = False
        self._copies.begin(self._replica_role.own_id, known.ids, known.set_epoch, end)
        self.master.begin(known.master_epoch, self._history.epochs)
        self._acting = self.master
        _log.info("elected master of epoch %d, with a log that ends at %d", known.master_epoch, end)
        log.tell_role()
        log.local.sync(end, lambda _: log.settle())
        for hurry in self._beats.values():
            hurry.set()

    def _note_doubt(self) -> None:
        is_durable = self.config.master.rules.counts_durable
        self._boot.write(is_durable=is_durable, in_doubt=self._doubt.epoch is not None)

    def _open(self, epoch: int) -> None:
        if self._acting is self.master and self.master.epoch == epoch and not self._is_open:
            self._is_open = True
            self._attached.tell_role()

    def _follow(self, known: GroupDecision) -> None:
        if self._acting is self.master:
            self._stop_leading()
        self.slave.follow_elected(known.master_epoch, *self._master_of(known))
        whom = "nobody" if known.master_id is None else f"broker {known.master_id} at {known.master_address}"
        _log.info("follows %s, epoch %d", whom, known.master_epoch)
        self._attached.tell_role()

    async def _hand_over(self, successor: int) -> None:
        log, epoch = self._attached, self.master.epoch
        log.tell_role()  # from now on sends are held, or refused and tried again
        began_s = self._loop.time()
        try:
            while log.confirm_offset < log.max_offset and self._loop.time() < began_s + _HAND_OVER_S:
                await asyncio.sleep(_HAND_OVER_LOOK_S)
            if self._acting is not self.master or self.master.epoch != epoch:
                return
            if log.confirm_offset < log.max_offset:
                _log.warning("no hand-over to broker %d: it does not get all in time", successor)
                return
            self._replica_role.resign()
            self._stop_leading()
            await self._controllers.hand_over(epoch, successor)
            took_ms = (self._loop.time() - began_s) * 1000
            _log.info("handed over to broker %d after epoch %d, in %.0f ms", successor, epoch, took_ms)
        except (NoControllerError, HaProtocolError, StoreError) as error:
            _log.warning("no hand-over to broker %d: %s", successor, error)
        finally:
            self._successor = None
            if self._acting is self.master:
                log.settle()  # records are accepted again once all of the log is confirmed
            self.ask_controllers()

    def _stop_leading(self) -> None:
        """Refuse the waiting batches, which the next master may cut, and become a slave."""
        self._lease.give_up()
        self.master.end()
        self.slave.follow_elected(self.master.epoch, "", None)
        self.slave.resume()
        self._acting, self._is_open = self.slave, False
        log = self._attached
        log.tell_role()
        text = f"this broker was master of epoch {self.master.epoch}, and another one has been elected"
        log.stop_writing(Refusal(Cause.LEADER_CHANGED, f"{text} before the messages were acknowledged"))

    def _master_of(self, known: GroupDecision) -> tuple[str, LeaderHint | None, Dialect]:
        """Return the master's address for slaves, its hint for clients, and its dialect."""
        if known.master_id is None or known.master_id == self._replica_role.own_id:
            return "", None, OURS
        hint = LeaderHint(f"{self.config.master.group.name}/{known.master_id}", known.master_address)
        client_address, ha_address = self._routed
        if known.ha_address or not self.config.follows_rocketmq:
            return known.ha_address, hint, OURS
        return ha_address if client_address == known.master_address else "", hint, AUTO_SWITCH

    # ---- the in-sync set

    def _propose_if_needed(self) -> None:
        if self._acting is not self.master or self._is_proposing:
            return
        log = self._attached
        proposal = self._copies.propose(log.committed_offset, log.confirm_offset, self._loop.time())
        if proposal is not None:
            self._is_proposing = True
            self._spawn(self._propose(proposal, self.master.epoch))

    async def _propose(self, proposal: Proposal, epoch: int) -> None:
        try:
            verdict = await self._controllers.propose(self._replica_role.own_id, epoch, proposal)
            if self._acting is not self.master or self.master.epoch != epoch:
                return
            if verdict.ids is not None:
                self._learn_set(verdict.ids, verdict.set_epoch)
                return
            if verdict.is_certain:
                self._copies.refused(proposal)
            else:
                self._copies.doubt(proposal)
            self._is_due.set()
            await asyncio.sleep(_RETRY_S)
        finally:
            self._is_proposing = False

    def _learn_set(self, ids: frozenset[int], set_epoch: int) -> None:
        if set_epoch > self._copies.set_epoch:
            self._copies.learn(ids, set_epoch)
            _log.info("in-sync set %s, epoch %d", sorted(ids), set_epoch)
            self._attached.settle()

    # ---- internals

    @property
    def _attached(self) -> CommitLog:
        assert self._log is not None, "attach() comes first"
        return self._log

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a task of the replica's part has failed", exc_info=error)


def _now_s() -> float:
    """Return seconds of a monotonic clock that runs while the machine sleeps, as others' clocks do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
