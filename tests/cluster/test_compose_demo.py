"""`chaos.compose` touches what it made and nothing else: run with a `docker` that only notes what it is asked."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from chaos import compose
from tests.limits import WAIT_S

FAKE = """#!/bin/sh
echo "$0 $@" >>"$CALLS"
case "$1" in
  info|version) ;;
  compose) case "$*" in *" up "*|*" logs "*) sleep "${UP_S:-0}"; exit 1 ;; esac ;;
  ps|volume) printf '%s' "$FOUND" ;;
esac
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    docker = tmp_path / "docker"
    docker.write_text(FAKE)
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("FOUND", "")
    return tmp_path / "calls"


def test_a_cluster_that_is_there_already_is_neither_started_again_nor_removed(
    calls: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FOUND", "somebodys-broker\n")
    assert compose.main(["up"]) == 1
    assert "somebodys-broker" in capsys.readouterr().err
    assert not [line for line in calls.read_text().splitlines() if "compose -p" in line]


def test_a_start_that_fails_removes_what_it_made_under_a_name_of_its_own(calls: Path) -> None:
    assert compose.main(["up"]) == 1
    asked = [line.split("compose ", 1)[1] for line in calls.read_text().splitlines() if "compose -p" in line]
    starts = ["build namesrv-0", "up -d --no-build"]
    assert [words.rsplit(".yml ", 1)[1] for words in asked] == [*starts, "logs --tail 40", "down --volumes"]
    # Compose names a project after its folder: a user's checkout is called `ledgermq`, and its volumes hold his data.
    assert {words.split()[1] for words in asked} == {"ledgermq-compose-demo"}


def test_a_cluster_of_a_mode_is_started_by_its_services_under_a_name_of_its_own(calls: Path) -> None:
    assert compose.main(["--profile", "controller", "up"]) == 1
    asked = [line.split("compose ", 1)[1] for line in calls.read_text().splitlines() if "compose -p" in line]
    services = " ".join(f"{kind}-{number}" for kind in ("controller", "elected") for number in range(3))
    assert asked[0].endswith("build namesrv-0")
    assert asked[1].endswith(f"up -d --no-build {services}")
    assert {words.split()[1] for words in asked} == {"ledgermq-compose-controller"}
    described: dict[str, Any] = compose.ComposeCluster([], compose.DRILLED["controller"]).describe()
    assert described["mode"] == "controller" and "cut" not in described["verbs"]
    assert all(node["target"] == node["address"] for node in described["nodes"])
    assert described["verbs"]["unplug"].endswith("-m chaos.compose --profile controller unplug")


def test_a_terminated_start_removes_what_it_made(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UP_S", "2")
    starting = subprocess.Popen([sys.executable, "-m", "chaos.compose", "up"], cwd=Path(compose.__file__).parents[1])
    deadline = time.monotonic() + WAIT_S
    while not (calls.exists() and " up -d" in calls.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    starting.send_signal(signal.SIGTERM)
    assert starting.wait(WAIT_S) == 128 + signal.SIGTERM
    assert calls.read_text().rstrip().endswith("down --volumes")


def test_a_service_without_a_container_is_not_killed(calls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compose.main(["kill", "nobody"]) == 1
    assert "nobody has 0 containers, not one" in capsys.readouterr().err
    assert not [line for line in calls.read_text().splitlines() if "docker kill" in line]
