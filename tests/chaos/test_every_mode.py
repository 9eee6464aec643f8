"""The table of `make failover`."""

import json
import sys
from pathlib import Path

import pytest

from chaos.drills import every_mode
from tests.chaos.example_run import run_of


def test_the_table_sums_rounds_and_shows_median_and_longest_times() -> None:
    rounds = [run_of(gap_s=gap_s, lose=gap_s > 0.6).figures() for gap_s in (0.3, 0.5, 0.7)]
    head, _, row, empty = every_mode.table({"raft": rounds, "sync": []}).splitlines()
    assert head.count("|") == row.count("|") == empty.count("|")
    assert row.startswith("| raft | 3 | 2 | 120 | 1 | 0 | 590, at most 790 |")


def test_no_round_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["every_mode", "--rounds", "0"])
    assert every_mode.main() == 1


def test_a_drill_that_fails_or_hangs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(every_mode, "_ROUND_LIMIT_S", 0.5)
    program.write_text('#!/bin/sh\necho "no cluster for $6"; exit 4\n')
    program.chmod(0o755)
    assert every_mode.drill("sync", tmp_path / "none.json", 10) is None
    assert "ended with 4" in capsys.readouterr().out
    program.write_text('#!/bin/sh\necho "waits in $TMPDIR"; exec sleep 10\n')
    assert every_mode.drill("sync", tmp_path / "none.json", 10) is None
    assert f"has not ended within 0.5 s\nwaits in {tmp_path}" in capsys.readouterr().out
    program.write_text(
        f'#!/bin/sh\nwhile [ "$1" != --json ]; do shift; done; echo \'{json.dumps({"passed": True})}\' >"$2"\n'
    )
    assert every_mode.drill("sync", tmp_path / "some.json", 10) == {"passed": True}
