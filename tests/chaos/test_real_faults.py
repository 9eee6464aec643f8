"""Disks, clocks and networks that are really broken, where the rights of root allow it; nothing stays behind."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.fabric.damage import flip_bytes
from chaos.fabric.shim import Shim, build_shim
from node.errors import CommandError
from tests.limits import WAIT_S

_MOUNTS = """
import os, sys, time
from pathlib import Path
from chaos.fabric.disk import Disk, own_mounts
own_mounts()
here = Path(sys.argv[1])
disk = Disk(here / "image", here / "disk", 64 << 20)
disk.attach()
"""
_DISK = """
def attempt():
    try:
        (disk.directory / "new").write_bytes(bytes(4096))
    except OSError as error:
        return error.errno
    (disk.directory / "new").unlink()
    return 0

def keep(name, synced):
    with (disk.directory / name).open("wb") as file:
        file.write(name.encode())
        if synced:
            file.flush()
            os.fsync(file.fileno())

print(disk.fill(), attempt(), sep="|")
disk.heal()
print(attempt())
print(disk.fail(), attempt(), sep="|")
print(disk.restart(), attempt(), sep="|")
keep("old", True)
keep("young", False)
disk.stop()
disk.restart()
print(sorted(path.name for path in disk.directory.iterdir() if path.name != "lost+found"))
print(disk.replace(), sorted(path.name for path in disk.directory.iterdir() if path.name != "lost+found"))
"""
_WAITS = "print('mounted', flush=True); time.sleep(600)"
_NETWORK = """
from concurrent.futures import ThreadPoolExecutor
from chaos.fabric.namespaces import Namespaces, own_network
own_network()
net = Namespaces({"n0": "10.83.0.10:7000", "n1": "10.83.0.11:7000"})
net.create()

def reaches(source, target, limit_s):
    with ThreadPoolExecutor(1) as thread:  # it stays in the namespace that it enters
        print(thread.submit(net._reaches, (source, target), limit_s).result())

print(net.cut(["n0>n1"]))
reaches("n0", "n1", 0.25)
reaches("clients", "n1", 20)
reaches("clients", "n0", 20)
print(net.heal([]))
reaches("n0", "n1", 20)
"""


def run(program: str, *words: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=WAIT_S)
    if done.returncode and "CommandError" in done.stderr and ("root" in done.stderr or "install" in done.stderr):
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def loops_of(directory: Path) -> list[str]:
    """The loop devices whose files are in a directory, as the kernel shows them."""
    files = Path("/sys/block").glob("loop*/loop/backing_file")
    return [text for file in files if str(directory) in (text := file.read_text())]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    deadline = time.monotonic() + WAIT_S
    while loops_of(tmp_path) and time.monotonic() < deadline:  # the kernel lets go of them a moment after the mounts
        time.sleep(0.05)
    assert loops_of(tmp_path) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_a_disk_is_full_dead_without_power_and_replaced(directory: Path) -> None:
    full, again, dead, restarted, kept, replaced = run(_MOUNTS + _DISK, str(directory))
    assert full.endswith(f"|{errno.ENOSPC}") and again == "0"
    assert dead.endswith(f"|{errno.EIO}") and restarted.endswith("|0")
    assert kept == "['old']"
    assert replaced.endswith("[]")


def test_a_process_that_is_killed_leaves_no_mount_and_no_loop_device(directory: Path) -> None:
    run(_MOUNTS, str(directory))  # skips where mounting is not allowed
    child = subprocess.Popen(
        [sys.executable, "-c", _MOUNTS + _WAITS, str(directory)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "mounted\n"
    assert loops_of(directory)
    child.send_signal(signal.SIGKILL)
    child.communicate()


def test_a_cut_is_one_way_spares_clients_and_leaves_no_network_behind() -> None:
    lines = run(_NETWORK)
    # nobody listens in these namespaces: a refusal comes back where packets pass
    assert lines[0] == "no connection was made in 1 directions within 250 ms"
    assert lines[1:4] == ["False", "True", "True"]
    assert lines[5] == "True"
    assert "n0:" not in Path("/proc/net/dev").read_text()


def test_without_the_rights_of_root_the_message_says_what_helps() -> None:
    program = "import os\nfrom chaos.fabric.{0} import {1}\nos.setuid(65534)\n{1}()"
    if os.geteuid() != 0:
        pytest.skip("this user has no rights to give up")
    for room, call in (("disk", "own_mounts"), ("namespaces", "own_network")):
        done = subprocess.run([sys.executable, "-c", program.format(room, call)], capture_output=True, text=True)
        assert "rights of root" in done.stderr or "apt install" in done.stderr, done.stderr


_NODE = """
import os, sys, time
with open(sys.argv[1], "w") as file:
    while True:
        began = time.monotonic()
        os.fdatasync(file.fileno())
        print(time.monotonic() - began, time.time(), flush=True)
        time.sleep(0.01)
"""


def test_syncs_of_one_process_are_slow_and_its_clock_is_wrong_until_healed(tmp_path: Path) -> None:
    try:
        library = build_shim(tmp_path)
    except CommandError as error:
        pytest.skip(str(error))
    shim = Shim(tmp_path / "shim")
    child = subprocess.Popen(
        [sys.executable, "-c", _NODE, str(tmp_path / "file")],
        env=shim.environment(library), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    try:

        def line() -> tuple[float, float]:
            seconds, shown = map(float, child.stdout.readline().split())  # type: ignore[union-attr]
            return seconds, shown - time.time()

        assert abs(line()[1]) < 1800
        assert "syncs took 300 ms longer" in shim.slow_syncs(300)
        assert "+3600 s off" in shim.set_clock(3600)
        while line()[1] < 1800:  # lines from before
            pass
        assert line()[0] >= 0.3
        assert "-3600 s off" in shim.set_clock(-3600)
        while line()[1] > -1800:
            pass
        shim.heal()
        while line()[1] < -1800:
            pass
    finally:
        child.kill()
        child.communicate()


def test_without_a_compiler_the_message_has_the_command_that_installs_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError, match="C compiler: apt install gcc"):
        build_shim(tmp_path)


def test_bytes_are_inverted_in_a_full_file_only(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}").write_bytes(bytes(4096))
    with pytest.raises(CommandError, match="no full file yet"):
        flip_bytes(tmp_path)
    (tmp_path / f"{4096:020d}").write_bytes(bytes(4096))
    assert "16 bytes" in flip_bytes(tmp_path)
    assert (tmp_path / f"{0:020d}").read_bytes() == bytes(2048) + b"\xff" * 16 + bytes(2032)
    assert (tmp_path / f"{4096:020d}").read_bytes() == bytes(4096)
