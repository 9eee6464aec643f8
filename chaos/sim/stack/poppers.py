"""Poppers: programs that take messages by POP from any member, and acknowledge, hide or forget them.

    Popper --take (200050)--------> a member, its leader --> queues, checkpoints --200 ms later--> log
           --ack (200051, 200151)-> known to this leader at once, to the next one when the log has it
           --hide (200053)-------->
           <-- messages that were not acknowledged in time, from the retry topic, by the leader of that time

`PopAccount` checks what they are given and when it may come again. In a few runs they take in order: then messages that
were not acknowledged come from their own queue again, and `OrderedPopAccount` checks.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, ClassVar, Final

from broker.state.pop_core import checkpoint_key
from chaos.sim.errors import SafetyViolation
from chaos.sim.stack.accounts import CommittedLog, Key, Place
from chaos.sim.stack.callers import RETRY_S, Caller
from chaos.sim.stack.clients import QUEUES
from chaos.sim.stack.nameservers import GROUP_NAME
from chaos.sim.stack.programs import TOPIC
from chaos.sim.stack.replacements import EPOCH_NS
from chaos.sim.stack.sockets import Sockets
from dledger.core.roles import RaftRole
from ledgermq.client.consumer.popping import (
    POP_CODES,
    PoppedMessage,
    batch_ack_body,
    changed_handle,
    message_ext,
    pop_command,
    read_popped,
)
from ledgermq.client.group.subscription import parse_subscription
from ledgermq.message.pop_handle import PopHandle, real_topic, retry_topic
from ledgermq.message.record import Record
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.errors import RemotingError

_GROUP: Final = "o"
_RETRY_TOPIC: Final = retry_topic(TOPIC, _GROUP, is_v2=False)
_WANTED: Final = parse_subscription(TOPIC, "*", 0)
_CHANCE: Final = 0.5
_AT_ONCE: Final = 8
_INVISIBLE_S: Final = (0.3, 1.0, 2.0)
_HELD_S: Final = (0.0, 0.0, 0.5)
_LONGEST_S: Final = 2.5
_SLOW: Final = 0.1
_FORGOTTEN: Final = 0.1


@dataclass(slots=True)
class Taken:
    """The newest delivery of a message that a program has seen.

    Attributes:
        key: key of its POP checkpoint.
        known_ms: Unix ms at which it was given, hidden or acknowledged last, by the right clock.
        known_at: end of the leader's log then; a later record of progress contains this. `sys.maxsize` if two members
            led or none, so that no record counts as containing it.
        since_us: virtual time at which the program asked for it.
        until_ms: Unix ms before which no other consumer may get it, by the clock of the node that gave it.
        ahead_ms: most ms by which that clock was ahead then.
        reign: see `PopAccount.reign`, when it was given, hidden or acknowledged last; None: not certain, or its leader
            may not have known that it was given.
        is_acked: whether it was acknowledged in time.
    """

    key: str
    known_ms: float
    known_at: int
    since_us: int
    until_ms: float
    ahead_ms: float
    reign: int | None
    is_acked: bool = False


class PopAccount:
    """The messages that the programs of one group were given.

    An acknowledged message may not come again, itself or as a copy in the retry topic (R33), nor any other before its
    time is over (R34). That holds while the same node leads and is writable, and later if the log has a later record of
    the group's progress from that node, which contains everything new. If wall clocks are wrong, a message may come
    earlier by as much as the clock of any node is ahead of what it, or that of another node, was since it was given.
    In the end an acknowledgement must have been sent for each message (it may have arrived even without an answer), or
    it has a copy, unless its log file was deleted before (R14).
    """

    is_ordered: ClassVar[bool] = False

    def __init__(self, cluster: Any, accounts: CommittedLog) -> None:
        self._cluster = cluster
        self._accounts = accounts
        self._taken: dict[Place, Taken] = {}
        self._over: set[Place] = set()
        self._logged_at: dict[int, int] = {}
        accounts.on_copy = self._revived
        accounts.on_change = self._changed

    def reign(self) -> int | None:
        """Return how often a leader has become writable; None without one, or while a deposed one may still serve."""
        return self._accounts.reign_count if self._leader() is not None else None

    def _leader(self) -> str | None:
        leading = [name for name, one in self._cluster.rafts().items() if one.member.role is RaftRole.LEADER]
        return leading[0] if len(leading) == 1 else None

    def _changed(self, change: dict[str, Any], at: int) -> None:
        pop = change.get("pop", {})
        keys = (*change.get("offsets", ()), *pop.get("checkpoints", ()), *pop.get("orders", ()))
        reign = self.reign()
        if reign is not None and any(key.split("@")[1] == _GROUP for key in keys):
            self._logged_at[reign] = at

    def _is_known(self, taken: Taken, reign: int | None) -> bool:
        """Return whether the leader of a reign must know of a delivery."""
        if taken.reign is None or reign is None:
            return False
        is_logged = self._logged_at.get(taken.reign, -1) >= taken.known_at
        return taken.reign == reign or (taken.reign < reign and is_logged)

    def gives(self, name: str, messages: Sequence[PoppedMessage], reign: int | None, since_us: int) -> None:
        """Check messages that a program was given for a request of this reign, sent at this time.

        Raises:
            SafetyViolation: it must not.
        """
        for message in messages:
            record, place = message.record, _place_of(message.handle)
            if not self._accounts.holds(place[:2], place[2], record.physical_offset, record.body):
                raise SafetyViolation("R23", f"{name} was given a message at {place}, which is not committed there")
        reign = reign if reign == self.reign() else None
        handles = [message.handle for message in messages]
        self._judge(name, handles, reign)
        for handle in handles:
            until_ms, ahead_ms = handle.pop_ms + handle.invisible_ms, self._ahead_ms(handle, since_us)
            known_ms = self.now_ms if self._are_clocks_wrong else handle.pop_ms
            taken = Taken(_key(handle), known_ms, self._log_end, since_us, until_ms, ahead_ms, reign)
            self._taken[_place_of(handle)] = taken

    def _judge(self, name: str, handles: Sequence[PopHandle], reign: int | None) -> None:
        for place in map(_place_of, handles):
            before = self._taken.get(place)
            if before is not None and self._is_known(before, reign):
                raise SafetyViolation("R33" if before.is_acked else "R34", f"{name} was given {place} again: {before}")

    @property
    def now_ms(self) -> float:
        """The present Unix ms, by the right clock."""
        return float(EPOCH_NS / 1e6 + self._cluster.clock.now_us / 1000)

    @property
    def _log_end(self) -> int:
        leader = self._leader()
        return sys.maxsize if leader is None else int(self._cluster.processes[leader].end_of_log)

    @property
    def _are_clocks_wrong(self) -> bool:
        return bool(self._cluster.ahead_since_us(0) != (0, 0))

    @property
    def leader_ahead_ms(self) -> int:
        """How far the leader's clock is ahead. Programs send its time: a broker refuses requests that look old."""
        leader = self._leader()
        return 0 if leader is None else int(self._cluster.wall_ahead_us(leader)) // 1000

    def _ends_ms(self, taken: Taken) -> float:
        """Return the earliest time by the right clock at which another consumer may get the message."""
        return taken.until_ms - taken.ahead_ms - float(self._cluster.rise_since_us(taken.since_us)) / 1000

    def _ahead_ms(self, handle: PopHandle, since_us: int) -> float:
        """Return the most by which the clock of the node was ahead that gave this handle for a request of that time."""
        most_us = self._cluster.ahead_since_us(since_us)[1]
        return min(float(most_us) / 1000, handle.pop_ms - (EPOCH_NS // 1_000_000 + since_us // 1000))

    def ends_soon(self, handle: PopHandle, invisible_ms: int) -> None:
        """Note a request for another invisible time, which the leader may know from now on."""
        taken = self._of(handle)
        if taken is not None:
            least_us, _ = self._cluster.ahead_since_us(self._cluster.clock.now_us)
            taken.until_ms = min(taken.until_ms, int(self.now_ms + least_us / 1000) + invisible_ms)  # brokers count ms

    def hides(self, before: PopHandle, after: PopHandle, reign: int | None, since_us: int) -> None:
        """Note that the other invisible time, requested at `since_us` in this reign, was granted."""
        taken = self._of(before)
        if taken is not None and self.now_ms < self._ends_ms(taken):
            taken.key, taken.until_ms, taken.since_us = _key(after), after.pop_ms + after.invisible_ms, since_us
            taken.ahead_ms = self._ahead_ms(after, since_us)
            self._answered(taken, reign)

    def _answered(self, taken: Taken, reign: int | None) -> None:
        """Note that a request about a delivery, made in this reign, was answered with success now."""
        is_known = reign == self.reign() and self._is_known(taken, reign)
        taken.reign = reign if is_known else None
        taken.known_ms, taken.known_at = self.now_ms, self._log_end

    def may_ack(self, handle: PopHandle) -> None:
        """Note that an acknowledgement is about to be sent: the message is not owed any more."""
        self._over.add(_place_of(handle))

    def acks(self, handle: PopHandle, reign: int | None) -> None:
        """Note that an acknowledgement, sent in this reign, was answered with success."""
        taken = self._of(handle)
        if taken is not None and self.now_ms < self._ends_ms(taken):
            self._answered(taken, reign)
            taken.is_acked = True

    def _of(self, handle: PopHandle) -> Taken | None:
        taken = self._taken.get(_place_of(handle))
        return taken if taken is not None and taken.key == _key(handle) else None

    def _revived(self, copy: Record, origin: Record) -> None:
        """Check a copy that was committed in the retry topic."""
        if copy.topic != _RETRY_TOPIC:
            return
        place = origin.topic, origin.queue_id, origin.queue_offset
        taken = self._taken.get(place)
        self._over.add(place)
        stored_ms = self.now_ms if self._are_clocks_wrong else copy.store_timestamp
        is_early = taken is not None and (taken.is_acked or stored_ms < self._ends_ms(taken))
        if taken is not None and is_early and self._is_known(taken, self.reign()):
            code = "R33" if taken.is_acked else "R34"
            raise SafetyViolation(code, f"{place} is delivered again at {copy.store_timestamp}: {taken}")

    def _is_over(self, key: Key, at: int) -> bool:
        return (*key, at) in self._over

    def owed(self) -> Callable[[], str]:
        """Return a function that names a message committed by now that is not acknowledged; empty if there is none."""
        keys = [*((TOPIC, queue_id) for queue_id in range(QUEUES)), (_RETRY_TOPIC, 0)]
        ends = {key: len(self._accounts.present_life(key).messages) for key in keys}
        reached = dict.fromkeys(keys, 0)

        def open_one() -> str:
            for key, end in ends.items():
                at = reached[key] = self._accounts.skip(key, reached[key], partial(self._is_over, key))
                if at < end:
                    return f"group {_GROUP} has not acknowledged {key[0]}/{key[1]}/{at}"
            return ""

        return open_one


class OrderedPopAccount(PopAccount):
    """The same for programs that take messages in order.

    A message may be given when an acknowledgement was sent for each before it in its queue, or together with these
    (R36). While a message of a queue is neither acknowledged nor visible again, the queue may give nothing (R34).
    Messages that were acknowledged behind an open one may come again, so R33 is not about these.
    """

    is_ordered = True

    def acks(self, handle: PopHandle, reign: int | None) -> None:
        place, leader = _place_of(handle), self._leader()
        if leader is None:
            return
        # the leader skips what its own log has deleted, which may be less than another member's
        deleted_to = self._cluster.processes[leader].begin_of_log
        if self._accounts.skip(place[:2], 0, partial(self._is_acked, place[:2]), deleted_to) >= place[2]:
            super().acks(handle, reign)

    def _is_acked(self, key: Key, at: int) -> bool:
        taken = self._taken.get((*key, at))
        return taken is not None and taken.is_acked

    def _judge(self, name: str, handles: Sequence[PopHandle], reign: int | None) -> None:
        given = set(map(_place_of, handles))

        def may_be_passed(key: Key, at: int) -> bool:
            return self._is_over(key, at) or (*key, at) in given

        firsts: dict[Key, PopHandle] = {}
        for handle in handles:
            firsts.setdefault(_place_of(handle)[:2], handle)
        for key, first in firsts.items():
            reached = self._accounts.skip(key, 0, partial(may_be_passed, key))
            if any(place[:2] == key and place[2] > reached for place in given):
                raise SafetyViolation("R36", f"{name} was given {given} before {key}/{reached} was acknowledged")
            for place, before in self._taken.items():
                if place[:2] != key or before.known_ms >= first.pop_ms or not self._is_known(before, reign):
                    continue
                if before.is_acked and place[2] == first.offset:
                    raise SafetyViolation("R33", f"{name} was given {place} again: {before}")
                if place not in self._over and first.pop_ms < before.until_ms:
                    raise SafetyViolation("R34", f"{name} was given {key}/{first.offset} beside {place}: {before}")


class Popper(Caller):
    """One process of a program."""

    def __init__(
        self, cluster: Any, accounts: CommittedLog, sockets: Sockets, name: str, dice: Random, account: PopAccount
    ) -> None:
        super().__init__(cluster, accounts, sockets, name, dice)
        self._account = account
        self._is_thorough = False
        self._attempts = 0

    def ask_each(self) -> dict[str, None]:
        """Take messages of each member from now on, and acknowledge all; return the members without an answer yet."""

        async def until_served(number: int) -> None:
            while not await self._is_served(number):
                await asyncio.sleep(RETRY_S)
            self._begin(self._go_on_with(number))

        self._is_thorough = True
        return self._wait_for_each("takes from each", until_served)

    async def _go_on_with(self, number: int) -> None:
        while True:
            await self._is_served(number)
            await asyncio.sleep(RETRY_S)

    async def _is_served(self, number: int) -> bool:
        with contextlib.suppress(RemotingError):
            return await self._take(number) in POP_CODES
        return False

    def _ask(self) -> None:
        self._begin(self._send(topic=TOPIC) if self._dice.random() < _CHANCE else self._take())

    async def _take(self, number: int | None = None) -> int:
        if TOPIC not in self._accounts.topics:
            await self._make_topic(TOPIC)
        reign, since_us = self._account.reign(), self._cluster.clock.now_us
        invisible_s, held_s = self._dice.choice(_INVISIBLE_S), self._dice.choice(_HELD_S)
        if self._is_thorough:
            invisible_s = min(_INVISIBLE_S)  # a lost acknowledgement of a queue in order holds up the others so long
        self._attempts += 1
        command = pop_command(
            _GROUP, _WANTED, 1 + self._pick(_AT_ONCE), invisible_s, held_s,
            from_end=False, is_ordered=self._account.is_ordered, attempt_id=f"{self.name} {self._attempts}",
        )  # fmt: skip
        command.ext["bornTime"] = str(int(command.ext["bornTime"]) + self._account.leader_ahead_ms)
        answer, way = await self._request(command.code, command.ext, number=number)
        self._cluster.mark(f"POP answered {way}: {answer.code}")
        if messages := read_popped("", "", _WANTED, answer) if answer.code in POP_CODES else []:
            self._account.gives(self.name, messages, reign, since_us)
            self._begin(self._handle(messages))
        return answer.code

    async def _handle(self, messages: Sequence[PoppedMessage]) -> None:
        dice = self._dice
        if dice.random() < _FORGOTTEN and not self._is_thorough:
            self._cluster.mark("messages of POP forgotten")
            return
        slow = 0.0 if self._is_thorough and self._account.is_ordered else _SLOW  # a queue in order waits for each
        await asyncio.sleep(_LONGEST_S * dice.random() * (1 if dice.random() < slow else 0.01))
        if dice.random() < slow:
            for message in messages:
                await self._hide(message)
            await asyncio.sleep(_LONGEST_S * dice.random() * _SLOW)
        if self._account.is_ordered and dice.random() < _FORGOTTEN and not self._is_thorough:
            self._cluster.mark("first message of POP forgotten")
            messages = messages[1:]
        if dice.random() < 0.5:
            body = batch_ack_body(_GROUP, GROUP_NAME, messages)
            await self._ack(messages, RequestCode.BATCH_ACK_MESSAGE, {}, body)
            return
        for message in messages:
            await self._ack([message], RequestCode.ACK_MESSAGE, message_ext(_GROUP, message))

    async def _ack(self, messages: Sequence[PoppedMessage], code: int, ext: dict[str, Any], body: bytes = b"") -> None:
        reign = self._account.reign()
        for message in messages:
            self._account.may_ack(message.handle)
        answer, way = await self._request(code, ext, body)
        self._cluster.mark(f"acknowledgement of POP answered {way}: {answer.code}")
        if answer.code == ResponseCode.SUCCESS:
            for message in messages:
                self._account.acks(message.handle, reign)

    async def _hide(self, message: PoppedMessage) -> None:
        before, invisible_ms = message.handle, int(1000 * self._dice.choice(_INVISIBLE_S))
        reign, since_us = self._account.reign(), self._cluster.clock.now_us
        self._account.ends_soon(before, invisible_ms)
        ext = {**message_ext(_GROUP, message), "invisibleTime": invisible_ms}
        answer, _ = await self._request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)
        if answer.code == ResponseCode.SUCCESS and answer.ext:  # in order, of one that is acknowledged: nothing
            message.handle = changed_handle("", message, answer.ext)
            self._account.hides(before, message.handle, reign, since_us)


def _place_of(handle: PopHandle) -> Place:
    return real_topic(TOPIC, _GROUP, handle.retry), handle.queue_id, handle.offset


def _key(handle: PopHandle) -> str:
    topic, queue_id, _ = _place_of(handle)
    return checkpoint_key(topic, _GROUP, queue_id, handle.start, handle.pop_ms)
