"""A slave that stands in for its absent master (RIP-32): when it does, and what master and slave say to each other.

    every second: do all nameservers say that this slave has the smallest living id, and does the master not answer?
        yes: it locks queues for consumers in order and, with enableRemoteEscape, delivers what waits elsewhere
        no:  it stands back
    master is back --STAND_BACK--> the same, at once

Source: apache/rocketmq `broker/.../BrokerController.java` (syncBrokerMemberGroup, onMinBrokerChange), 5.3.3.
"""

import asyncio
import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping

import orjson

from broker.acting.hand_back import ENTRIES_AT_ONCE, HandBack
from broker.acting.journal import DeliveryJournal
from broker.acting.other_masters import OtherMasters
from broker.acting.routes import MemberRoutes
from broker.admin.master_tables import progress_of
from broker.context import BrokerContext
from broker.delay.deliveries import Deliveries, DeliveryKind, Noted
from broker.leadership import Leadership
from broker.state import names
from broker.subsystem import Serve, Subsystem
from broker.transactions.service import GROUP
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import long, text
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.proof import Secrets
from ledgermq.remoting.refusal import Cause, Refusal
from store.time_slice import TimeSlice

_MASTER_ANSWERS_S = 1.0
_COPIES_S = 2.0
"""How long a master that is back waits for the answer that its log is copied; RocketMQ's gives up after three."""
_COPIES_LOOK_S = 0.005
_RETURNING_MAX = 64
"""How many requests of masters that are back may wait for their answer; a real one has one."""
_SLICE_S = 0.005


