"""Passes requests that only the leader serves on to it, and holds them while nobody leads.

    this node follows, the leader is known      passed on, over one connection, in the order of arrival
    nobody leads, or the leader changes         held, for `HOLD_S` at most; then refused, by the code for "try again"
    this node leads                             served here, those that were held too

A request is passed on again only if nothing was placed: the node that had it says that it does not lead, or the log of
a later leader lacks a send that the one before it may have placed (`lost_sends`). Another request whose answer is lost
is answered with the code on which clients try again, since it may or may not have been carried out.
"""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

from broker.append.answers import Answer, SendAnswers
from broker.groups.clients import HEARTBEAT, ClientTable
from broker.groups.shared_locks import LOCKS, SharedLocks
from broker.passing.codes import SERVED_WITHOUT_LEADER
from broker.passing.for_clients import ForClients
from broker.passing.held_requests import HeldRequests, Waiting
from broker.passing.leader_link import LeaderLink, open_link
from broker.passing.lost_sends import LostSends
from broker.passing.member_requests import CLIENT_GONE, GROUP, not_leader
from broker.passing.runs import SendRun, goes_in_a_run
from broker.role import Role
from broker.send.oneway import RECORD_BYTES, Unsettled
from broker.subsystem import Serve
from broker.timers import Spawn
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import ONEWAY_FLAG, Command
from ledgermq.remoting.codec.fields import long
from ledgermq.remoting.codec.frame import FrameParser
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import FrameError, RemotingError
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.outgoing_requests import Settle
from ledgermq.remoting.proof import Secrets
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.tls import ContextSource
from store.message_store import MessageStore
from store.queues.queue_reader import FILTER_SLICE_S
from store.time_slice import TimeSlice

HOLD_S: Final = 1.0
"""Longest time for which a request waits for a leader."""

AGE_MAX_S: Final = 2.0
"""Age in seconds up to which a send whose answer was lost is passed on once more: clients wait 3 s by default and then
tell their caller that it failed, or send it again, so the leader has a second left to store it and answer."""

_PASSED_MAX: Final = 8192
"""Requests that wait for the leader's answer; never more than half of what it takes of one connection."""

_POPS_MAX: Final = 2048
"""POP requests that wait for the leader's answer, which is held for their poll time: they have room of their own."""

_HELD_MAX_S: Final = 60.0
"""Longest time for which the leader is expected to hold a POP request."""

_UNSENT_MAX_BYTES: Final = 8 << 20
"""Requests are held while more than this waits to be sent to the leader."""

_CROWDED_BYTES: Final = 512 << 10
_CROWDED_S: Final = 0.02
"""While more than `_CROWDED_BYTES` wait to be sent to the leader, a client is not read for `_CROWDED_S` after each of
its one-way requests without a body: the leader does not answer these."""

_RETRY_S: Final = 0.05
"""Seconds between two attempts to reach the leader, or to pass on what a node refused that did not lead."""

_LOGGED_AFTER: Final = 20
"""Attempts to reach the leader; a leader that died is dialled a few times before its successor is known."""

_LOST_PAUSE_S: Final = 0.1
"""Seconds before clients learn that an answer was lost: they try again at once, and by then all members know of the
leader's end."""

_OLD_LINK_S: Final = 0.3
"""How long answers of the node that led before are waited for once it does not lead any more."""

_LOOK_S: Final = 0.01
"""Seconds between two looks whether it has answered everything."""

_ROUNDS_MAX: Final = 4
"""Rounds in which a new leader is told of clients; the later ones are for clients that came meanwhile."""

_KEPT: Final = "kept"
"""Attribute of a client's connection for which the leader keeps something: POP requests, or patterns of headers."""

_NOT_LEADER: Final = Cause.NOT_LEADER.slug
_UNDECIDED: Final = frozenset(
    cause.slug for cause in (Cause.LEADER_CHANGED, Cause.NO_QUORUM, Cause.DISK_FAILED, Cause.SHUTTING_DOWN)
)
"""Causes for which a node refuses also what it has placed, and the next leader may keep."""

_WAITED: Final = Refusal(Cause.NOT_LEADER, "the request waited for a leader for too long", retry_after_ms=100)
"""For what is given up in the moment in which this node begins to lead."""

_log = logging.getLogger(__name__)


