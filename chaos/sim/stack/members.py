"""Members of a consumer group: users' programs with the shipping consumer, which share the queues of one topic.

    Consumer --Routes--> a nameserver
             --heartbeats, members, locks, pulls, offsets, what is sent back--> the leader

Members join, leave, are paused and are killed while faults meet the brokers. In half of the runs they handle each queue
in order, under its lock; some handlers fail. `GroupAccount` has the group's invariants.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from random import Random
from typing import Any, Final

from broker.state.names import retry_topic
from chaos.sim.errors import SafetyViolation
from chaos.sim.stack.accounts import CommittedLog
from chaos.sim.stack.clients import QUEUES
from chaos.sim.stack.diskless import Diskless
from chaos.sim.stack.programs import TOPIC
from chaos.sim.stack.sockets import Sockets
from ledgermq.client.consumer.consumer import Consumer
from ledgermq.client.consumer.handling import Retry
from ledgermq.client.core.message import Message
from ledgermq.client.errors import LedgerMQError
from ledgermq.remoting.route import MessageQueue

FAULTS: Final = ("member_killed", "member_leaves", "member_pause", "member_joins")
GROUP: Final = "m"
_FAILING: Final = 0.08
_SLOW: Final = 0.05
_LONGEST_S: Final = 2.0
_IN_PLACE_S: Final = 0.05
_TRIED_AGAIN_S: Final = 1.0
_COMMIT_S: Final = 0.4
_ATTEMPT_S: Final = 1.0


class GroupAccount:
    """The messages that members were given, and the outcomes of their handlers.

    Every committed message of the topic must be handled in the end, unless its log file was deleted before (R14), and
    no offset may be committed beyond a message that was not given (R29). In a group that handles queues in order, a
    message may be given only when all before it in its queue are handled (R30), and not while another member handles a
    message of that queue (R31), unless leadership changed since one of the two took the queue over: a lock may be lost
    with a leader.
    """

    def __init__(self, cluster: Any, accounts: CommittedLog, *, is_ordered: bool) -> None:
        self._cluster = cluster
        self._accounts = accounts
        self.is_ordered = is_ordered
        self._ended: set[tuple[int, int]] = set()
        self._ended_to = [0] * QUEUES
        self._handled: set[bytes] = set()
        self._handled_to = [0] * QUEUES
        self._busy: dict[int, dict[str, None]] = {queue_id: {} for queue_id in range(QUEUES)}
        self._taken_over: dict[tuple[str, int], int] = {}

    def takes_over(self, member: str, queues: Iterable[MessageQueue]) -> None:
        """Note that a member takes over these queues, once it has their locks."""
        for queue in queues:
            self._taken_over[member, queue.queue_id] = len(self._cluster.observer.leaders)

    def begins(self, member: str, message: Message) -> None:
        """Check a message that a handler is given.

        Raises:
            SafetyViolation: it must not be given now.
        """
        queue, record = message.queue, message.record
        key, place = (queue.topic, queue.queue_id), f"{queue.topic}/{queue.queue_id}/{record.queue_offset}"
        if not self._accounts.holds(key, record.queue_offset, record.physical_offset, record.body):
            raise SafetyViolation("R23", f"{member} was given a message at {place}, which is not committed there")
        if queue.topic != TOPIC or not self.is_ordered:
            return
        reached = self._advance(queue.queue_id, self._ended_to, self._has_ended)
        if record.queue_offset > reached:
            raise SafetyViolation("R30", f"{member} was given {place} before {reached} was handled")
        for other in self._busy[queue.queue_id]:
            if other == member:
                raise SafetyViolation("R30", f"{member} was given {place} while it handles another of its queue")
            taken_over = [self._taken_over.get((one, queue.queue_id)) for one in (member, other)]
            if taken_over == [len(self._cluster.observer.leaders)] * 2:
                raise SafetyViolation("R31", f"{member} was given {place} while {other} handles one of its queue")
            self._cluster.mark("queue of two members after a change of leader")
        self._busy[queue.queue_id][member] = None

    def ends(self, member: str, message: Message, *, is_handled: bool) -> None:
        """Note that a handler has ended: successfully, or it wants the message again."""
        queue_id, body = message.queue.queue_id, message.body
        if is_handled:
            self._handled.add(body)
        elif not self.is_ordered:
            self._accounts.allow(retry_topic(GROUP), body, None)
        if message.queue.topic == TOPIC:
            if is_handled or not self.is_ordered:
                self._ended.add((queue_id, message.queue_offset))
            self._busy[queue_id].pop(member, None)

    def ended(self, member: str) -> None:
        """Note that a member's process has ended."""
        for busy in self._busy.values():
            busy.pop(member, None)

    def check_offsets(self) -> None:
        """Check the committed offsets against what was given. Raises `SafetyViolation`."""
        for queue_id, offset in self._accounts.offsets.get(f"{TOPIC}@{GROUP}", {}).items():
            reached = self._advance(int(queue_id), self._ended_to, self._has_ended)
            if offset > reached:
                raise SafetyViolation("R29", f"offset {offset} of queue {queue_id} is committed, {reached} not given")

    def owed(self) -> Callable[[], str]:
        """Return a function that names a message committed by now that is not handled yet; empty when there is none."""
        ends = [len(self._messages(queue_id)) for queue_id in range(QUEUES)]

        def open_one() -> str:
            for queue_id, end in enumerate(ends):
                reached = self._advance(queue_id, self._handled_to, self._is_handled)
                if reached < end:
                    return f"group {GROUP} has not handled {TOPIC}/{queue_id}/{reached}"
            return ""

        return open_one

    def _messages(self, queue_id: int) -> list[Any]:
        return self._accounts.present_life((TOPIC, queue_id)).messages

    def _has_ended(self, queue_id: int, offset: int) -> bool:
        return (queue_id, offset) in self._ended

    def _is_handled(self, queue_id: int, offset: int) -> bool:
        return self._messages(queue_id)[offset].body in self._handled

    def _advance(self, queue_id: int, reached: list[int], is_over: Callable[[int, int], bool]) -> int:
        """Move to the first message of a queue that is neither over nor deleted; return its offset."""
        reached[queue_id] = self._accounts.skip((TOPIC, queue_id), reached[queue_id], partial(is_over, queue_id))
        return reached[queue_id]


