"""A broker that may not have its directory says why in one line, and harms nothing."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from store.directory.store_directory import StoreDirectory

pytestmark = pytest.mark.cluster
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def start(command: Command) -> Callable[..., str]:
    def start(root: Path, **properties: object) -> str:
        values = {"storePathRootDir": root, "listenPort": 0, "healthPort": "off", "brokerIP1": "127.0.0.1"} | properties
        done = command("broker", *(word for key, value in values.items() for word in ("--set", f"{key}={value}")))
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr + done.stdout
        return done.stderr.strip().splitlines()[-1]

    return start


def test_a_second_process_ends_with_the_pid_of_the_first(start: Callable[..., str], tmp_path: Path) -> None:
    directory = StoreDirectory(tmp_path, "classic")
    assert start(tmp_path) == f"error: {tmp_path / 'lock'}: held by process {os.getpid()}"
    directory.close(clean=True)


def test_a_folder_of_something_else_is_left_alone(start: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").touch()
    assert re.search(rf"^error: {tmp_path}: is not a store: it holds photo.jpg", start(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


def test_a_pool_larger_than_the_machine_is_refused(start: Callable[..., str], tmp_path: Path) -> None:
    line = start(tmp_path, transientStorePoolEnable="true", transientStorePoolSize=1_000_000)
    assert re.search(r"^error: transient pool of 1000000 buffers .* this machine has \d+ bytes of memory", line)
