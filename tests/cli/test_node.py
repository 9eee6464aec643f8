"""A node as a process: signals stop it in order, during the start too, and a stop that hangs is ended and explained."""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import main
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError
from node import run
from node.errors import CommandError
from tests.broker.conftest import send_fields
from tests.limits import WAIT_S
from tests.ports import free_ports


class FakeNode:
    """Starts and stops as it is told; notes what happened."""

    def __init__(self, start_s: float = 0.0, close_s: float = 0.0) -> None:
        self.events: list[str] = []
        self._start_s, self._close_s = start_s, close_s

    async def start(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)  # arrives at the loop's next turn
        await asyncio.sleep(self._start_s)
        self.events.append("started")

    async def close(self) -> None:
        await asyncio.sleep(self._close_s)
        self.events.append("closed")


async def test_a_signal_stops_a_running_node_in_order() -> None:
    node = FakeNode()
    await run._serve(node, "node")
    assert node.events == ["started", "closed"]


async def test_a_signal_during_the_start_ends_the_start_and_closes_what_was_opened() -> None:
    node = FakeNode(start_s=60.0)
    await run._serve(node, "node")
    assert node.events == ["closed"]


async def test_a_stop_that_hangs_is_ended_and_the_waiting_tasks_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "_CLOSE_LIMIT_S", 0.05)
    waiting = asyncio.create_task(asyncio.sleep(60), name="the culprit")
    with pytest.raises(CommandError, match=r"not finished within 0\.05 s"):
        await run._serve(FakeNode(close_s=60.0), "node")
    assert "Stack for" in capsys.readouterr().out
    waiting.cancel()


def test_an_error_of_the_start_is_one_line_for_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "setswitchinterval", lambda _seconds: None)

    class Refusing(FakeNode):
        async def start(self) -> None:
            raise OSError(98, "address in use")

    with pytest.raises(CommandError, match="address in use"):
        run._run(Refusing, "node", [])


def test_a_thread_that_computes_keeps_the_loop_of_a_node_waiting_for_a_millisecond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    intervals: list[float] = []
    monkeypatch.setattr(sys, "setswitchinterval", intervals.append)
    assert run._run(FakeNode, "node", []) == 0
    assert intervals == [0.001]


def _few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


async def test_a_nameserver_holds_more_connections_than_the_soft_limit_of_descriptors(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = {"listenPort": port, "healthPort": "off", "kvConfigPath": tmp_path / "kv.json"}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "ledgermq_server", "nameserver", *words],
        stdout=subprocess.DEVNULL,
        preexec_fn=_few_descriptors,
    )
    client, newcomer = RemotingClient(), RemotingClient()
    with contextlib.ExitStack() as held:
        try:
            async with asyncio.timeout(WAIT_S):
                await _answers(client, port)
                for _ in range(100):
                    held.enter_context(socket.create_connection(("127.0.0.1", port)))
                await _answers(newcomer, port)
        finally:
            await client.close()
            await newcomer.close()
            process.terminate()
            process.wait(WAIT_S)


async def _answers(client: RemotingClient, port: int) -> None:
    while True:
        with contextlib.suppress(RemotingError):
            await client.request(f"127.0.0.1:{port}", Command(RequestCode.GET_BROKER_CLUSTER_INFO), 5)
            return
        await asyncio.sleep(0.05)


def test_a_cluster_in_a_folder_that_cannot_be_written_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["cluster", "up", "--dir", "/proc/ledgermq"]) == 1
    assert capsys.readouterr().err == "error: /proc/ledgermq: No such file or directory\n"


def test_a_cluster_with_the_shim_is_refused_without_a_compiler_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["cluster", "up", "--shim", "--dir", str(tmp_path / "cluster")]) == 1
    assert "need a C compiler" in capsys.readouterr().err
    assert not (tmp_path / "cluster").exists()


def test_a_cluster_on_a_read_only_file_system_is_refused_in_one_line(tmp_path: Path) -> None:
    """As a process of its own, in a mount namespace where the folder is read-only."""
    command = f'mount --bind {tmp_path} {tmp_path} && mount -o remount,ro,bind {tmp_path} && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", command, "sh", sys.executable, "-P", "-m", "ledgermq_server"]
    done = subprocess.run([*words, "cluster", "up"], capture_output=True, text=True, cwd=tmp_path, timeout=WAIT_S)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no mount namespaces here: {done.stderr.strip()}")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "Read-only file system" in done.stderr


async def test_a_broker_serves_beside_a_users_own_packages_of_its_rooms_names(tmp_path: Path) -> None:
    """They are in the folder in which it is started and on Python's path; it imports some of its own when it serves."""
    for name in ("broker", "cli", "node", "store", "telemetry"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the user\\'s own module')\n")
    (port,) = free_ports(1)
    settings = {"listenPort": port, "healthPort": "off", "bindAddress": "127.0.0.1", "namesrvAddr": "127.0.0.1:9"}
    settings |= {"storePathRootDir": tmp_path / "data", "diskMaxUsedSpaceRatio": 100}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    process = subprocess.Popen(
        [sys.executable, "-m", "ledgermq_server", "broker", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    client = RemotingClient()
    try:
        async with asyncio.timeout(WAIT_S):
            while process.poll() is None:
                with contextlib.suppress(RemotingError):
                    send = Command(RequestCode.SEND_MESSAGE_V2, ext=send_fields(), body=b"hello")
                    assert (await client.request(f"127.0.0.1:{port}", send, 5)).code == 0
                    break
                await asyncio.sleep(0.05)
    finally:
        await client.close()
        process.terminate()
        _, said = process.communicate(timeout=WAIT_S)
    assert (process.returncode, said) == (0, "")
