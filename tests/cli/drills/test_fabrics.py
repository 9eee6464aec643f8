"""The fabrics of drills undo what they did, all of it, and nothing that somebody else did before."""

import socket
from pathlib import Path
from typing import Any

import pytest

from chaos.fabric.contract import Verb
from cli import described, fabric
from cli.cluster.template import ForkedNode, Template
from cli.described import DescribedFabric, attach
from cli.fabric import LocalFabric
from node.errors import CommandError, UsageError


def rows(**states: str) -> list[dict[str, str]]:
    return [{"name": name, "state": state} for name, state in states.items()]


async def test_a_local_cluster_is_left_with_the_nodes_down_that_were_down_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status = {
        "namesrv": "h:1",
        "mode": "raft",
        "has_namespaces": False,
        "nameservers": rows(namesrv="up"),
        "nodes": rows(n0="up", n1="down", n2="paused", n3="up", n4="up"),
    }
    asked = []

    def ask(_directory: Path, verb: str, *words: str, limit_s: float = 0.0) -> dict[str, Any]:
        if verb == Verb.HEAL:
            raise CommandError("heal needs a cluster that was started with --links")
        if verb != "status":
            asked.append((verb, *words))
        return status

    monkeypatch.setattr(fabric, "ask", ask)
    local = LocalFabric(Path("cluster"))
    status |= {
        "nameservers": rows(namesrv="down"),
        "nodes": rows(n0="down", n1="down", n2="paused", n3="paused", n4="up"),
    }
    await local.mend()
    assert asked == [("start", "namesrv"), ("start", "n0"), ("resume", "n3")]


async def test_a_command_that_failed_is_undone_and_one_that_cannot_be_undone_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(described, "_EFFECT_LIMIT_S", 0.0)
    told = tmp_path / "told"
    cluster = DescribedFabric(
        {
            "namesrv": "127.0.0.1:1",
            "nodes": [{"name": "a b", "address": "127.0.0.1:1"}, {"name": "c", "address": "127.0.0.1:1"}],
            "verbs": {"kill": "false", "start": f"printf '%s\\n' >>{told} start", "heal": f"echo heal >>{told}"},
        }
    )
    try:
        for name in ("a b", "c"):
            with pytest.raises(CommandError, match="exit 1"):
                await cluster.act(Verb.KILL, name)
        with pytest.raises(CommandError, match=r"not everything is undone: .*a b answers; .*c answers"):
            await cluster.mend()
    finally:
        await cluster.aclose()
    assert told.read_text() == "start\na b\nstart\nc\nheal\n"


def test_a_description_with_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text('{"namesrv": "127.0.0.1:1", "mode": "bogus", "nodes": [], "verbs": {}}')
    with pytest.raises(UsageError, match="'bogus' is not a valid ClusterMode"):
        attach(path)


def test_a_node_whose_template_has_ended_has_ended_by_sigkill() -> None:

    ours, theirs = socket.socketpair()
    theirs.close()
    template = Template(ours, 2)
    assert ForkedNode(template, 3).wait() == -9
    with pytest.raises(CommandError, match="process 2, which starts the nodes, has ended"):
        template.start([], Path("log"))
    ours.close()