class PassOn:
    """Holds requests and passes them on.

    Args:
        clients: those that are connected to this node.
        locks: learn what the leader has locked.
        serve: serves a request on this node, and answers refusals, too.
        store: has the log of the group.
        answers: answers sends.
        spawn: runs a coroutine until the broker stops.

    Attributes:
        passed: number of requests passed on so far.
        unanswered: of those, how many the leader did not answer.
    """

    def __init__(
        self,
        role: Role,
        clients: ClientTable,
        locks: SharedLocks,
        serve: Serve,
        spawn: Spawn,
        loop: asyncio.AbstractEventLoop,
        store: MessageStore,
        answers: SendAnswers,
    ) -> None:
        self._role = role
        self._serve = serve
        self._spawn = spawn
        self._loop = loop
        self._clients = clients
        self._locks = locks
        self._store = store
        self._answers = answers
        self._lost_sends = LostSends(store, loop, spawn, answers.answer_stored, self._again, self._tell_lost)
        self._client: RemotingClient | None = None
        self._secrets: Secrets = ()
        self._limits = Limits()
        self._half_in_flight = max(self._limits.in_flight // 2, 1)
        self._link: LeaderLink | None = None
        self._opening: str | None = None  # the address of a leader to which a connection is being made
        self._held = HeldRequests()
        self._timer: asyncio.Handle | None = None
        self._next_try: asyncio.TimerHandle | None = None
        self._number = 0
        self._in_flight = 0  # without POP
        self._pops = 0
        self._oneway = Unsettled()
        self._is_stopped = False
        self.passed = 0
        self.unanswered = 0

    def open(self, tls: ContextSource | None, secrets: Secrets, limits: Limits) -> None:
        """Begin: from now on leaders may be connected to. `limits` are those of all members for what they receive."""
        self._client = RemotingClient(ForClients(self._clients, self._locks, self.on_link_closed), tls=tls)
        self._secrets = secrets
        self._limits = limits
        self._half_in_flight = max(limits.in_flight // 2, 1)
        self.follow()

    async def close(self) -> None:
        """Close the connections; requests that wait for answers are refused."""
        self.release()
        if self._client is not None:
            await self._client.close()

    @property
    def is_open(self) -> bool:
        """Whether requests can be passed on."""
        return self._client is not None and not self._is_stopped

    @property
    def held(self) -> int:
        """Number of requests that wait for a leader."""
        return len(self._held)

    @property
    def in_flight(self) -> int:
        """Number of requests, without POP, that wait for the leader's answer."""
        return self._in_flight

    @property
    def lost(self) -> int:
        """Number of sends that are looked for in the log."""
        return len(self._lost_sends)

    # ---- requests

    def take(self, connection: Connection, command: Command) -> None:
        """Pass a client's request on, or hold it. When too much is held, it is refused with BUSY.

        What another member passed on is only held while this node leads and is not writable.
        """
        if connection.is_relayed and not self._role.is_elected:
            connection.refuse(command, not_leader(self._role))
            return
        self._number += 1
        now = self._loop.time()
        waiting = Waiting(now + HOLD_S, self._number, connection, command, self._store.dispatched_offset, now)
        link = self._link
        if self._is_stopped or link is None or self._held or connection.is_relayed or not self._has_room(link, now):
            self._hold(waiting)
        else:
            self._pass(link, waiting)

    def take_back(self, answers: list[Answer]) -> bool:
        """Hold requests again whose messages were not placed; return whether that is done.

        It is not done without elections, or while this node still leads: the log would refuse them again.
        """
        if not self._role.is_in_election or self._role.writable:
            return False
        for connection, command, _, _ in answers:
            self.take(connection, command)
        return True

    def look_for(self, answers: list[Answer], refusal: Refusal, since: float) -> list[Answer]:
        """Look for sends in the log that this node placed before another one led; return those that are not looked for.

        A member that passed sends on looks for them itself.

        Args:
            answers: the senders of one batch.
            refusal: what they are told if nobody knows whether a send is stored.
            since: when the first of them arrived, seconds of the loop's clock.
        """
        if self._is_stopped or not answers:
            return answers
        begin = answers[0][2].physical_offsets()[0]  # a batch is placed in one generation
        kept, left = self._store.log.generations(), []
        generation = max((one.number for one in kept if one.start_offset <= begin), default=0)
        for answer in answers:
            connection, command, draft, _ = answer
            self._number += 1
            place = draft.physical_offsets()[0]
            waiting = Waiting(since + HOLD_S, self._number, connection, command, place, since)
            if connection.is_relayed or not self._lost_sends.take(waiting, generation, refusal):
                left.append(answer)
        return left

    def tell(self, connection: Connection, command: Command) -> None:
        """Serve a client's request here, and have the leader serve it, too."""
        self._serve(connection, command)
        if self._link is not None:
            self._tell(self._link, command, connection)

    def client_closed(self, connection: Connection) -> None:
        """Tell the leader that the connection of a client to this node has ended."""
        is_known = HEARTBEAT in connection.attributes or _KEPT in connection.attributes
        if self._link is not None and is_known and not connection.is_relayed:
            self._link.pass_on_oneway(Command(CLIENT_GONE), connection.address)

    def ask_for_group(self, name: str, settle: Settle) -> bool:
        """Ask the leader how a consumer group consumes; return False, and ask nothing, while none can be asked."""
        if self._link is None:
            return False
        self._link.call(Command(GROUP, ext={"consumerGroup": name}), settle)
        return True

    async def _introduce(self, link: LeaderLink) -> None:
        """Tell a new leader of all clients that are connected to this node, before requests are passed on to it.

        Takes slices of time. Clients that send a heartbeat or unregister meanwhile are told in further rounds. The last
        round takes one turn of the loop, so that a flood of heartbeats does not go on for ever. Last, the leader is
        told of clients that have left.
        """
        told: dict[Connection, tuple[Command, ...]] = {}
        time_slice = TimeSlice(FILTER_SLICE_S)
        for rounds_left in reversed(range(_ROUNDS_MAX)):
            for connection, commands in self._untold(told):
                for command in commands:
                    self._tell(link, command, connection)
                told[connection] = commands
                if rounds_left:
                    await time_slice.give_way()
        for connection in told:
            if connection.is_closed:
                self._tell(link, Command(CLIENT_GONE), connection)

    def _untold(self, told: Mapping[Connection, tuple[Command, ...]]) -> list[tuple[Connection, tuple[Command, ...]]]:
        """Return the clients of whose last heartbeat, or departure from groups, the leader was not told."""
        all_ = dict.fromkeys((*self._clients.connections(), *told))  # in the same order in each run of a simulation
        known = [one for one in all_ if not one.is_relayed and not one.is_closed]
        beats = [(one, one.attributes.get(HEARTBEAT, ())) for one in known]
        return [(one, commands) for one, commands in beats if commands and told.get(one) is not commands]

    def _tell(self, link: LeaderLink, command: Command, connection: Connection) -> None:
        try:
            link.pass_on_oneway(command, connection.address)
        except Refusal as refusal:
            _log.debug("%s: the leader is not told: %s", connection.address, refusal.remark)

    def _pass(self, link: LeaderLink, waiting: Waiting) -> None:
        connection, command = waiting.connection, waiting.command
        try:
            if command.flag & ONEWAY_FLAG and not command.body:
                link.pass_on_oneway(command, connection.address)
                if link.connection.held_bytes > _CROWDED_BYTES:
                    connection.throttle(_CROWDED_S)
            elif command.code == RequestCode.POP_MESSAGE:
                if self._pops >= min(_POPS_MAX, self._half_in_flight // 2):
                    connection.respond(command, ResponseCode.POLLING_FULL)
                    return
                held_s = min(max(0, long(command.ext, "pollTime", 0)) / 1000, _HELD_MAX_S)
                link.pass_on(command, connection.address, partial(self._pop_answered, link, waiting), held_s)
                self._pops += 1
                connection.attributes[_KEPT] = True
            elif goes_in_a_run(command) and link.takes_runs:
                link.pass_on_in_run(waiting, command, self._run_answered)
                self._in_flight += 1
                connection.attributes[_KEPT] = True
            else:
                # a one-way message is answered all the same, which tells when its client may send more
                link.pass_on(command, connection.address, partial(self._answered, link, waiting))
                self._in_flight += 1
                if command.flag & ONEWAY_FLAG:
                    self._oneway.add(connection, RECORD_BYTES + len(command.body))
            self.passed += 1
        except Refusal as refusal:
            connection.refuse(command, refusal)

    def _pop_answered(self, link: LeaderLink, waiting: Waiting, outcome: Command | RemotingError) -> None:
        """Handle an answer as `_answered` does.

        If it is lost, so are the messages in it, until their invisible time is over.
        """
        self._pops -= 1
        if isinstance(outcome, Command):
            self._serve_answer(link, waiting, outcome)
        else:
            self.unanswered += 1
            waiting.connection.respond(waiting.command, ResponseCode.POLLING_TIMEOUT)

    def _answered(self, link: LeaderLink, waiting: Waiting, outcome: Command | RemotingError) -> None:
        self._in_flight -= 1
        if waiting.command.flag & ONEWAY_FLAG:
            self._oneway.settle(waiting.connection, RECORD_BYTES + len(waiting.command.body))
        if isinstance(outcome, Command):
            self._serve_answer(link, waiting, outcome)
        else:
            self._lost(link, waiting, outcome)
        if self._held:
            self._release_soon()

    def _run_answered(self, link: LeaderLink, run: SendRun, outcome: Command | RemotingError | None) -> None:
        self._in_flight -= len(run.sends)
        if isinstance(outcome, Command) and outcome.code == ResponseCode.SUCCESS and outcome.remark is None:
            run.connection.answer(outcome.body, len(run.sends))  # nobody watches the times of sends
        elif isinstance(outcome, Command):
            self._serve_answers(link, run, outcome)
        else:
            for waiting in run.sends.values():
                if outcome is None:
                    self._hold(waiting)
                else:
                    self._lost(link, waiting, outcome)
        if self._held:
            self._release_soon()

    def _serve_answers(self, link: LeaderLink, run: SendRun, outcome: Command) -> None:
        """Answer the sends of a run one by one, since not all of them were accepted."""
        answers: dict[int, Command] = {}
        lost = RemotingError("the answers to its run lack its own")
        if outcome.code != ResponseCode.SUCCESS:
            answers = dict.fromkeys(run.sends, outcome)
        else:
            try:
                answers = {answer.opaque: answer for answer in FrameParser().feed(bytes(outcome.body))}
            except FrameError as error:
                lost = error
        for number, waiting in run.sends.items():
            if number in answers:
                self._serve_answer(link, waiting, answers[number])
            else:
                self._lost(link, waiting, lost)

    def _serve_answer(self, link: LeaderLink, waiting: Waiting, outcome: Command) -> None:
        cause = outcome.ext.get("cause") if outcome.code == ResponseCode.SERVICE_NOT_AVAILABLE else None
        if cause == _NOT_LEADER:
            link.rests_until = self._loop.time() + _RETRY_S
            self._hold(waiting)
        elif cause not in _UNDECIDED or not self._is_looked_for(link, waiting, RemotingError(outcome.remark or "")):
            waiting.connection.respond(waiting.command, outcome.code, outcome.ext, outcome.body, outcome.remark)

    def _lost(self, link: LeaderLink, waiting: Waiting, error: RemotingError) -> None:
        """Handle a request whose own answer was lost."""
        self.unanswered += 1
        if waiting.command.code in SERVED_WITHOUT_LEADER:
            self._serve(waiting.connection, waiting.command)
        elif not self._is_looked_for(link, waiting, error):
            self._tell_lost(waiting, error)

    def _is_looked_for(self, link: LeaderLink, waiting: Waiting, error: RemotingError) -> bool:
        """Have a send looked for in the log, if a leader may have placed it; return whether that is done."""
        return not self._is_stopped and link.is_bound and self._lost_sends.take(waiting, link.generation, error)

    def _again(self, waiting: Waiting) -> None:
        """Hold a request that was not carried out, to pass it on again; refuse it if it is too old for that."""
        self._hold(waiting._replace(deadline=waiting.arrived + AGE_MAX_S))

    def _tell_lost(self, waiting: Waiting, error: RemotingError | Refusal) -> None:
        """Answer that a request may or may not have been carried out."""
        if isinstance(error, Refusal):
            refusal = error
            self._answers.count_refused(waiting.command, refusal, waiting.arrived)
        else:
            remark = f"passed on to the leader, which may or may not have carried it out: {error}"
            refusal = Refusal(Cause.LEADER_CHANGED, remark, retry_after_ms=100)
        if self._is_stopped:  # the connections are closed next
            waiting.connection.refuse(waiting.command, refusal)
        else:
            self._loop.call_later(_LOST_PAUSE_S, waiting.connection.refuse, waiting.command, refusal)

    # ---- holding

    def _hold(self, waiting: Waiting) -> None:
        if self._is_stopped or waiting.deadline <= self._loop.time():
            self._give_up(waiting)
            return
        try:
            self._held.put(waiting)
        except Refusal as refusal:
            waiting.connection.refuse(waiting.command, refusal)
            return
        if self._held.deadline == waiting.deadline:
            self._set_timer(waiting.deadline)
        self._release_soon()

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._expire)

    def _give_back(self) -> None:
        """Refuse what other members passed on, since this node leads no more: they look for the next leader, too."""
        for waiting in self._held.take_relayed():
            waiting.connection.refuse(waiting.command, not_leader(self._role))

    def _expire(self) -> None:
        self._timer = None
        self._give_up_late(self._loop.time())
        if self._held.deadline is not None:
            self._set_timer(self._held.deadline)

    def _give_up_late(self, now: float) -> None:
        for waiting in self._held.take_late(now):
            self._give_up(waiting)

    def _give_up(self, waiting: Waiting) -> None:
        if waiting.command.code in SERVED_WITHOUT_LEADER:
            self._serve(waiting.connection, waiting.command)
        else:
            waiting.connection.refuse(waiting.command, self._role.refusal or _WAITED)

    def _release_soon(self) -> None:
        self._loop.call_soon(self._release)

    def _release(self) -> None:
        """Serve or pass on what is held, as far as that is possible now."""
        link = self._link
        now = self._loop.time()
        self._give_up_late(now)  # this process may have stood still, and the clients have sent these requests again
        while self._held and (self._role.writable or (link is not None and self._has_room(link, now))):
            waiting = self._held.take()
            connection, command = waiting.connection, waiting.command
            if connection.is_closed:  # a member waits for the answer all the same
                connection.refuse(command, self._role.refusal or _WAITED)
            elif self._role.writable:
                self._serve(connection, command)
            elif link is not None:
                self._pass(link, waiting)
        if self._held and link is not None and self._next_try is None:
            self._next_try = self._loop.call_later(_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._next_try = None
        self._release()

    def _has_room(self, link: LeaderLink, now: float) -> bool:
        """Return whether more may be passed on now."""
        return (
            self._in_flight < _PASSED_MAX
            and self._in_flight < self._half_in_flight
            and link.rests_until <= now
            and not link.connection.is_closed
            and link.connection.held_bytes <= _UNSENT_MAX_BYTES
        )

    # ---- who leads

    def lead(self) -> None:
        """Serve what was held: this node leads."""
        self._leave_link()
        self._release_soon()

    def follow(self) -> None:
        """Follow the present leader, if one is known: this node does not lead."""
        if not self._role.is_elected:
            self._give_back()
        leader = self._role.leader_elsewhere if self._role.is_in_election else None
        known = self._opening if self._link is None else self._link.address
        if known is not None and known != leader:
            self._leave_link()
        if self._link is not None and self._link.generation != self._role.generation:
            self._link = None  # the connection stays: that node is greeted on it again
        if leader is not None and self._link is None and self.is_open and self._opening is None:
            self._opening = leader
            self._spawn(self._open_link())

    def on_cut(self) -> None:
        """Handle a cut of the log below what was dispatched: a slave follows a master of a later epoch."""
        self._lost_sends.on_cut(self._number)

    def release(self) -> None:
        """Refuse what is held, and hold nothing more: the broker stops soon."""
        self._is_stopped = True
        while self._held:
            self._give_up(self._held.take())
        self._lost_sends.release()

    def on_link_closed(self, connection: Connection) -> None:
        """Handle the end of a connection to a leader; its requests are settled already."""
        if self._link is not None and self._link.connection is connection:
            self._link = None
            self.follow()

    def _leave_link(self) -> None:
        """Leave the connection to the former leader, or stop connecting to it, since a machine may be off silently."""
        connection = None if self._link is None else self._link.connection
        self._link = None
        if connection is None and self._opening is not None and self._client is not None:
            self._client.give_up(self._opening)
            connection = self._client.connected(self._opening)
        if connection is not None:
            self._close(connection, self._loop.time() + _OLD_LINK_S)

    def _close(self, connection: Connection, deadline: float) -> None:
        """Close a connection to a former leader when all is answered, or at the deadline; not one that is in use."""
        if self._link is not None and self._link.connection is connection:
            return
        if connection.awaited and self._loop.time() < deadline:
            self._loop.call_later(_LOOK_S, self._close, connection, deadline)
        else:
            connection.close("that node does not lead any more")

    async def _open_link(self) -> None:
        """Try to connect to the leader, until it succeeds or this node leads."""
        tries = 0
        try:
            while self._link is None and self._client is not None and self.is_open:
                leader, generation = self._role.leader_elsewhere, self._role.generation
                if leader is None:
                    return
                self._opening = leader
                try:
                    link = await open_link(self._client, leader, self._secrets, self._limits, generation)
                except (RemotingError, Refusal) as error:
                    if leader != self._role.leader_elsewhere:
                        continue
                    self._role.avoid(leader)
                    tries += 1
                    if tries == _LOGGED_AFTER:
                        _log.warning("requests of clients cannot be passed on to the leader: %s", error)
                    await asyncio.sleep(_RETRY_S)
                    continue
                await self._introduce(link)
                link.call(Command(LOCKS), self._locks.learn_all)
                is_current = (leader, generation) == (self._role.leader_elsewhere, self._role.generation)
                if is_current and not link.connection.is_closed:
                    self._link = link
                    self._release()
                    if self._role.avoids_inside:
                        _log.warning("the leader answers at %s only: is its brokerIP2 wrong?", leader)
        finally:
            self._opening = None
