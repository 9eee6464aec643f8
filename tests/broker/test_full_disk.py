"""A disk without room: refused at the start, and while it lasts shown by health, metrics and one line of the log."""

import asyncio
import contextlib
import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from dledger.config import PeerAddress
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from node.broker_assembly import Broker
from store.errors import DiskFullError
from store.files import disk
from store.log.flusher import FlushMode
from tests.broker.conftest import send_fields, topic_fields
from tests.broker.test_broker import broker_config
from tests.limits import WAIT_S

FILE_SIZE = 1 << 20
RAFT = {
    "enableDLegerCommitLog": True,
    "dLegerGroup": "b",
    "dLegerSelfId": "n0",
    "dLegerPeers": (PeerAddress("n0", "127.0.0.1", 0),),
}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB, where this process may mount one."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a file system is not permitted here")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.parametrize("raft", [False, True])
async def test_a_log_without_room_for_its_first_file_does_not_start(small_disk: Path, raft: bool) -> None:
    broker = Broker(broker_config(small_disk, mappedFileSizeCommitLog=1 << 30, **(RAFT if raft else {})))
    with pytest.raises(DiskFullError, match=r"no room on the disk for \d{10} bytes; .*mappedFileSizeCommitLog"):
        await broker.start()
    await broker.close()


async def test_a_full_disk_is_seen_by_whoever_looks_until_there_is_room(
    small_disk: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "FULL_S", 0.0)
    broker = Broker(broker_config(small_disk / "store", mappedFileSizeCommitLog=FILE_SIZE))
    await broker.start()
    client = RemotingClient()

    async def send() -> Command:
        command = Command(RequestCode.SEND_MESSAGE_V2, ext=send_fields(), body=bytes(65536))
        return await client.request(broker.address, command, 5)

    async def page(name: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{broker.health_port}/{name}") as found:
            return found.status, await found.text()

    made = await client.request(broker.address, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=topic_fields("T")), 5)
    assert made.code == 0
    assert (await send()).code == 0
    ballast = small_disk / "ballast"
    with caplog.at_level(logging.WARNING, logger="store.files.disk"):
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while disk.free_bytes(small_disk) > FILE_SIZE // 2:
                file.write(bytes(1 << 16))
        while (answer := await send()).code == 0:
            pass
        assert "no room on the disk" in str(answer.remark)
        assert sum("the disk is full" in line for line in caplog.messages) == 1
        status, text = await page("readyz")
        assert (status, "no room" in text) == (503, True)
        _, metrics = await page("metrics")
        shown = {line.split("{")[0]: float(line.split()[-1]) for line in metrics.splitlines() if "{" in line}
        assert (shown["ledgermq_disk_full"], shown["ledgermq_writable"]) == (1.0, 0.0)
        assert (await page("livez"))[0] == 200
        ballast.unlink()
        assert (await page("readyz"))[0] == 200
        assert any("has room again" in line for line in caplog.messages)
    async with asyncio.timeout(WAIT_S):
        while (await send()).code != 0:
            await asyncio.sleep(0.1)
    await client.close()
    await broker.close()


async def test_a_failed_disk_is_no_longer_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(broker_config(tmp_path, flushDiskType=FlushMode.SYNC))
    await broker.start()
    async with aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{broker.health_port}/livez"
        async with http.get(url) as found:
            assert found.status == 200

        def broken(_descriptor: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr("os.fdatasync", broken)
        client = RemotingClient()
        await client.request(broker.address, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=topic_fields("T")), 5)
        async with http.get(url) as found:
            assert (found.status, "Input/output error" in await found.text()) == (503, True)
        monkeypatch.undo()
        await client.close()
    await broker.close()
