"""Controllers' quorums in this process, for tests."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from ha.controller.core.commands import GrantId
from ha.controller.core.machine import ControllerMachine
from ha.controller.quorum.quorum import Quorum, QuorumSettings
from ledgermq.remoting.refusal import Cause, Refusal
from tests.limits import SLOWNESS, WAIT_S
from tests.ports import free_ports

SECRET = b"s" * 32
LIMIT_S = WAIT_S


class Member:
    """One member; `start` again after `stop` begins from its folder."""

    def __init__(self, settings: QuorumSettings) -> None:
        self.settings = settings
        self.machine = ControllerMachine()
        self.quorum = Quorum(settings, self.machine, lambda: None)

    def start(self) -> None:
        self.machine = ControllerMachine()
        self.quorum = Quorum(self.settings, self.machine, lambda: None)
        self.quorum.start()

    @property
    def is_leader(self) -> bool:
        return self.quorum.status.is_leader


def members(folder: Path, count: int = 3, **others: object) -> list[Member]:
    """That many members of one quorum, not started."""
    ports = free_ports(count)
    addresses = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports)}
    return [
        Member(
            QuorumSettings(
                **{
                    "members": addresses,
                    "self_id": member,
                    "bind_host": "127.0.0.1",
                    "folder": folder / member,
                    "secrets": (SECRET,),
                    "election_timeout_s": 0.35 * SLOWNESS,
                    **others,
                }  # type: ignore[arg-type]
            )
        )
        for member in addresses
    ]


@contextlib.asynccontextmanager
async def running(all_members: list[Member]) -> AsyncIterator[None]:
    """Start them; stop all at the end."""
    try:
        for member in all_members:
            member.start()
        yield
    finally:
        for member in all_members:
            await member.quorum.stop()


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    try:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {LIMIT_S:g} s: {what}") from None


async def leader_of(some: list[Member]) -> Member:
    """The member that all the others follow."""

    def agreed() -> bool:
        leaders = {member.quorum.status.leader_id for member in some}
        return len(leaders) == 1 and leaders == {member.settings.self_id for member in some if member.is_leader}

    await until(agreed, "one leader")
    return next(member for member in some if member.is_leader)


async def submit(some: list[Member], command: GrantId) -> Member:
    """Have whoever leads carry out the command, and return him. On a busy machine leadership may change meanwhile."""
    deadline = asyncio.get_running_loop().time() + LIMIT_S
    while True:
        leader = await leader_of(some)
        try:
            await leader.quorum.submit(command)
        except Refusal as refusal:
            if refusal.cause is not Cause.CONTROLLER_NOT_LEADER or asyncio.get_running_loop().time() > deadline:
                raise
        else:
            return leader


_numbers = itertools.count()


def new_group() -> GrantId:
    """A command that registers a name of its own."""
    return GrantId(name=f"group-{next(_numbers)}", cluster="c", broker_id=1, check_code="127.0.0.1:1;1")
