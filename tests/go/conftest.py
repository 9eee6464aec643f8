"""The program of this folder, built once, and clusters to run it on."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster.conftest import start
from tests.limits import STRANGER_WAIT_S

__all__ = ["go_client", "start"]

SOURCE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{SOURCE}/"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.go)


@pytest.fixture(scope="session")
def go_client() -> Path:
    """The program's path. Go's own caches make a second build short; the lock keeps workers from building twice."""
    if shutil.which("go") is None:
        pytest.skip("Go is not here")
    program = SOURCE / "target" / "ledgermq-go-client"
    program.parent.mkdir(exist_ok=True)
    with (program.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        modules = _go("mod", "download")
        if modules.returncode != 0:
            pytest.skip(f"Go's modules cannot be had here: {modules.stderr.strip()[-300:]}")
        built = _go("build", "-o", str(program), ".")
    assert built.returncode == 0, built.stderr
    return program


def _go(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local"}
    return subprocess.run(
        ["go", *words], cwd=SOURCE, env=environment, capture_output=True, text=True, timeout=2 * STRANGER_WAIT_S
    )
