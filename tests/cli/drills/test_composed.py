"""A cluster of containers: its start is refused for its own reason, its removal is done whatever signals come."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaos.compose import DRILLED, ComposeCluster, ComposeError
from cli import composed
from node.errors import CommandError
from tests.limits import WAIT_S

_RUN = """
import asyncio, signal, sys
from chaos.compose import ComposeCluster
from cli import composed

async def main():
    composed.compose_command = lambda _: [sys.argv[1]]
    ComposeCluster.up = lambda _: None
    async with composed.compose_cluster("sync"):
        print("up", flush=True)
        await asyncio.sleep(600)

signal.signal(signal.SIGINT, signal.SIG_IGN if "ignored" in sys.argv else signal.default_int_handler)
asyncio.run(main())
"""
_COMPOSE = """#!/bin/sh
echo begun
while [ ! -e {told} ]; do sleep 0.02; done
echo removed >{done}
"""


async def refusal() -> str:
    with pytest.raises(CommandError) as error:
        async with composed.compose_cluster("sync"):
            pass
    return str(error.value)


async def test_only_where_there_is_no_engine_its_installation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert "no Docker engine answers here" in (text := await refusal())
    assert "apt install docker.io docker-compose" in text

    def refuse(self: ComposeCluster) -> None:
        raise ComposeError("port is already allocated")

    monkeypatch.setattr(composed, "compose_command", lambda _: ["docker-compose"])
    monkeypatch.setattr(ComposeCluster, "up", refuse)
    assert await refusal() == "port is already allocated"


@pytest.mark.parametrize(
    ("number", "sigint"), [(signal.SIGTERM, "taken"), (signal.SIGTERM, "ignored"), (signal.SIGINT, "taken")]
)
def test_further_signals_end_no_removal(tmp_path: Path, number: int, sigint: str) -> None:
    told, done, program = tmp_path / "told", tmp_path / "done", tmp_path / "compose"
    program.write_text(_COMPOSE.format(told=told, done=done))
    program.chmod(0o700)
    with subprocess.Popen(
        [sys.executable, "-c", _RUN, str(program), sigint],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        assert run.stdout is not None and run.stdout.readline() == "up\n"
        os.killpg(run.pid, number)
        assert run.stderr is not None and run.stderr.readline() == "begun\n"
        for _ in range(3):
            os.killpg(run.pid, number)
            time.sleep(0.1)
        told.touch()
        run.wait(WAIT_S)
    assert done.read_text() == "removed\n"


def test_what_an_earlier_run_left_is_named_with_the_command_that_removes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ComposeCluster([], DRILLED["raft"])
    monkeypatch.setattr(ComposeCluster, "_made_before", lambda _: ["ledgermq-compose-chaos_data-0"])
    with pytest.raises(ComposeError) as error:
        cluster.up()
    assert "ledgermq-compose-chaos_data-0 exist already" in str(error.value)
    assert f"{sys.executable} -m chaos.compose --profile chaos down" in str(error.value)
