"""`ledgermq demo`: whatever bytes the input has, they come back equal through a cluster whose leader died."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
Command = Callable[..., subprocess.CompletedProcess[str]]

# empty lines, CRLF, lone CR, bytes that are no UTF-8, zeros, separators of other worlds, no newline at the end
ODD_BYTES = (
    b"first\n\n\n\r\n\r\ra\rb\n\x00\n\xff\xfe\xc3\x28\n\x01\x02=;\n\x0b\x0c\x1c\x85\xe2\x80\xa8\n"
    + b"x" * 70_000
    + b"\nno end"
)


def test_odd_bytes_come_back_equal_through_a_failover(command: Command, tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(ODD_BYTES * 100)
    done = command("demo", "--input", str(tmp_path / "input"), "--json", str(tmp_path / "out.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["sent"] == figures["acked"] == 100 * (ODD_BYTES.count(b"\n")) + 1
    assert (figures["lost"], figures["out_of_order"]) == (0, 0)
    assert figures["input_sha256_equal"]
    assert figures["logs_identical"]
    assert figures["killed"] in ("n0", "n1", "n2")
    assert figures["rto_ms"] > 0
    assert "FAIL" not in done.stdout


def test_a_single_line_is_input_enough_on_a_cluster_that_runs(group: Any, command: Command, tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"\n")
    (tmp_path / "cluster.json").write_text(json.dumps(group.description))
    done = command("demo", "--input", str(tmp_path / "input"), "--attach", str(tmp_path / "cluster.json"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "detail"),
    [
        (("--input", "missing.txt"), "missing.txt: No such file"),
        (("--attach", "missing.json"), "missing.json"),
        (("--attach", "{}"), "lacks 'dir'"),
    ],
)
def test_a_demo_that_cannot_begin_says_why(
    command: Command, tmp_path: Path, words: tuple[str, str], detail: str
) -> None:
    (tmp_path / "{}").write_text("{}")
    (tmp_path / "line").write_text("x")
    extra = () if words[0] == "--input" else ("--input", "line")
    done = command("demo", *words, *extra, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert detail in done.stderr
