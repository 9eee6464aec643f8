"""Schedules: read as TOML and JSON, refused with the reason, and written by reports so that they can be read again."""

import html
import re
from pathlib import Path

import pytest

from chaos.drills.catalogue import CATALOGUE
from chaos.drills.schedule import Planned, ScheduleError, parse, text_of
from chaos.report.page import render
from cli.main import main
from tests.chaos.example_run import run_of

PLANNED = [Planned(CATALOGUE["pause-leader"], 3.0, 1.5), Planned(CATALOGUE["kill-leader"], 0.25, 9.0)]


def test_toml_and_json_say_the_same_and_the_times_give_the_order() -> None:
    toml = (
        '[[faults]]\ndrill = "kill-leader"\nat_s = 9\nhold_s = 0.25\n[[faults]]\ndrill = "pause-leader"\nat_s = 1.5\n'
    )
    json = '{"faults": [{"drill": "kill-leader", "at_s": 9, "hold_s": 0.25}, {"drill": "pause-leader", "at_s": 1.5}]}'
    assert parse(toml) == parse(json) == parse(text_of(PLANNED)) == PLANNED


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it has no list `faults`"),
        ("{", "it is neither TOML nor JSON"),
        ('{"a":' * 100_000, "it is neither TOML nor JSON"),
        ("faults = 3", "it has no list `faults`"),
        ("faults = [3]", "fault 1 is 3, not a table"),
        ('faults = [{drill = "kill-lader", at_s = 1}]', "no drill 'kill-lader'; the nearest is 'kill-leader'"),
        ("faults = [{at_s = 1}]", "there is no drill 'None'"),
        ('faults = [{drill = "stalls", at_s = 1, when = 2}]', "fault 1 has when; it may have drill, at_s and hold_s"),
        ('faults = [{drill = "stalls"}]', "at_s of fault 1 is None, not a number of seconds"),
        ('faults = [{drill = "stalls", at_s = nan}]', "at_s of fault 1 is nan"),
        ('faults = [{drill = "stalls", at_s = true}]', "at_s of fault 1 is True"),
        ('faults = [{drill = "stalls", at_s = 1, hold_s = 0}]', "hold_s of fault 1 is 0"),
    ],
)
def test_what_is_no_schedule_is_refused_with_the_reason(text: str, told: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(told)):
        parse(text)


def test_the_command_refuses_before_it_starts_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "faults.toml"
    assert main(["chaos", "run", "--schedule", str(path)]) == 2
    assert capsys.readouterr().err.endswith("No such file or directory: '" + str(path) + "'\n")
    path.write_text('faults = [{drill = "brigde", at_s = 1}]')
    assert main(["chaos", "run", "--schedule", str(path)]) == 2
    assert capsys.readouterr().err == f"error: {path}: fault 1: there is no drill 'brigde'; the nearest is 'bridge'\n"
    path.write_text('faults = [{drill = "bridge", at_s = 1}]')
    assert main(["chaos", "run", "--schedule", str(path), "--mode", "sync"]) == 2
    assert "none of the modes sync allows bridge" in capsys.readouterr().err


def test_a_report_has_the_schedule_of_its_run() -> None:
    result = run_of()
    result.record.steady_s, result.record.injections[0].hold_s = 0.25, 1.0
    found = re.search('<pre id="schedule">(.*?)</pre>', render(result), re.DOTALL)
    assert found is not None
    assert parse(html.unescape(found[1])) == [Planned(CATALOGUE["kill-leader"], 1.0, 0.75)]
