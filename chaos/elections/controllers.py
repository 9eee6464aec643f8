"""Three controllers, each with its shipping `ControllerLeadership` and `ControllerRequests`, in simulated time."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from chaos.elections.network import Network
from chaos.elections.quorum import LOOK_S, NAME, Agreement, BrokerOfControllers, SimQuorum
from ha.controller.core.commands import GrantId
from ha.controller.core.live import LiveBrokers
from ha.controller.core.machine import encode_command
from ha.controller.core.model import Group
from ha.controller.header_forms import FORMS
from ha.controller.leadership import ControllerLeadership
from ha.controller.quorum.quorum import not_leading
from ha.controller.requests import ControllerRequests, Slow
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.refusal import Refusal
from ledgermq.remoting.serving.answer import Answer

CONTROLLERS: Final = ("c1", "c2", "c3")
LEASE_S: Final = 0.15  # the default of `masterLease`
_STILL_MS: Final = (200, 400, 600)
"""Silence in ms after which a master is replaced: shorter or longer than its lease and its heartbeat interval."""
_LATE: Final = 0.1
"""Probability that a proposal is read late, from a connection that has ended, so that nobody is told."""
_LATE_S: Final = (0.1, 1.5)
_CUT_OFF: Final = 0.1
"""Probability that a master is cut off from all others at the moment when its in-sync set is decided."""
_DEPOSED: Final = 0.05
"""Probability that a controller is deposed as soon as it has taken a proposal, and answers that it does not lead."""
_TAKEN_S: Final = 0.0001
_UNTOLD_S: Final = 0.08
"""After that all other answers of controllers take so much longer for as long: shorter than a lease."""

Answered = Callable[[Command], None]
Brokers = Mapping[int, BrokerOfControllers]


class _Rules(NamedTuple):
    unclean: bool
    still_ms: int
    reads_by_log: bool


class _Controller:
    """One process: its event loop and clock, and the heartbeats that it has heard."""

    def __init__(self, network: Network, agreement: Agreement, name: str, rules: _Rules, brokers: Brokers) -> None:
        self.loop = network.loop(network.rate(), self.run)

        def elected(group: Group) -> None:
            for broker_id in self.live.alive(NAME, group.replicas, self.now_ms()):
                network.send(name, f"b{broker_id}", brokers[broker_id].on_notice, "notices")

        self.live = LiveBrokers()
        self.quorum = SimQuorum(agreement, name, self.loop, lambda: self.leadership.changed())
        self.leadership = ControllerLeadership(
            self.quorum, self.quorum.machine, self.live, LEASE_S, self.now_ms, lambda: rules, elected, self.loop.time,
        )  # fmt: skip
        settings: Any = SimpleNamespace(config=rules, change=None, show=None)
        requests = ControllerRequests(
            self.quorum, self.quorum.machine, self.live, self.leadership, settings, self.now_ms
        )
        self._quick, self._slow = requests.quick, requests.slow

    def now_ms(self) -> int:
        return int(self.loop.time() * 1000)

    @property
    def group(self) -> Group:
        """The group as this controller knows it: a deposed one does not learn what was decided since."""
        return self.quorum.machine.groups[NAME]

    def run(self, event: Callable[[], object]) -> None:
        """Run an event in this process."""
        self.loop.run_event(event)

    def serve(self, connection: Any, command: Command, answered: Answered) -> None:
        """Serve a broker's request, as `ha.controller.server` does; `answered` is called with the answer, or never."""

        def answer(given: Answer) -> None:
            answered(Command(given.code, ext=dict(given.ext or {}), body=given.body, remark=given.remark))

        async def serve(handler: Slow) -> None:
            try:
                answer(await handler(connection, command))
            except Refusal as refusal:
                answer(Answer(code=refusal.code, remark=refusal.remark))

        try:
            FORMS[command.code].check(command.ext)
            if quick := self._quick.get(command.code):
                answer(quick(connection, command))
            elif self.leadership.leads:
                self.loop.create_task(serve(self._slow[command.code]))
            else:
                raise not_leading()
        except Refusal as refusal:
            answer(Answer(code=refusal.code, remark=refusal.remark))

    def scan(self) -> None:
        """Look for brokers and masters that are lost, as `Controller` does from time to time."""
        for beat, _ in self.live.expire(self.now_ms()):
            self.leadership.lost(beat)
        self.leadership.check_masters()

    def closed(self, connection: object) -> None:
        """Handle the end of a broker's connection."""
        for beat in self.live.closed(connection):
            self.leadership.lost(beat)


