"""The real Java client on a Raft cluster of ours whose leader is killed: it goes on by itself, and nothing is lost."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent.parent
CASES = "cluster/master-dies,cluster/fresh-topic-survives,cluster/replicas-catch-up"


@pytest.mark.cluster
@pytest.mark.java
@pytest.mark.skipif(
    shutil.which("mvn") is None or shutil.which("java") is None, reason="Java 17 and Maven are not here"
)
def test_the_java_client_survives_the_death_of_a_leader_without_losing_an_acknowledged_message() -> None:
    done = subprocess.run([PROJECT / "scripts" / "interop", "raft", "--cases", CASES], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^3 passed, 0 failed, 0 skipped$", done.stdout, re.MULTILINE), done.stdout
