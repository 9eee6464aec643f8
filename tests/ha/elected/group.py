"""Elected replicas in one process: real logs and sockets, and the controllers' state machine without controllers."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ha.config import MasterConfig, MemberConfig
from ha.controller.core.commands import BY_CONTROLLER, AlterSet, Elect, GrantId, StateCommand
from ha.controller.core.machine import ControllerMachine, encode_command
from ha.controller.core.model import Candidate, Group
from ha.controller.core.outcome import CommandOutcome
from ha.core.copies import CopyRules
from ha.core.elected_copies import Proposal
from ha.core.replica_role import GroupDecision
from ha.elected.controllers import Controllers, NoControllerError, ProposalResult
from ha.elected.member import ElectedMember
from ha.errors import HaProtocolError
from ledgermq.remoting.client import RemotingClient
from store.directory.checkpoint import StoreCheckpoint
from store.log.commit_log import CommitLog
from store.log.flusher import FlushMode
from store.replicated_log import LogRole
from tests.ha.nodes import GROUP, LOCAL, State, make_log
from tests.store.support import Outcomes, eventually, make_draft

LEASE_S = 0.3
NAME = GROUP.name


class Court:
    """What the controllers have agreed on.

    Attributes:
        is_away: nobody is answered.
        loses_answers: proposals are decided, and their answers lost.
        hides_listeners: nobody is told where masters listen to slaves, as RocketMQ's brokers do not tell it.
        old_news: what is answered to questions instead of what was decided last.
    """

    def __init__(self, count: int) -> None:
        self.machine = ControllerMachine()
        self.beats: dict[int, Mapping[str, Any]] = {}
        self.is_away = self.loses_answers = self.hides_listeners = False
        self.old_news: GroupDecision | None = None
        self._number = 0
        for broker_id in range(1, count + 1):
            self.do(GrantId(name=NAME, cluster="c", broker_id=broker_id, check_code=f"s:{broker_id};0"))

    @property
    def group(self) -> Group:
        return self.machine.groups[NAME]

    def do(self, command: StateCommand) -> CommandOutcome:
        self._number += 1
        return self.machine.apply(encode_command(("court", self._number), command))

    def elect(
        self, asker: int = BY_CONTROLLER, *, designated: bool = False, new_process: bool = False
    ) -> CommandOutcome:
        """An election among those that have sent a heartbeat."""
        alive = tuple(
            Candidate(one, int(b["epoch"]), int(b["maxOffset"]), 5, b.get("doubtEpoch"))
            for one, b in self.beats.items()
        )
        elect = Elect(name=NAME, asker=asker, designated=designated, alive=alive, unclean=False,
                      new_process=new_process)  # fmt: skip
        return self.do(elect)


class ToCourt(Controllers):
    """One broker's connection to the court.

    Attributes:
        are_rocketmqs: heartbeats are answered as RocketMQ's controllers do.
    """

    are_rocketmqs = False

    def __init__(self, court: Court, broker_id: int) -> None:
        super().__init__(["court:1"], RemotingClient(), "c", NAME)
        self.court = court
        self.broker_id = broker_id

    def _reach(self) -> None:
        if self.court.is_away:
            raise NoControllerError("the court is away")

    async def register(self, broker_id: int, address: str) -> None:
        self._reach()

    async def decided(self) -> GroupDecision:
        self._reach()
        if self.court.old_news is not None:
            return self.court.old_news
        group = self.court.group
        beat = self.court.beats.get(group.master_id or 0, {})
        ha_address = "" if self.court.hides_listeners else str(beat.get("haServerAddr", ""))
        return GroupDecision(
            group.master_id, f"s:{group.master_id}", ha_address, group.master_epoch, group.in_sync, group.set_epoch
        )

    async def elect(self, broker_id: int, *, is_new_process: bool) -> int:
        self._reach()
        outcome = self.court.elect(broker_id, new_process=is_new_process)
        if outcome.cause is not None or outcome.group is None:
            raise HaProtocolError("nobody was elected")
        return outcome.group.master_epoch

    async def hand_over(self, epoch: int, successor: int) -> None:
        self._reach()
        assert self.court.group.master_epoch == epoch
        if self.court.elect(successor, designated=True).cause is not None:
            raise HaProtocolError("nobody was elected")

    async def propose(self, broker_id: int, master_epoch: int, proposal: Proposal) -> ProposalResult:
        if self.court.is_away:
            return ProposalResult(None, 0, is_certain=False)
        alter = AlterSet(name=NAME, master_id=broker_id, master_epoch=master_epoch, set_epoch=proposal.set_epoch,
                         wanted=proposal.ids, alive=frozenset(self.court.beats),
                         renew=proposal.renews)  # fmt: skip
        outcome = self.court.do(alter)
        if self.court.loses_answers:
            return ProposalResult(None, 0, is_certain=False)
        if outcome.cause is not None or outcome.group is None:
            return ProposalResult(None, 0, is_certain=True)
        return ProposalResult(outcome.group.in_sync, outcome.group.set_epoch, is_certain=True)

    async def leave(self) -> None:
        self.court.beats.pop(self.broker_id, None)

    async def beat(self, address: str, fields: Mapping[str, object]) -> Mapping[str, str] | None:
        await asyncio.sleep(0.001)
        if self.court.is_away:
            return None
        self.court.beats[self.broker_id] = fields
        if self.are_rocketmqs:
            return {}
        group = self.court.group
        answer = {"masterEpoch": str(group.master_epoch), "syncStateSetEpoch": str(group.set_epoch)}
        full = ",".join(str(one) for one, beat in self.court.beats.items() if "withoutRoom" in beat)
        is_master = group.master_id == self.broker_id
        return answer | ({"lease": str(int(LEASE_S * 1000)), "withoutRoom": full} if is_master else {})


class Replica:
    """One elected replica; `outcomes` of what was appended here."""

    def __init__(self, court: Court, broker_id: int, member: ElectedMember, log: CommitLog) -> None:
        self.court, self.broker_id, self.member, self.log = court, broker_id, member, log
        self.outcomes = Outcomes()

    @property
    def is_writable(self) -> bool:
        return self.log.state.role is LogRole.MASTER and self.log.state.writable

    def put(self, *sizes: int) -> int:
        self.log.append([make_draft(bytes([size % 251]) * size) for size in sizes], self.outcomes)
        return self.log.max_offset

    def data(self) -> bytes:
        return b"".join(bytes(file.view[: file.write_position]) for file in self.log.local.queue.files)


@contextlib.asynccontextmanager
async def replica(
    directory: Path,
    court: Court,
    broker_id: int,
    flush_mode: FlushMode = FlushMode.ASYNC,
    boot: str = "boot-1",
    catch_up_s: float = 15.0,
) -> AsyncIterator[Replica]:
    """A process of the broker with this id, in its folder; unclean if the store's `abort` is there."""
    group = replace(GROUP, broker_id=broker_id, client_address=f"s:{broker_id}", inside_address=f"i:{broker_id}")
    rules = CopyRules(counts_durable=flush_mode is FlushMode.SYNC, catch_up_s=catch_up_s)
    master = MasterConfig(group=group, listen_host="127.0.0.1", listen_port=0, rules=rules, limit_s=1.0,
                          plain_slaves=LOCAL)  # fmt: skip
    root = directory / str(broker_id)
    root.mkdir(parents=True, exist_ok=True)
    config = MemberConfig(master=master, ha_host="127.0.0.1", root=root, controllers=("court:1",), silence_ms=3000,
                          priority=5, poll_s=0.2, follows_rocketmq=court.hides_listeners)  # fmt: skip
    loop = asyncio.get_running_loop()
    member = ElectedMember(config, loop, State(), ToCourt(court, broker_id), boot)
    log = make_log(root / "commitlog", member, flush_mode, StoreCheckpoint())  # type: ignore[arg-type]
    await member.start()
    try:
        yield Replica(court, broker_id, member, log)
    finally:
        court.beats.pop(broker_id, None)
        await log.close()


async def leads(one: Replica) -> None:
    """Wait until it takes records."""
    await eventually(lambda: one.is_writable)


async def in_sync(court: Court, *ids: int) -> None:
    """Wait until the court has agreed to this set."""
    await eventually(lambda: court.group.in_sync == set(ids))


async def same(*replicas: Replica) -> None:
    """Wait until all have confirmed the whole log of the first, and compare bytes."""
    end = replicas[0].log.max_offset
    await eventually(lambda: all(one.log.confirm_offset == end == one.log.max_offset for one in replicas))
    assert len({one.data() for one in replicas}) == 1


async def without_lease() -> None:
    """Wait until every lease is over."""
    until_s = time.monotonic() + LEASE_S + 0.1
    await eventually(lambda: time.monotonic() > until_s)
