"""A node as a process: signals stop it in order, during the start too, and a stop that hangs is ended and explained."""

import asyncio
import os
import signal

import pytest

import cli.node
from cli.errors import CommandError


class FakeNode:
    """Starts and stops as it is told; notes what happened."""

    def __init__(self, start_s: float = 0.0, close_s: float = 0.0) -> None:
        self.events: list[str] = []
        self._start_s, self._close_s = start_s, close_s

    async def start(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)  # arrives at the loop's next turn
        await asyncio.sleep(self._start_s)
        self.events.append("started")

    async def close(self) -> None:
        await asyncio.sleep(self._close_s)
        self.events.append("closed")


async def test_a_signal_stops_a_running_node_in_order() -> None:
    node = FakeNode()
    await cli.node._serve(node, "node")
    assert node.events == ["started", "closed"]


async def test_a_signal_during_the_start_ends_the_start_and_closes_what_was_opened() -> None:
    node = FakeNode(start_s=60.0)
    await cli.node._serve(node, "node")
    assert node.events == ["closed"]


async def test_a_stop_that_hangs_is_ended_and_the_waiting_tasks_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.node, "_CLOSE_LIMIT_S", 0.05)
    waiting = asyncio.create_task(asyncio.sleep(60), name="the culprit")
    with pytest.raises(CommandError, match=r"not finished within 0\.05 s"):
        await cli.node._serve(FakeNode(close_s=60.0), "node")
    assert "Stack for" in capsys.readouterr().out
    waiting.cancel()


def test_an_error_of_the_start_is_one_line_for_the_user() -> None:
    class Refusing(FakeNode):
        async def start(self) -> None:
            raise OSError(98, "address in use")

    with pytest.raises(CommandError, match="address in use"):
        cli.node._run(Refusing, "node", [])
