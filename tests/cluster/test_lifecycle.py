"""`ledgermq cluster`: a local cluster comes up, obeys its verbs from another shell, and leaves nothing behind."""

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.cluster.plan import block_size
from cli.cluster.ports import reserve_block
from ledgermq.client import Admin, Producer
from node.errors import CommandError
from tests.cluster.test_failover import Load

pytestmark = pytest.mark.cluster
Start = Callable[..., Any]
Command = Callable[..., subprocess.CompletedProcess[str]]


def are_free(base: int) -> bool:
    """Whether a cluster of three could have the ports from `base`: tests beside may take them between two starts."""
    try:
        reserve_block(block_size(3), range(block_size(3)), base).release()
    except CommandError:
        return False
    return True


def test_up_tells_of_a_writable_raft_cluster_sigterm_leaves_no_process_and_up_again_has_its_data_and_ports(
    start: Start, alive: Callable[[int], bool], eventually: Callable[..., None], tmp_path: Path
) -> None:
    cluster = start("--mode", "raft", "--nodes", "3", directory=tmp_path / "kept")
    nodes = cluster.description["nodes"]
    assert [node["name"] for node in nodes] == ["n0", "n1", "n2"]
    assert sorted(node["role"] for node in nodes) == ["master", "slave", "slave"]
    assert len({node["address"] for node in nodes}) == 3
    assert all(alive(pid) for pid in cluster.pids)
    shown = Path(f"/proc/{nodes[0]['pid']}/cmdline").read_bytes()
    assert shown.startswith(b"ledgermq\0broker\0-c\0"), "ps shows which node it is"
    assert cluster.stop() == 0
    assert not any(alive(pid) for pid in cluster.pids)
    stored = list((tmp_path / "kept").glob("n0/store/**/*"))
    assert {"config", "consumequeue"} < {path.name for path in stored}
    assert not [path for path in stored if path.stat().st_mode & 0o077], "files 600, folders 700"
    again = start("--mode", "raft", directory=tmp_path / "kept")
    assert again.namesrv == cluster.namesrv or not are_free(int(cluster.namesrv.partition(":")[2]))
    assert json.loads((tmp_path / "kept" / "cluster.json").read_text())["nodes"] == 3
    # killed outright, it takes its children along, paused ones too
    again.cluster("pause", "n1")
    again.up.send_signal(signal.SIGKILL)
    eventually(lambda: not any(alive(pid) for pid in again.pids), "every child is gone")


def test_a_killed_leader_is_replaced_and_comes_back_as_a_follower(group: Any, eventually: Callable[..., None]) -> None:
    cluster = group
    [killed] = cluster.cluster("kill", "leader")["nodes"]
    assert (killed["role"], killed["state"], killed["pid"]) == ("down", "down", None)
    eventually(lambda: cluster.has_roles(masters=1, slaves=1), "another node leads")
    [started] = cluster.cluster("start", "dead")["nodes"]
    assert started["name"] == killed["name"]
    eventually(lambda: cluster.has_roles(masters=1, slaves=2), "the killed node follows")
    assert cluster.cluster("status")["nodes"][int(killed["name"][1:])]["role"] == "slave"


def test_a_paused_leader_is_replaced_and_follows_when_resumed(group: Any, eventually: Callable[..., None]) -> None:
    cluster = group
    [paused] = cluster.cluster("pause", "leader")["nodes"]
    eventually(lambda: [n["name"] for n in cluster.nodes("master")] not in ([], [paused["name"]]), "another node leads")
    cluster.cluster("resume", "paused")
    eventually(lambda: cluster.has_roles(masters=1, slaves=2), "the resumed node follows")
    assert paused["name"] in [node["name"] for node in cluster.nodes("slave")]


async def test_leadership_moves_to_the_node_that_transfer_names_and_no_send_fails(group: Any) -> None:
    cluster = group
    async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv) as producer:
        await admin.create_topic("moved", queue_count=4)
        load = Load(producer, "moved")
        sending = asyncio.create_task(load.run())
        await load.more(50)
        target = cluster.nodes("slave")[0]
        [leader] = (await asyncio.to_thread(cluster.cluster, "transfer", target["name"]))["nodes"]
        assert (leader["name"], leader["role"]) == (target["name"], "master")
        await load.more(50)
        assert load.failed == 0
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


