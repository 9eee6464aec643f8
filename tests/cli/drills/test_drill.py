"""`ledgermq drill` is told to end, cannot begin, or hangs; `ledgermq demo` runs its cluster by the same function."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli import drill
from cli.main import main
from node.errors import CommandError
from tests.chaos.example_run import run_of
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refused(*_: object) -> None:
        raise CommandError("the cluster did not come up")

    (tmp_path / "old.json").write_text("{}")
    files = ["--json", str(tmp_path / "old.json"), "--history", str(tmp_path / "new.jsonl")]

    assert main(["drill", "kill-leader", *files, "--report", "/nowhere/out.html"]) == 2
    assert capsys.readouterr().err == "error: /nowhere/out.html: No such file or directory\n"
    monkeypatch.setattr(drill, "_run_on_new", refused)
    assert main(["drill", "kill-leader", *files, "--report", str(tmp_path / "new.html")]) == 2
    assert capsys.readouterr().err == "error: the cluster did not come up\n"
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"], "no empty files are left"


def test_a_drill_for_other_modes_or_a_fabric_beside_a_running_cluster_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drill", "one-way", "--mode", "controller"]) == 2
    assert capsys.readouterr().err.endswith("not controller (it is with --fabric namespaces)\n")
    assert main(["drill", "bridge", "--mode", "controller"]) == 2
    assert capsys.readouterr().err.endswith("not controller\n")
    assert main(["drill", "slow-link", "--fabric", "namespaces"]) == 2
    assert "delays messages, which namespaces cannot" in capsys.readouterr().err
    assert main(["drill", "kill-leader", "--attach", str(tmp_path), "--fabric", "namespaces"]) == 2
    assert capsys.readouterr().err == "error: --attach and --fabric: a running cluster has its fabric\n"


def test_figures_that_find_no_room_on_the_disk_are_told_in_one_line_with_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ended(*_: object) -> object:
        return run_of()

    monkeypatch.setattr(drill, "_run_on_new", ended)
    assert main(["drill", "kill-leader", "--json", "/dev/full"]) == 2
    assert capsys.readouterr().err == "error: /dev/full: No space left on device\n"


def test_a_full_disk_below_the_standard_output_is_told_in_one_line() -> None:
    words = [sys.executable, "-m", "ledgermq_server", "drill", "list"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stderr) == (1, "error: what was to be written: No space left on device\n")


_FAILS = """
import sys
from types import SimpleNamespace
import cli.drill
from chaos.drills.verdict import DrillVerdict
from cli.main import main

async def run(order, shape, directory, watchdog, display):
    for number in range(1000):
        display.event(f"event {number}")
    rows = chr(10).join(map(str, range(100_000)))
    return SimpleNamespace(table=lambda: rows, figures=lambda: {}, verdict=DrillVerdict[sys.argv[1]])

cli.drill._run_on_new = run
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(("verdict", "code"), [("PASS", 0), ("FAIL", 1)])
def test_a_drill_whose_reader_has_gone_ends_with_its_verdict(tmp_path: Path, verdict: str, code: int) -> None:
    json = tmp_path / "figures.json"
    words = [sys.executable, "-c", _FAILS, verdict, "drill", "kill-leader", "--json", str(json)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(b"event 0\n")
        process.stdout.close()
        assert process.wait(WAIT_S) == code
    assert json.read_text() == "{}\n"


def test_a_campaign_of_a_drill_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "run", "--seed", "1", "--drills", "kill-leader,earthquake"]) == 2
    assert capsys.readouterr().err.startswith("error: there is no drill 'earthquake'; there are kill-leader, ")


_HANGS = """
import asyncio, functools, sys
import chaos.drills.watchdog
import cli.drill, cli.fabric, cli.live
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
    cli.drill._display = lambda *_, **__: cli.live.ScreenDisplay(sys.stderr, "kill-leader", 1.0)
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
    assert done.stderr.count("\x1b[?1049h") == done.stderr.partition("error:")[0].count("\x1b[?1049l")
    assert list(tmp_path.iterdir()) == []
