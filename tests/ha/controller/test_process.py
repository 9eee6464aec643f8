"""Three controllers as processes: they start, are killed, come back, and say why they do not start."""

import asyncio
import contextlib
import itertools
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError
from tests.ha.controller.quorums import LIMIT_S
from tests.ports import free_block

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


class Process:
    """One controller."""

    def __init__(self, folder: Path, number: int, peers: str, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.health = f"http://127.0.0.1:{port + 6}"
        self._output = folder / f"n{number}.log"
        conf = folder / f"n{number}.conf"
        lines = [f"controllerDLegerPeers={peers}", f"controllerDLegerSelfId=n{number}", "controllerQuorumPortOffset=3"]
        lines += [
            f"controllerStorePath={folder}",
            f"controllerSecretFile={folder / 'secret'}",
            f"healthPort={port + 6}",
        ]
        conf.write_text("\n".join(lines))
        self._argv = [sys.executable, "-P", "-m", "ledgermq_server", "controller", "-c", str(conf)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._output.open("ab") as out:
            self._process = subprocess.Popen(self._argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def end(self, how: int = signal.SIGKILL) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(how)
        return process.wait(LIMIT_S)

    def output(self) -> str:
        return self._output.read_text()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Process]]:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_bytes(b"p" * 32)
    base = free_block(9)
    peers = ";".join(f"n{number}-127.0.0.1:{base + number}" for number in range(3))
    found = [Process(tmp_path, number, peers, base + number) for number in range(3)]
    try:
        for process in found:
            process.start()
        yield found
    finally:
        for process in found:
            process.end()


async def ask(processes: list[Process], code: int, **fields: str) -> Command:
    """The answer of the controller that leads, as soon as one does."""
    client = RemotingClient()
    ext = {"brokerName": "b", "clusterName": "c"} | fields
    try:
        for _ in range(int(LIMIT_S * 20)):
            for process in processes:
                with contextlib.suppress(RemotingError):
                    answer = await client.request(process.address, Command(code, ext=ext), 1.0)
                    if answer.code != 2007:
                        return answer
            await asyncio.sleep(0.05)
        raise AssertionError("no controller leads")
    finally:
        await client.close()


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        text: str = answer.read().decode()
        return text


async def test_what_was_agreed_survives_the_kill_of_all(three: list[Process]) -> None:
    applied = await ask(three, RequestCode.CONTROLLER_APPLY_BROKER_ID, appliedBrokerId="1", registerCheckCode="h:1;1")
    assert applied.code == 0
    won = await ask(three, RequestCode.CONTROLLER_ELECT_MASTER, brokerId="1", designateElect="false")
    assert won.ext["masterEpoch"] == "1"
    for process in three:
        process.end()
    for process in three[:2]:
        process.start()
    info = await ask(three[:2], RequestCode.CONTROLLER_GET_REPLICA_INFO)
    assert info.ext == {"masterAddress": "h:1", "masterBrokerId": "1", "masterEpoch": "1"}
    assert "1 broker names" in await asyncio.to_thread(page, f"{three[0].health}/readyz")
    assert "ledgermq_controller_is_sound" in await asyncio.to_thread(page, f"{three[0].health}/metrics")
    assert three[0].end(signal.SIGTERM) == 0
    assert "controller n0 is up" in three[0].output()
    assert "Traceback" not in "".join(process.output() for process in three)


def test_a_controller_that_cannot_start_says_why(tmp_path: Path) -> None:
    words = [sys.executable, "-P", "-m", "ledgermq_server", "controller"]
    for word in ("controllerDLegerPeers=n0-127.0.0.1:1024", "controllerDLegerSelfId=n0"):
        words += ["--set", word]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout) == (2, "")
    assert "key 'controllerSecretFile' is needed" in done.stderr
    words += ["--set", f"controllerSecretFile={tmp_path / 'none'}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1
    assert "none cannot be read: No such file" in done.stderr


async def test_a_controller_whose_disk_fails_ends_with_the_reason(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_bytes(b"p" * 32)
    port = free_block(3)
    words = [sys.executable, "-P", "-m", "ledgermq_server", "controller", "--set", f"controllerSecretFile={secret}"]
    for word in (f"controllerDLegerPeers=n0-127.0.0.1:{port}", "controllerDLegerSelfId=n0", "healthPort=off"):
        words += ["--set", word]
    words += ["--set", f"controllerStorePath={tmp_path}", "--set", "controllerQuorumPortOffset=1"]
    limited = ["prlimit", "--fsize=4096", *words]  # no file of it can be longer
    with subprocess.Popen(limited, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        client = RemotingClient()
        try:
            for number in itertools.count():
                ext = {"brokerName": f"b{number}", "clusterName": "c"}
                ext |= {"appliedBrokerId": "1", "registerCheckCode": "h:1;1"}
                request = Command(RequestCode.CONTROLLER_APPLY_BROKER_ID, ext=ext)
                with contextlib.suppress(RemotingError):
                    await client.request(f"127.0.0.1:{port}", request, 1.0)
                if process.poll() is not None:
                    break
                await asyncio.sleep(0.02)
            said = await asyncio.to_thread(process.communicate)
        finally:
            process.kill()
            await client.close()
    assert process.returncode == 1
    assert "quorum failed: [Errno 27] File too large" in said[1]
    assert "Traceback" not in said[1]