class ActingSubsystem(Subsystem):
    """Decides whether this slave stands in, and asks slaves when this node is a master that is back.

    Attributes:
        leadership: begins and ends the standing in; set by `broker.parts`.
    """

    leadership: Leadership

    def __init__(
        self,
        context: BrokerContext,
        deliveries: Deliveries,
        first_half_left: Callable[[], Generator[None, None, int]],
    ) -> None:
        self._config = config = context.config
        self._context = context
        self._role = context.role
        self._deliveries = deliveries
        self._first_half_left = first_half_left
        self._is_copying: Callable[[], bool] = bool
        self._follows_rocketmq = False
        self._is_looking = False
        self._returning: list[tuple[Connection, Command]] = []  # masters that wait for the next look
        self._returning_count = 0  # those and the ones that wait for the copy; at most _RETURNING_MAX
        self._look_for_returning = asyncio.Lock()
        self._times_back = 0
        self._has_stood_in = False  # since RocketMQ's master was last told what this slave did meanwhile
        self._address = self._ha_address = ""
        self._routes = MemberRoutes(context.nameservers, context.identity)
        self._journal = DeliveryJournal(
            config.store.folders.root / "standInDeliveries", lambda: context.store.log.min_offset
        )
        self.elsewhere = OtherMasters(
            context.identity.name, self._routes, self._journal, context.spawn, context.clock_ms
        )
        self.hand_back = HandBack(context, deliveries, self._routes, self._take_progress)
        deliveries.noted_elsewhere = self._noted

    def open(
        self,
        client: RemotingClient,
        sending: RemotingClient,
        secrets: Secrets,
        address: str,
        ha_address: str,
        *,
        is_copying: Callable[[], bool],
        follows_rocketmq: bool,
    ) -> None:
        """Set what is needed to ask nameservers and other brokers.

        Args:
            client: asks nameservers, master and slaves.
            sending: sends to other masters, with a signature where users are checked.
            secrets: of masters and slaves.
            address: `host:port` at which this broker serves clients.
            ha_address: at which it listens to slaves; empty: nowhere.
            is_copying: whether this slave is connected to its master.
            follows_rocketmq: whether the master may be RocketMQ's.
        """
        self._is_copying, self._follows_rocketmq = is_copying, follows_rocketmq
        self._address, self._ha_address = address, ha_address
        self.elsewhere.client = sending
        self.hand_back.open(client, secrets)

    def requests(self) -> Mapping[int, Serve]:
        """See `Subsystem`."""
        code = RequestCode
        return {
            code.NOTIFY_MIN_BROKER_ID_CHANGE: self.min_broker_changed,
            code.EXCHANGE_BROKER_HA_INFO: self.exchange_ha_info,
        }

    def periodic(self) -> Iterable[tuple[float, Callable[[], None]]]:
        """Ask whether the master is away."""
        return ((self._config.members_interval_ms / 1000, self.look),) if self._config.slave_acting else ()

    @property
    def asks_slaves(self) -> bool:
        """Whether this node, as the new master, asks slaves what they delivered."""
        return self._config.slave_acting and bool(self._context.nameservers.addresses)

    def on_cut(self, offset: int) -> None:
        """Forget deliveries of messages at and above `offset`, where the log is cut. Raises `OSError`."""
        self._journal.cut(offset)

    def look(self) -> None:
        """Begin to ask nameservers and the master, unless that is under way or this node is no slave."""
        if self._config.slave_acting and self._role.is_slave and not self._is_looking:
            self._is_looking = True
            self._context.spawn(self._look())

    async def _look(self) -> None:
        times = self._times_back
        try:
            groups = await self._routes.members()
            own = self._role.broker_id
            is_next = {min(group) for group in groups if own in group} == {own}
            is_away = (is_next if groups else self._role.stands_in) and not await self._master_answers()
            if not is_away:
                self._times_back += 1  # a look that began before, when the master did not answer yet, ends in nothing
                self.leadership.stand_back()
                if self._has_stood_in and self._follows_rocketmq:
                    self._has_stood_in = False
                    await self._keep_progress_of_halves()
            elif times == self._times_back:
                self._stand_in()
        finally:
            self._is_looking = False

    async def _master_answers(self) -> bool:
        master, client = self._role.leader_elsewhere, self.hand_back.client
        if master is None or client is None:
            return self._is_copying()  # RocketMQ's master tells its address to nameservers alone, when slaves copy it
        try:
            await client.request(master, Command(RequestCode.GET_BROKER_HA_STATUS), _MASTER_ANSWERS_S)
        except RemotingError:
            return False
        return True

    def _stand_in(self) -> None:
        if self._role.stands_in or not self._role.is_slave:
            return
        self._journal.load()
        self._has_stood_in = True
        elsewhere = self.elsewhere if self._config.remote_escape else None
        self.leadership.stand_in(elsewhere, lambda: self.elsewhere.open(self._deliveries))

    async def before_deliveries(self) -> None:
        """Learn, as the new master, what slaves delivered meanwhile, and this node while it was a slave itself."""
        with contextlib.suppress(OSError):
            self._journal.load()
        for entry in self._journal.entries:
            self.hand_back.take(entry)
        await self.hand_back.ask_slaves()

    # ---- what others say

    def min_broker_changed(self, connection: Connection, command: Command) -> None:
        """905: ask at once whether the master is away; the notice itself is not trusted."""
        long(command.ext, "minBrokerId")
        text(command.ext, "brokerName")
        self.look()
        connection.respond(command, ResponseCode.SUCCESS)

    def exchange_ha_info(self, connection: Connection, command: Command) -> None:
        """906: RocketMQ's master is back, and waits until this slave copies its log; or a slave asks for the master.

        The address in the request is not trusted: the slave asks a nameserver for it.
        """
        if self._role.is_slave:
            if command.is_oneway:
                self.look()
                return
            _log_end_of(command)  # refused here if it is no number
            if self._returning_count == _RETURNING_MAX:
                remark = f"{_RETURNING_MAX} requests of masters that are back wait for their answer"
                connection.refuse(command, Refusal(Cause.BUSY, remark, retry_after_ms=1000))
                return
            self._returning_count += 1
            self._returning.append((connection, command))
            if len(self._returning) == 1:
                self._context.spawn(self._answer_returning())
            return
        fields = {"masterFlushOffset": str(self._context.store.log.flushed_offset), "masterAddress": self._address}
        if self._ha_address:
            fields["masterHaAddress"] = self._ha_address
        connection.respond(command, ResponseCode.SUCCESS, fields)

    async def _answer_returning(self) -> None:
        """Answer when all deliveries are noted, since a master then asks for the progress of delay levels (45).

        One question to the nameservers serves all who asked before it, so that a flood of requests reaches no
        nameserver. The time that it takes counts, too: a nameserver that is silent takes a second of the three that
        RocketMQ's master waits.
        """
        begin, deadline = self._context.store.dispatched_offset, self._context.loop.time() + _COPIES_S
        returning: list[tuple[Connection, Command]] = []
        try:
            async with self._look_for_returning:
                returning, self._returning = self._returning, []
                if self._config.slave_acting:
                    await self._look()
            if not self._role.stands_in:
                await self.elsewhere.settled()
            ends = [_log_end_of(command) for _, command in returning] if self._config.slave_acting else []
            has_copied = await self._has_copied(max(ends, default=0), begin, deadline)
        finally:
            self._returning_count -= len(returning)
        for connection, command in returning:
            if has_copied or _log_end_of(command) <= self._context.store.dispatched_offset:
                connection.respond(command, ResponseCode.SUCCESS)
            else:
                text = "this slave is still copying the log of the master"
                connection.refuse(command, Refusal(Cause.BUSY, text, retry_after_ms=1000))

    async def _has_copied(self, end: int, begin: int, deadline: float) -> bool:
        """Wait until this slave has the log up to `end`, so that its progress counts all timers of the master.

        `begin` is what it had when it was asked.

        Returns:
            False if it has not by the deadline, and is copying: the master asks again. True if nothing arrives.
        """
        store, loop = self._context.store, self._context.loop
        while store.dispatched_offset < end:
            if loop.time() >= deadline:
                return store.dispatched_offset == begin
            await asyncio.sleep(_COPIES_LOOK_S)
        return True

    def _noted(self, kind: DeliveryKind) -> Noted:
        """See `Deliveries.noted_elsewhere`."""
        with contextlib.suppress(OSError):
            self._journal.load()
        found = set[int]()
        for entry in self._journal.entries.copy():
            if entry.kind == kind:
                found.add(entry.origin)
            yield
        return found

    async def _keep_progress_of_halves(self) -> None:
        """Keep, for RocketMQ's master, how far this slave has handed half messages to other masters.

        RocketMQ has that progress as a consumer offset, so the master gets it with those that consumers left here.
        """
        await self.elsewhere.settled()
        first = await _in_slices(self._first_half_left())
        self._context.offsets.keep(names.HALF_TOPIC, GROUP, 0, first)

    def stand_back(self, connection: Connection, command: Command) -> None:
        """Serve STAND_BACK, see `broker.passing.member_requests`."""
        start = long(command.ext, "from", 0)
        self._context.spawn(self._answer_delivered(connection, command, max(start, 0)))

    async def _answer_delivered(self, connection: Connection, command: Command, start: int) -> None:
        self._times_back += 1
        self.leadership.stand_back()
        await self.elsewhere.settled()
        try:
            self._journal.load()
        except OSError as error:
            connection.refuse(command, Refusal(Cause.DISK_FAILED, f"the notes of deliveries cannot be read: {error}"))
            return
        end = start + ENTRIES_AT_ONCE
        following = end if end < len(self._journal.entries) else -1
        body = orjson.dumps([tuple(entry) for entry in self._journal.entries[start:end]])
        connection.respond(command, ResponseCode.SUCCESS, {"next": str(following)}, body)

    async def _take_progress(self, address: str) -> None:
        """Take over the progress of RocketMQ's slave, where it is ahead of this node's."""
        client, context = self.hand_back.client, self._context
        assert client is not None
        change = await progress_of(client.request, address, context.state)
        if change.offsets:
            settled = context.loop.create_future()
            context.appender.propose(change, settled.set_result)
            await settled


def _log_end_of(command: Command) -> int:
    """Return where the log of the master that is back ended at its start."""
    return long(command.ext, "masterFlushOffset", 0)


async def _in_slices(steps: Generator[None, None, int]) -> int:
    """Run steps to their end, and let others run in between."""
    time_slice = TimeSlice(_SLICE_S)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return int(end.value)
        await time_slice.give_way()
