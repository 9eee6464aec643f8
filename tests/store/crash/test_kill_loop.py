"""`kill -9` under load, on real processes; a hundred times: `make crash-loop`."""

import random
from pathlib import Path

import pytest

from chaos.crash.kill_loop import run_loop

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
ROUNDS = 2


@pytest.mark.parametrize("mode", ["standalone", "raft"])
async def test_what_was_acknowledged_is_there_after_every_kill(tmp_path: Path, mode: str) -> None:
    done = await run_loop(mode, ROUNDS, tmp_path, random.Random(1))
    assert done["acknowledged"] >= 100 * (ROUNDS + 1)
    assert done["read"] >= done["acknowledged"]