class SimControllers:
    """The controllers of the simulation. Brokers call what they ask when a message to one of `names` arrives."""

    def __init__(self, network: Network, brokers: Brokers) -> None:
        self._network = network
        self._brokers = brokers
        self.names = CONTROLLERS
        reads_by_log = network.chance("reads").choice((False, False, False, True))
        still_ms = network.chance("still masters").choice(_STILL_MS)
        self._rules = rules = _Rules(network.faults.elects_anybody, still_ms, reads_by_log)
        self._agreement = agreement = Agreement(network, brokers)
        self._untold_until_s = 0.0
        self._all = {name: _Controller(network, agreement, name, rules, brokers) for name in self.names}
        agreement.members = [one.quorum for one in self._all.values()]

    def start(self) -> None:
        """Let one controller lead, and assign the ids of the brokers."""
        self._agreement.lead(self._all["c1"].quorum)
        for broker_id in (1, 2, 3):
            grant = GrantId(name=NAME, cluster="c", broker_id=broker_id, check_code=f"b{broker_id};0")
            self._agreement.decide(encode_command(("sim", broker_id), grant))
        self._look()

    def stop(self) -> None:
        """End all that the controllers have under way."""
        for one in self._all.values():
            one.run(one.loop.stop)

    def change_leader(self) -> None:
        """Elect another controller; the deposed one does not notice."""
        self._agreement.lead(self._network.chance("controllers that lead").choice(self._others()))

    @property
    def leader(self) -> str:
        """Name of the controller that a majority has elected last."""
        return self._agreement.leader.name

    @property
    def group(self) -> Group:
        """The state of the group on which the controllers agree."""
        return self._all[self.leader].group

    @property
    def successor(self) -> int | None:
        """The slave that the leading controller would elect next, by the heartbeats that it has; None without one."""
        one = self._all[self.leader]
        candidates = one.live.candidates(self.group, one.now_ms() + int(LEASE_S * 1000), self._rules.still_ms)
        slaves = [each for each in candidates if each.broker_id in self.group.in_sync - {self.group.master_id}]
        return min(slaves, key=lambda each: each.rank).broker_id if slaves else None

    # ---- what brokers ask

    def ask(self, name: str, connection: object, command: Command, answered: Answered) -> None:
        """Let a controller serve a request; `answered` is called with the answer, or never."""
        one, late = self._all[name], self._network.chance("late proposals")
        if command.code != RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET and self._network.now_s < self._untold_until_s:
            answered = partial(self._tell_late, answered)

        def cut_off(answer: Command) -> None:
            if answer.code == ResponseCode.SUCCESS and self._network.chance("answers lost").random() < _CUT_OFF:
                # neither this answer nor the frames behind it arrive
                self._network.isolate(f"b{command.ext['masterBrokerId']}")
            answered(answer)

        def hear(answer: Command) -> None:
            if answer.code == ResponseCode.SUCCESS:
                self._agreement.heard_s[name, int(command.ext["brokerId"])] = self._network.now_s
            answered(answer)

        if command.code == RequestCode.BROKER_HEARTBEAT:
            one.run(partial(one.serve, connection, command, hear))
        elif command.code != RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET:
            one.run(partial(one.serve, connection, command, answered))
        elif self._network.chance("deposed").random() < _DEPOSED:
            one.run(partial(one.serve, connection, command, answered))
            self._network.at(_TAKEN_S, partial(self._depose, one, command))
        elif late.random() < _LATE:
            serve = partial(one.serve, connection, command, lambda _: None)
            self._network.at(late.uniform(*_LATE_S), partial(one.run, serve))
        else:
            one.run(partial(one.serve, connection, command, cut_off))

    def _tell_late(self, answered: Answered, answer: Command) -> None:
        self._network.at(_UNTOLD_S, partial(answered, answer))

    def closed(self, name: str, connection: object) -> None:
        """Handle the end of a broker's connection at one controller."""
        one = self._all[name]
        one.run(partial(one.closed, connection))

    # ---- internals

    def _others(self) -> list[SimQuorum]:
        return [one.quorum for one in self._all.values() if one.quorum is not self._agreement.leader]

    def _depose(self, one: _Controller, proposal: Command) -> None:
        """Depose the controller that has taken a proposal, and kill a slave that is to get into the set."""
        joining = sorted(set(json.loads(bytes(proposal.body))["syncStateSet"]) - self.group.in_sync)
        if joining and one.leadership.leads and one.quorum is self._agreement.leader and not self._network.is_sound:
            self._agreement.lead(self._network.chance("deposed").choice(self._others()), openly=True)
            self._untold_until_s = self._network.now_s + _UNTOLD_S
            self._brokers[joining[0]].die()

    def _look(self) -> None:
        self._agreement.look(self._all[self.leader].loop.time())
        for one in self._all.values():
            one.run(one.scan)
        self._network.at(LOOK_S, self._look)
