"""What a broker asks the controllers, and what it does with their answers.

    answers to heartbeats --> lease; a newer epoch --> ask for the decision now
    decisions --> ReplicaRole --> become master, become slave, or ask for an election
    slaves --> ElectedCopies --> set proposed --> decided, refused, or in doubt
    hand-over --> everything confirmed --> resign --> ask for the successor's election

There are no logs, files and sockets here; `GovernedBroker` has them: `ha.elected.member`, or a broker in simulation.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple, Protocol

from ha.core.elected_copies import ElectedCopies, Proposal, id_of
from ha.core.lease import Lease, beat_s
from ha.core.replica_role import NOTHING, Election, GroupDecision, ReplicaRole, ReplicationPart
from ha.elected.controllers import Controllers, NoControllerError
from ha.errors import HaError, HaProtocolError
from ledgermq.remoting.rate_limited_log import RateLimitedLog
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import StoreError

_RETRY_S: Final = 0.1
_RETRY_MAX_S: Final = 1.0
_GROWTH: Final = 1.3
_HAND_OVER_S: Final = 0.7
_HAND_OVER_LOOK_S: Final = 0.001

NO_LEASES: Final = "the controllers grant no leases, as RocketMQ's: this broker follows under them, and cannot lead"

_log = logging.getLogger(__name__)


class GovernedBroker(Protocol):
    """The log and the parts of a broker, as far as its dealings with the controllers need them."""

    @property
    def has_failed(self) -> bool:
        """Whether it can neither lead nor follow any more."""

    @property
    def leads_in(self) -> int | None:
        """The epoch in which it is master now; None if it is not."""

    @property
    def lacks_master(self) -> bool:
        """Whether it is a slave, and the address of its master is not known yet."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether the end of its log may be missing."""

    @property
    def is_confirmed(self) -> bool:
        """Whether everything in its log is confirmed."""

    def heartbeat(self) -> Mapping[str, object]:
        """Return the fields of a heartbeat."""

    def become_master(self, known: GroupDecision) -> None:
        """Become master of a new epoch, and call `Governance.begins`. May raise `HaError`, `StoreError`, `OSError`."""

    def become_slave(self, known: GroupDecision, *, is_new: bool) -> None:
        """Become slave of `known`, or have its master's new address without `is_new`. May raise as `become_master`."""

    def stop_leading(self) -> None:
        """Become a slave without a master, and call `Governance.ends`."""

    def confirm_more(self) -> None:
        """Confirm and acknowledge what is possible now."""

    def tell_role(self) -> None:
        """Tell clients and nameservers whether records are taken here."""

    def note_leases(self, *, are_granted: bool) -> None:
        """Note whether the controllers grant leases: RocketMQ's do not."""


class GovernedMember(NamedTuple):
    """Who a broker is, and how often it asks.

    Attributes:
        broker_id: given by the controllers.
        address: where it serves clients.
        poll_s: time between two questions for the decision.
        beat_s: time between a slave's heartbeats.
    """

    broker_id: int
    address: str
    poll_s: float
    beat_s: float = 0.5


