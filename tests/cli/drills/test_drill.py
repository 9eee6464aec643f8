"""`ledgermq drill` is told to end, cannot begin, or hangs; `ledgermq demo` runs its cluster by the same function."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli import drill
from cli.main import main
from node.errors import CommandError
from tests.limits import WAIT_S

_PROGRAM = """
import sys
import cli.fabric
from cli.main import main

cli.fabric.our_argv = lambda *words: ["sh", "-c", "kill -TERM $PPID; exec sleep 300"]
sys.exit(main(sys.argv[1:]))
"""


def test_sigterm_ends_the_cluster_and_removes_its_folder(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    words = [sys.executable, "-c", _PROGRAM, "drill", "kill-leader"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, "Traceback" in done.stderr) == (130, False), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_drill_that_cannot_begin_ends_as_one_that_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refused(*_: object) -> None:
        raise CommandError("the cluster did not come up")

    assert main(["drill", "kill-leader", "--report", "/nowhere/out.html"]) == 2
    assert capsys.readouterr().err == "error: /nowhere/out.html: No such file or directory\n"
    monkeypatch.setattr(drill, "_run_on_new", refused)
    assert main(["drill", "kill-leader"]) == 2
    assert capsys.readouterr().err == "error: the cluster did not come up\n"


def test_a_campaign_of_a_drill_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "run", "--seed", "1", "--drills", "kill-leader,earthquake"]) == 2
    assert capsys.readouterr().err.startswith("error: there is no drill 'earthquake'; there are kill-leader, ")


_HANGS = """
import asyncio, functools, sys
import chaos.drills.watchdog
import cli.drill, cli.fabric
from cli.main import main

async def never(*_):
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

cli.fabric.our_argv = lambda *words: ["sleep", "300"]
cli.drill._START_LIMIT_S = 0.3
chaos.drills.watchdog.Watchdog = functools.partial(chaos.drills.watchdog.Watchdog, undo_limit_s=1.0)
if sys.argv.pop(1) == "for-ever":
    cli.fabric._stop = never
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("how", "told"),
    [("until-cancelled", "0.3 s\n"), ("for-ever", "0.3 s, and the end of the run not within 1 s more\n")],
)
def test_a_drill_that_hangs_ends_by_its_own_limit_and_says_what_it_waited_for(
    tmp_path: Path, how: str, told: str
) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    words = [sys.executable, "-c", _HANGS, how, "drill", "kill-leader"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 2, done.stderr
    assert f"error: unknown: waited for the start of the cluster: not within {told}" in done.stderr
    assert list(tmp_path.iterdir()) == []