class SimMember(Diskless):
    """One process of a member."""

    def __init__(
        self, cluster: Any, sockets: Sockets, account: GroupAccount, namesrv: Iterable[str], name: str, dice: Random
    ) -> None:
        super().__init__(cluster, sockets, name)
        self._account = account
        self._dice = dice
        with self.loop.running():
            self._consumer = Consumer(
                namesrv,
                GROUP,
                TOPIC,
                auto_commit_s=_COMMIT_S,
                attempt_timeout_s=_ATTEMPT_S,
                on_assigned=lambda queues: account.takes_over(name, queues),
            )
        self.loop.run_now(self._consumer.start())
        self._begin("reads", self._read())

    def _begin(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        def begin() -> None:
            self.loop.create_task(work)

        self.has(what, begin)

    async def _read(self) -> None:
        try:
            await self._consumer.run(self._handle, concurrency=4, order="queue" if self._account.is_ordered else "none")
        except LedgerMQError as error:
            self.loop.errors.append(SafetyViolation("R29", f"{self.name} cannot read: {error!r}"))

    async def _handle(self, message: Message) -> None:
        try:
            self._account.begins(self.name, message)
        except SafetyViolation as violation:
            self.loop.errors.append(violation)
            return
        await asyncio.sleep(_LONGEST_S * self._dice.random() * (1 if self._dice.random() < _SLOW else 0.01))
        is_handled = self._dice.random() >= _FAILING
        self._account.ends(self.name, message, is_handled=is_handled)
        if not is_handled:
            self._cluster.mark("handler failed")
            raise Retry(_IN_PLACE_S if self._account.is_ordered else _TRIED_AGAIN_S)
        self._cluster.mark(f"message handled after {min(message.reconsume_times, 2)} tries")

    def leave(self, then: Callable[[], None]) -> None:
        """Close the consumer, then call `then`."""

        async def close() -> None:
            await self._consumer.close()
            then()

        self._begin("leaves", close())


class SimMembers:
    """The members of a run and their faults, with a random stream of their own."""

    def __init__(
        self, cluster: Any, accounts: CommittedLog, sockets: Sockets, namesrv: Iterable[str], seed: int, count: int
    ) -> None:
        self._cluster = cluster
        self._sockets = sockets
        self._namesrv = namesrv
        self._chance = Random(f"members {seed}")
        self.account = GroupAccount(cluster, accounts, is_ordered=self._chance.random() < 0.5)
        self._most = count
        self._count = 0
        self._alive: dict[str, SimMember] = {}
        self._is_over = False
        for number in range(count):
            cluster.clock.call_in(1_000 * (1 + number), self._join)
        self._strike_later()

    def _join(self) -> None:
        name = f"m{self._count}"
        self._count += 1
        self._sockets.unlucky[name] = Random(self._chance.random())
        dice = Random(self._chance.random())
        self._alive[name] = SimMember(self._cluster, self._sockets, self.account, self._namesrv, name, dice)

    def kill(self, name: str) -> None:
        """Kill a member."""
        member = self._alive.pop(name, None)
        if member is not None:
            self.account.ended(name)
            member.kill()

    def heal(self) -> None:
        """Inject no more faults; at least one member must read on."""
        self._is_over = True
        for member in self._alive.values():
            member.resume()
        self._join()

    def end(self) -> None:
        """End all members."""
        for name in list(self._alive):
            self.kill(name)

    def _strike_later(self) -> None:
        self._cluster.clock.call_in(int(1e6 * self._chance.uniform(0.2, 2.5)), self._strike)

    def _strike(self) -> None:
        if self._is_over:
            return
        self.account.check_offsets()
        kinds = FAULTS if self._count and len(self._alive) <= self._most else FAULTS[:-1]
        kind = self._chance.choice(kinds) if self._alive else FAULTS[-1]
        self._cluster.mark(f"fault {kind}")
        if kind == FAULTS[-1]:
            self._join()
        else:
            self._strike_one(kind, self._alive[self._chance.choice(list(self._alive))])
        self._strike_later()

    def _strike_one(self, kind: str, member: SimMember) -> None:
        clock, later_us = self._cluster.clock, int(1e6 * self._chance.uniform(0.02, 3.0))
        if kind == FAULTS[0]:
            self.kill(member.name)
        elif kind == FAULTS[1]:
            member.leave(lambda: clock.call_in(1, lambda: self.kill(member.name)))
        else:
            member.pause()
            clock.call_in(later_us, member.resume)
