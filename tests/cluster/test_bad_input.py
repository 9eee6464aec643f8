"""What cannot start says so in one line that names the value, with the right exit code, and harms nothing."""

import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.main import main

pytestmark = pytest.mark.cluster
Start = Callable[..., Any]
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def assert_one_line(done: subprocess.CompletedProcess[str], code: int, pattern: str) -> None:
    assert done.returncode == code, done.stderr
    assert re.search(pattern, done.stderr), done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    is_usage = done.stderr.startswith("usage: ")  # of the words of the command, from which nothing begins
    assert is_usage or (done.stderr.startswith("error: ") and done.stderr.count("\n") == 1), done.stderr


@pytest.fixture
def command_here(capsys: pytest.CaptureFixture[str]) -> Command:
    """`ledgermq WORDS` in this process: for what is refused before anything runs, as most refusals are."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        try:
            code = main(words)
        except SystemExit as ended:  # so argparse ends
            code = ended.code if isinstance(ended.code, int) else 1
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return run


def write(path: Path, **properties: object) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path


def test_a_port_in_use_is_refused_before_anything_starts(command: Command, tmp_path: Path, taken_port: int) -> None:
    done = command("cluster", "up", "--base-port", str(taken_port), "--dir", str(tmp_path / "d"))
    assert_one_line(done, 1, rf"port {taken_port} is in use by pid \d+ .*; nothing was started")
    assert not (tmp_path / "d" / "n0").exists()


@pytest.mark.parametrize("kind", ["broker", "nameserver"])
def test_a_node_whose_port_is_in_use_ends_with_one_line(
    command: Command, tmp_path: Path, taken_port: int, kind: str
) -> None:
    conf = write(tmp_path / "node.conf", bindAddress="127.0.0.1", listenPort=taken_port)
    words = ["--set", f"storePathRootDir={tmp_path / 'store'}"] if kind == "broker" else []
    done = command(kind, "-c", str(conf), "--set", "healthPort=0", *words)
    assert_one_line(done, 1, str(taken_port))


def test_an_unknown_key_is_refused_with_its_place_and_the_nearest_one(command_here: Command, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=a\nlistenport=1\n")
    assert_one_line(command_here("broker", "-c", str(conf)), 2, r'broker\.conf:2: .*"?listenport.*listenPort')


def test_an_unknown_key_for_a_local_cluster_is_refused_before_anything_starts(command: Command, tmp_path: Path) -> None:
    done = command("cluster", "up", "--conf", "flushDiskTyp=SYNC_FLUSH", "--dir", str(tmp_path / "d"))
    assert_one_line(done, 2, "flushDiskTyp.*flushDiskType")
    assert not (tmp_path / "d" / "cluster.json").exists()


def test_a_value_that_does_not_parse_is_refused_with_its_place(command_here: Command, tmp_path: Path) -> None:
    conf = write(tmp_path / "broker.conf", brokerName="a", listenPort="ten")
    assert_one_line(command_here("broker", "-c", str(conf)), 2, r"broker\.conf:2: .*listenPort.*ten")


@pytest.mark.parametrize(
    ("peers", "detail"),
    [
        ("n0-127.0.0.1:40911;n1-127.0.0.1:40911", "the same address: n0-127.0.0.1:40911 and n1-127.0.0.1:40911"),
        ("n0-127.0.0.1:40911;n1-127.0.0.1:40912;n0-127.0.0.1:40913", "n0.*twice"),
        ("n1-127.0.0.1:40911;n2-127.0.0.1:40912", "n0"),
        ("n0-10.0.0.1:40911;n1-10.0.0.2:40911", r"key 'dLegerPeerSecretFile' is needed: .*insecurePeers=true"),
    ],
)
def test_peers_that_cannot_be_are_refused(command_here: Command, tmp_path: Path, peers: str, detail: str) -> None:
    raft = {"enableDLegerCommitLog": "true", "dLegerGroup": "g", "dLegerSelfId": "n0", "dLegerPeers": peers}
    conf = write(tmp_path / "broker.conf", storePathRootDir=tmp_path / "store", **raft)
    assert_one_line(command_here("broker", "-c", str(conf)), 2, detail)
    assert not (tmp_path / "store").exists()


def test_a_missing_configuration_file_is_refused(command: Command, tmp_path: Path) -> None:
    assert_one_line(command("broker", "-c", str(tmp_path / "no.conf")), 2, r"no\.conf: no such file")


def test_the_data_of_another_node_is_refused_and_not_touched(start: Start, command: Command, tmp_path: Path) -> None:
    cluster = start("--mode", "raft", directory=tmp_path / "c")
    assert cluster.stop() == 0
    before = {p: p.read_bytes() for p in (tmp_path / "c" / "n0" / "store").rglob("*") if p.is_file()}
    shutil.move(tmp_path / "c" / "n0" / "store" / "dledger-n0", tmp_path / "c" / "n0" / "store" / "dledger-n1")
    conf = tmp_path / "c" / "n1" / "broker.conf"
    done = command("broker", "-c", str(conf), "--set", f"storePathRootDir={tmp_path / 'c' / 'n0' / 'store'}")
    assert_one_line(done, 1, "dledger-n1 belongs to node id 'n0', .*'n1'")
    shutil.move(tmp_path / "c" / "n0" / "store" / "dledger-n1", tmp_path / "c" / "n0" / "store" / "dledger-n0")
    after = {p: p.read_bytes() for p in (tmp_path / "c" / "n0" / "store").rglob("*") if p.is_file()}
    changed = {p for p in before if after.get(p) != before[p]}
    assert changed == set()


def test_a_folder_that_a_running_broker_holds_is_refused_with_its_pid(start: Start, command: Command) -> None:
    cluster = start("--mode", "standalone")
    [node] = cluster.description["nodes"]
    conf = cluster.directory / "n0" / "broker.conf"
    done = command("broker", "-c", str(conf), "--set", "listenPort=0", "--set", "healthPort=0")
    assert_one_line(done, 1, str(node["pid"]))


@pytest.mark.parametrize(
    "words",
    [("cluster", "up", "--nodes", "0"), ("cluster", "up", "--conf", "x"), ("cluster", "up", "--conf", "listenPort=1")],
)
def test_words_that_cannot_be_meant_are_usage_errors(command: Command, tmp_path: Path, words: tuple[str, ...]) -> None:
    assert_one_line(command(*words, "--dir", str(tmp_path / "d")), 2, words[-1].split("=")[0])


def test_a_verb_without_a_cluster_says_how_to_start_one(command_here: Command, tmp_path: Path) -> None:
    assert_one_line(command_here("cluster", "kill", "leader", "--dir", str(tmp_path)), 1, "no cluster runs in")


def test_the_version_is_printed(command: Command) -> None:
    assert re.fullmatch(r"ledgermq \d+\.\d+\.\d+\n", command("--version").stdout)