def test_status_and_nodes_in_words_and_addresses(group: Any, command: Command) -> None:
    cluster = group
    folder = ("--dir", str(cluster.directory))
    addresses = [node["address"] for node in cluster.description["nodes"]]
    assert command("cluster", "status", "--addresses", *folder).stdout.split() == addresses
    table = command("cluster", "status", *folder).stdout
    assert all(address in table for address in addresses)
    [killed] = cluster.cluster("kill", addresses[2])["nodes"]
    assert killed["name"] == "n2"
    for words, detail in [
        (("kill", "n2"), "error: n2 is not running\n"),
        (("start", "n1"), "error: n1 is already running"),
        (
            ("kill", "n9"),
            "error: 'n9' is not a node of this cluster; give one of namesrv, n0, n1, n2, leader, dead, paused",
        ),
        (("resume", "paused"), "error: no node is paused\n"),
    ]:
        done = command("cluster", *words, *folder)
        assert done.returncode == 1
        assert done.stderr.startswith(detail), done.stderr
        assert done.stderr.count("\n") == 1


def test_a_standalone_broker_is_one_master_and_a_folder_holds_one_running_cluster_of_one_shape(
    start: Start, command: Command, tmp_path: Path
) -> None:
    cluster = start("--mode", "standalone", directory=tmp_path / "taken")
    assert [(node["name"], node["role"]) for node in cluster.description["nodes"]] == [("n0", "master")]
    again = command("cluster", "up", "--mode", "standalone", "--dir", str(cluster.directory))
    assert (again.returncode, again.stdout) == (1, "")
    assert "a cluster already runs in" in again.stderr
    assert cluster.stop() == 0
    other = command("cluster", "up", "--mode", "raft", "--dir", str(cluster.directory))
    assert other.returncode == 2
    assert "holds a standalone cluster of 1, not a raft cluster of 3" in other.stderr


def test_groups_share_machines_each_leads_one_and_a_machine_ends_with_all_its_brokers(
    start: Start, eventually: Callable[..., None], tmp_path: Path
) -> None:
    cluster = start("--mode", "raft", "--groups", "2", "--nodes", "2", directory=tmp_path / "groups")
    assert [node["broker"] for node in cluster.description["nodes"]] == ["broker-a"] * 2 + ["broker-b"] * 2
    eventually(lambda: [node["name"] for node in cluster.nodes("master")] == ["n0", "n3"], "each machine leads one")
    assert len({digest["sha256"] for digest in cluster.cluster("digest")["nodes"][:2]}) == 1
    assert [node["name"] for node in cluster.cluster("kill", "m1")["nodes"]] == ["n1", "n3"]
    assert [node["state"] for node in cluster.cluster("status")["nodes"]] == ["up", "down", "up", "down"]
    assert len(cluster.cluster("start", "dead")["nodes"]) == 2
    eventually(lambda: [node["name"] for node in cluster.nodes("master")] == ["n0", "n3"], "each leads one again")


def test_a_folder_of_somebody_else_is_not_touched(command: Command, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    for words in ((), ("--fresh",)):
        done = command("cluster", "up", "--dir", str(tmp_path), *words)
        assert done.returncode == 1
        assert "was not made by this command" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


async def test_the_logs_of_all_nodes_have_one_digest_and_hold_what_was_acknowledged(group: Any) -> None:
    cluster = group
    body = b"compared byte for byte" * 40
    async with Producer(cluster.namesrv) as producer:
        sent = [await producer.send("compared", body) for _ in range(20)]
    digests = (await asyncio.to_thread(cluster.cluster, "digest"))["nodes"]
    assert [digest["name"] for digest in digests] == ["n0", "n1", "n2"]
    assert len({(digest["end"], digest["sha256"]) for digest in digests}) == 1
    last = max(int(result.offset_message_id[-16:], 16) for result in sent)
    assert digests[0]["end"] > last + len(body)


def test_a_dead_nameserver_costs_nothing_where_there_is_another(start: Start, eventually: Callable[..., None]) -> None:
    cluster = start("--mode", "standalone", "--nameservers", "2")
    first, second = cluster.namesrv.split(";")
    assert [row["name"] for row in cluster.act("status")["nameservers"]] == ["namesrv", "namesrv1"]
    cluster.act("kill", "namesrv")
    assert cluster.has_roles(masters=1, slaves=0), "the other one was asked"

    async def send() -> None:
        async with Producer(cluster.namesrv) as producer:
            await producer.send("TBW102", b"by the second nameserver")

    asyncio.run(send())
    cluster.act("start", "namesrv")
    cluster.act("kill", second)
    eventually(lambda: cluster.has_roles(masters=1, slaves=0), f"the broker is registered at {first} again")
