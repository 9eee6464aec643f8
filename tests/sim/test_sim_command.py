"""`python -m chaos.sim`: exit codes tell crash, safety and liveness apart; a failure says how to replay it."""

import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from chaos.sim.__main__ import main
from dledger.core.leader import Leader
from tests.limits import WAIT_S
from tests.sim.mutants import MUTANTS

REPOSITORY = Path(__file__).parents[2]


def planted(name: str) -> AbstractContextManager[None]:
    return next(mutant for mutant in MUTANTS if mutant.name == name).planted()


def test_a_clean_seed_exits_0_and_prints_what_was_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3"]) == 0
    printed = capsys.readouterr().out
    assert "seed 3: clean" in printed and "conditions = " in printed and "trace " in printed


def test_a_running_exits_0_and_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0:4", "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "4 seeds clean" in printed and "never occurred: " in printed


def test_a_gap_exits_13(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("chaos.sim.coverage.JUDGED_SEEDS", 4)
    assert main(["--seeds", "0:4", "--jobs", "1"]) == 13, "four seeds do not meet every kind"
    assert "a gap: " in capsys.readouterr().out


def test_a_safety_violation_exits_10_and_prints_its_replay(capsys: pytest.CaptureFixture[str]) -> None:
    with planted("ack before durable"):
        assert main(["--seed", "0"]) == 10
    printed = capsys.readouterr().out
    assert "seed 0: SafetyViolation" in printed and "python -m chaos.sim --seed 0 --trace" in printed
    assert "fault_interval_us = " in printed


def test_a_liveness_violation_exits_11(capsys: pytest.CaptureFixture[str]) -> None:
    with planted("nobody campaigns"):
        assert main(["--seed", "0"]) == 11
    assert "R14" in capsys.readouterr().out


def test_a_crash_of_the_core_exits_12(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Leader, "replicate", lambda self: 1 // 0)
    assert main(["--seed", "0"]) == 12
    assert "ZeroDivisionError" in capsys.readouterr().out


@pytest.mark.parametrize("seeds", [("--seeds", "1:1000", "--jobs", "2"), ("--seed", "1")])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_before_its_seeds_do_and_leaves_no_files(
    tmp_path: Path, number: signal.Signals, seeds: tuple[str, ...]
) -> None:
    code = (
        "import signal; from pathlib import Path; from chaos.sim import pool; from chaos.sim.__main__ import main;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"  # a background job ignores it
        f"pool.memory_directory = lambda: Path({str(tmp_path)!r});"
        f"main(['--stack', *{seeds}])"
    )
    running = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + WAIT_S
        while not list(tmp_path.glob("*/*")):
            assert time.monotonic() < deadline_s, "a run begins"
            time.sleep(0.05)
        running.send_signal(number)
        assert running.wait(WAIT_S) != 0
    finally:
        running.kill()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [["--seed", "x"], ["--seeds", "5"], [], ["--seed", "1", "--seeds", "1:2"]])
def test_bad_arguments_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["chaos.sim --seed 3 --trace", "chaos.elections --seeds 1 --jobs 1"])
def test_a_program_whose_output_is_closed_ends_quietly(words: str) -> None:
    command = [sys.executable, "-m", *words.split()]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(WAIT_S) == 1
