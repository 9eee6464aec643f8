"""The control socket: verbs of another shell reach the running cluster, and every failure is one clear error."""

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from cli.cluster.control import ControlServer, ask
from ledgermq.testing import Cluster, ClusterError
from ledgermq.testing.control import Answer
from node.errors import CommandError


async def echo(verb: str, words: Sequence[str]) -> Answer:
    if verb == "refuse":
        raise CommandError("n7 is not a node of this cluster")
    return {"verb": verb, "words": list(words)}


async def ask_aside(directory: Path, verb: str, *words: str) -> Answer:
    return await asyncio.to_thread(ask, directory, verb, *words)


async def test_a_verb_and_its_node_reach_the_handler_and_its_answer_comes_back(tmp_path: Path) -> None:
    server = ControlServer(tmp_path, echo)
    await server.start()
    assert await ask_aside(tmp_path, "kill", "leader") == {"verb": "kill", "words": ["leader"]}
    await server.close()


async def test_what_the_handler_refuses_is_raised_at_the_other_end(tmp_path: Path) -> None:
    server = ControlServer(tmp_path, echo)
    await server.start()
    with pytest.raises(CommandError, match=r"^n7 is not a node of this cluster$"):
        await ask_aside(tmp_path, "refuse")
    await server.close()


async def test_a_folder_with_a_path_longer_than_a_socket_address_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    server = ControlServer(deep, echo)
    await server.start()
    assert await ask_aside(deep, "status") == {"verb": "status", "words": []}
    await server.close()


async def test_garbage_from_a_stranger_closes_only_its_own_connection(tmp_path: Path) -> None:
    server = ControlServer(tmp_path, echo)
    await server.start()
    for garbage in (b"\xff\n", b"[]\n", b"{}\n", b""):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "control.sock"))
        writer.write(garbage)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    assert await ask_aside(tmp_path, "status") == {"verb": "status", "words": []}
    await server.close()


@pytest.mark.parametrize("folder", [".", "missing"])
def test_without_a_running_cluster_the_error_says_how_to_start_one(tmp_path: Path, folder: str) -> None:
    with pytest.raises(CommandError, match=r"no cluster runs in .*; start one with: ledgermq cluster up"):
        ask(tmp_path / folder, "status")


def test_a_socket_that_a_dead_cluster_left_counts_as_no_cluster(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "control.sock"))
    with pytest.raises(CommandError, match="no cluster runs"):
        ask(tmp_path, "status")


def test_a_cluster_for_tests_that_does_not_start_says_why_and_leaves_no_folder() -> None:
    cluster = Cluster(settings={"noSuchKey": "1"})
    with pytest.raises(ClusterError, match="noSuchKey"), cluster:
        pytest.fail("it has started")
    assert not cluster.directory.parent.exists()
