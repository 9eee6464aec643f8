"""Controllers of two releases, which judge a command in two ways, side by side: they never come to different states."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from ha.controller.core import commands
from ha.controller.core.commands import Applied, Confirm, GrantId, StateCommand
from ha.controller.core.machine import ControllerMachine, encode_command
from ha.controller.core.model import DamagedStateError, Group
from ha.controller.core.outcome import CommandOutcome
from ha.controller.errors import QuorumError
from ha.controller.server import Controller
from ledgermq.remoting.refusal import Refusal
from tests.ha.controller.quorums import until
from tests.ha.controller.test_server import configs


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(StateCommand):
    """Another cluster for a name; from rules 2 on it is written in capitals."""

    KIND = "move"
    cluster: str

    def apply(self, group: Group | None) -> Applied:
        assert group is not None
        return replace(group, cluster=self.cluster.upper() if self.rules > 1 else self.cluster), CommandOutcome()


@pytest.fixture(autouse=True)
def move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_KINDS", {**commands._KINDS, Move.KIND: Move})


def new(name: str = "a") -> GrantId:
    return GrantId(name=name, cluster="c", broker_id=1, check_code="127.0.0.1:1;1")


def test_rules_rise_with_the_first_command_under_them_and_never_fall() -> None:
    machine = ControllerMachine(known_rules=2)
    for number, command in enumerate((new(), Move(name="a", cluster="x"))):
        machine.apply(encode_command(("n0", number), command))
    assert (machine.rules, machine.groups["a"].cluster) == (1, "x")
    machine.apply(encode_command(("n0", 2), Confirm(rules=2)))
    machine.apply(encode_command(("n0", 3), Move(name="a", cluster="old")))
    assert (machine.rules, machine.groups["a"].cluster) == (2, "old"), "a command is judged by its own rules"
    again = ControllerMachine(known_rules=2)
    again.restore(machine.snapshot())
    assert again.rules == 2 and again.snapshot() == machine.snapshot()


def test_newer_rules_than_known_are_refused_whole() -> None:
    newer, older = ControllerMachine(known_rules=2), ControllerMachine(known_rules=1)
    command = encode_command(("n0", 0), Confirm(rules=2))
    newer.apply(command)
    for refused in (lambda: older.apply(command), lambda: older.restore(newer.snapshot())):
        with pytest.raises(
            DamagedStateError, match="version 2, this controller knows versions up to 1: is it an older"
        ):
            refused()
    assert older.rules == 1


@pytest.mark.timeout(120)
async def test_a_rolling_upgrade_changes_the_rules_when_the_last_controller_knows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = configs(tmp_path)
    running: list[Controller] = []

    async def start(number: int, known_rules: int) -> None:
        monkeypatch.setattr("ha.controller.server.ControllerMachine", partial(ControllerMachine, known_rules))
        controller = Controller(wanted[number])
        running.insert(number, controller)
        await controller.start()

    def clusters() -> list[str]:
        return [group.cluster for one in running for group in one.machine.groups.values()]

    async def submit(command: StateCommand, cluster: str) -> None:
        """To the leading controller; returns when all have that cluster."""
        while True:
            await until(lambda: any(one._leadership.leads for one in running), "a leader")
            leader = next(one for one in running if one._leadership.leads).quorum
            try:
                await leader.submit(command)
                break
            except Refusal:  # it has lost that
                continue
        await until(lambda: clusters() == [cluster] * 3, f"all say {cluster}")

    try:
        for number in range(3):
            await start(number, 1)
        await submit(new(), "c")
        for number in range(3):
            await submit(Move(name="a", cluster=f"x{number}"), f"x{number}")
            assert {one.machine.rules for one in running} == {1}
            await running.pop(number).close()
            await start(number, 2)
        await until(lambda: all(one.machine.rules == 2 for one in running), "the rules are raised")
        await submit(Move(name="a", cluster="new"), "NEW")
        await running.pop(0).close()
        monkeypatch.setattr("ha.controller.server.signal.raise_signal", lambda _number: None)
        await start(0, 1)
        await until(lambda: running[0].quorum.failure is not None, "an older release ends")
        with pytest.raises(QuorumError, match="is it an older release than the other controllers"):
            await running.pop(0).close()
    finally:
        for controller in running:
            await controller.close()