class Governance:
    """The dealings of one process with the controllers, from `start` to `close`.

    Args:
        copies: the copies of this broker's log while it is master.
        now_s: the monotonic clock of leases.

    Attributes:
        controllers, copies: the arguments.
        role: what this broker is, by the decisions that it has heard.
        lease: of this broker as master.
        is_open: as master: the log of the election is confirmed, so records are accepted. The broker sets it.
        successor: id of the successor during a hand-over.
        without_room: ids of brokers without room for messages, from the leading controller.
    """

    def __init__(
        self,
        member: GovernedMember,
        broker: GovernedBroker,
        controllers: Controllers,
        copies: ElectedCopies,
        loop: asyncio.AbstractEventLoop,
        now_s: Callable[[], float],
    ) -> None:
        self._member = member
        self._broker = broker
        self.controllers = controllers
        self.copies = copies
        self._loop = loop
        self._now_s = now_s
        self.role = ReplicaRole(member.broker_id)
        self.lease = Lease()
        self.is_open = False
        self.successor: int | None = None
        self.without_room = frozenset[int]()
        self._is_proposing = False
        self._is_due = asyncio.Event()
        self._beats = {address: asyncio.Event() for address in controllers.addresses}
        self._tasks: set[asyncio.Task[None]] = set()
        self._trouble = RateLimitedLog(_log)

    def start(self) -> None:
        """Begin to ask the controllers."""
        self.spawn(self._govern())

    async def close(self) -> None:
        """Stop asking the controllers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work until `close`; an error of it is logged."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def ask_soon(self) -> None:
        """Ask the controllers for their decision; called on a notice, which may be false."""
        self._is_due.set()

    @property
    def holds_lease(self) -> bool:
        """Whether a master may confirm and acknowledge now."""
        return self.lease.holds(self._now_s())

    # ---- what the broker reports

    def begins(self, known: GroupDecision, end: int) -> None:
        """Note that this broker begins as master, with a log that ends at `end`: without a lease, taking no records."""
        self.lease.give_up()
        self.is_open = False
        self.copies.begin(self._member.broker_id, known.ids, known.set_epoch, end)

    def ends(self) -> None:
        """Note that this broker is not master any more."""
        self.lease.give_up()
        self.is_open = False

    # ---- questions and heartbeats

    async def _govern(self) -> None:
        is_registered, failures = False, 0
        while not self._broker.has_failed:
            self._is_due.clear()
            pause_s = self._member.poll_s
            try:
                if not is_registered:
                    await self.controllers.register(self._member.broker_id, self._member.address)
                    is_registered = True
                    for address, hurry in self._beats.items():
                        self.spawn(self._beat(address, hurry))
                self._take(await self.controllers.decided())
                if self.successor is None and (election := self.role.election()) is not None:
                    await self._ask_for_election(is_new=election is Election.NEW_PROCESS)
                    failures = 0
                    continue
                if self._broker.lacks_master:
                    pause_s = _RETRY_S
            except (NoControllerError, HaProtocolError) as error:
                self._trouble.warning("the part of this broker is not known anew: %s", error)
                pause_s = min(_RETRY_S * _GROWTH ** min(failures, 30), _RETRY_MAX_S)
                failures += 1
            else:
                failures = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._is_due.wait()

    async def _ask_for_election(self, *, is_new: bool) -> None:
        beat = self._broker.heartbeat()  # so that no heartbeat of an earlier process is used
        await asyncio.gather(*(self.controllers.beat(address, beat) for address in self._beats))
        epoch = await self.controllers.elect(self._member.broker_id, is_new_process=is_new)
        if is_new:
            self.role.elected(epoch)

    async def _beat(self, address: str, hurry: asyncio.Event) -> None:
        while not self._broker.has_failed:
            hurry.clear()
            asked_s = self._now_s()
            granted_s = self._beaten(asked_s, await self.controllers.beat(address, self._broker.heartbeat()))
            pause_s = self._member.beat_s if self._broker.leads_in is None else beat_s(granted_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, asked_s + pause_s - self._now_s())):
                    await hurry.wait()
        self.lease.give_up()
        await self.controllers.leave()  # so that a replica with a working disk is elected

    def _beaten(self, asked_s: float, answer: Mapping[str, str] | None) -> float:
        """Handle the answer to a heartbeat sent at `asked_s`, None if there was none; return the lease in s, or 0.0."""
        if answer is None:
            return 0.0
        self._broker.note_leases(are_granted="masterEpoch" in answer)
        try:
            epochs = int(answer.get("masterEpoch", 0)), int(answer.get("syncStateSetEpoch", 0))
            length_ms, successor = int(answer.get("lease", 0)), int(answer.get("successor", 0))
            without_room = frozenset(map(int, filter(None, answer.get("withoutRoom", "").split(","))))
        except ValueError:
            return 0.0
        known = self.role.known
        if known is not NOTHING and epochs > (known.master_epoch, known.set_epoch):
            self._is_due.set()
        granted_s = 0.0
        if length_ms > 0 and epochs[0] == self._broker.leads_in:
            granted_s = length_ms / 1000
            self.without_room = without_room
            held = self.holds_lease
            self.lease.grant(asked_s, granted_s)
            if not held:
                self._broker.confirm_more()
        if successor and self.is_open:
            try:
                self.hand_over(str(successor))
            except Refusal as refusal:
                self._trouble.warning("no hand-over, as the controllers wish: %s", refusal.remark)
        return granted_s

    # ---- changes of the part

    def _take(self, decision: GroupDecision) -> None:
        role, broker = self.role, self._broker
        if decision.master_epoch < role.log_epoch:
            epochs = f"epoch {decision.master_epoch}, and the log here has epoch {role.log_epoch}"
            self._trouble.warning(
                "the controllers answer %s: an old decision, or their state is lost; it is not followed", epochs
            )
        change = role.take(decision, is_in_doubt=broker.is_in_doubt)
        known = role.known
        if change is None:
            if broker.leads_in == known.master_epoch:
                self._learn_set(known.ids, known.set_epoch)
            elif known.master_epoch == decision.master_epoch:
                broker.become_slave(known, is_new=False)
            return
        try:
            if change.play is ReplicationPart.MASTER:
                broker.become_master(known)
                for hurry in self._beats.values():
                    hurry.set()
            else:
                broker.become_slave(known, is_new=True)
        except (HaError, StoreError, OSError, ValueError) as error:
            _log.error("the change to epoch %d failed, and is tried again: %s", known.master_epoch, error)
            role.play = ReplicationPart.NEITHER

    def hand_over(self, target: str | None) -> str:
        """Begin to hand over to a connected member of the in-sync set with room for messages; return its broker id.

        When everything in the log is confirmed, so that the target has it, this broker gives up its lease and its
        epoch for good; the successor is then elected without waiting for a lease.

        Args:
            target: a broker id, or the address at which that broker serves clients; None: whoever has most of the log.

        Raises:
            Refusal: there is no such member, or this broker is not the master, or hands over already.
        """
        if not self.is_open:
            raise Refusal(Cause.BUSY, "this broker is not the master, or hands over already", retry_after_ms=1000)
        fit = self.copies.agreed - self.without_room
        members = [copy for copy in self.copies.slaves.values() if id_of(copy) in fit]
        able = [copy for copy in members if target in (None, str(id_of(copy)), copy.address)]
        if not able:
            known = ", ".join(f"{id_of(copy)} at {copy.address}" for copy in members) or "nobody"
            text = f"in sync, connected and with room besides this master: {known}; a hand-over needs one of them"
            raise Refusal(Cause.BUSY, text, retry_after_ms=1000)
        chosen = id_of(max(able, key=lambda copy: copy.received))
        self.successor, self.is_open = chosen, False
        self.spawn(self._hand_over(chosen))
        return str(chosen)

    async def _hand_over(self, successor: int) -> None:
        broker, epoch = self._broker, self._broker.leads_in
        broker.tell_role()  # from now on sends are held, or refused and tried again
        began_s = self._loop.time()
        try:
            while not broker.is_confirmed and self._loop.time() < began_s + _HAND_OVER_S:
                await asyncio.sleep(_HAND_OVER_LOOK_S)
            if epoch is None or broker.leads_in != epoch:
                return
            if not broker.is_confirmed:
                _log.warning("no hand-over to broker %d: it does not get all in time", successor)
                return
            self.role.resign()
            broker.stop_leading()
            await self.controllers.hand_over(epoch, successor)
            took_ms = (self._loop.time() - began_s) * 1000
            _log.info("handed over to broker %d after epoch %d, in %.0f ms", successor, epoch, took_ms)
        except (NoControllerError, HaProtocolError, StoreError) as error:
            _log.warning("no hand-over to broker %d: %s", successor, error)
        finally:
            self.successor = None
            if broker.leads_in is not None:
                broker.confirm_more()  # records are accepted again once all of the log is confirmed
            self._is_due.set()

    # ---- the in-sync set

    def propose_if_needed(self, end: int, confirmed: int) -> None:
        """As master, propose the set that the slaves' reports call for.

        Args:
            end: of the log.
            confirmed: how much of it is confirmed.
        """
        epoch = self._broker.leads_in
        if epoch is None or self._is_proposing:
            return
        proposal = self.copies.propose(end, confirmed, self._loop.time())
        if proposal is not None:
            self._is_proposing = True
            self.spawn(self._propose(proposal, epoch))

    async def _propose(self, proposal: Proposal, epoch: int) -> None:
        try:
            verdict = await self.controllers.propose(self._member.broker_id, epoch, proposal)
            if self._broker.leads_in != epoch:
                return
            if verdict.ids is not None:
                self._learn_set(verdict.ids, verdict.set_epoch)
                return
            if verdict.is_certain:
                self.copies.refused(proposal)
            else:
                self.copies.doubt(proposal)
            self._is_due.set()
            await asyncio.sleep(_RETRY_S)
        finally:
            self._is_proposing = False

    def _learn_set(self, ids: frozenset[int], set_epoch: int) -> None:
        if set_epoch > self.copies.set_epoch:
            self.copies.learn(ids, set_epoch)
            _log.info("in-sync set %s, epoch %d", sorted(ids), set_epoch)
            self._broker.confirm_more()

    # ---- internals

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a task of the replica's part has failed", exc_info=error)
