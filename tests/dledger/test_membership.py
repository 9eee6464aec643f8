"""Members whose `dLegerPeers` differ do not meet, and a group whose members change loses nothing acknowledged."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from dledger.config import parse_peers
from dledger.core.messages import HardState
from dledger.log.hard_state import read_hard_state, write_hard_state
from dledger.log.membership import note_members
from store.errors import DiskFullError
from store.replicated_log import AppendReceipt
from tests.dledger.conftest import RaftCluster, until

Make = Callable[..., RaftCluster]


async def test_a_rolling_change_from_five_members_to_three_loses_nothing(raft_cluster: Make) -> None:
    cluster = raft_cluster(5)
    three = parse_peers(";".join(cluster.peers.split(";")[:3]))
    await cluster.start()
    await cluster.elected()
    await cluster.caught_up()
    await cluster.sound()
    await cluster.stop("n0", "n1")
    left = await cluster.elected()
    assert isinstance(await cluster.append(left, b"acknowledged by n2, n3, n4"), AppendReceipt)
    await cluster.caught_up("n2")
    await cluster.stop("n2")
    await cluster.start("n0", "n1", peers=three)
    await asyncio.sleep(3 * cluster.config("n0").timing.election_max_ms / 1000)
    assert cluster.leader() is None, "n0 and n1 cannot know what the group of five acknowledged"
    assert not cluster.logs["n0"].readiness().is_ready
    await cluster.start("n2", peers=three)
    await until(lambda: cluster.leader() in ("n0", "n1", "n2"), "a leader of three")
    new = cluster.leader()
    assert new is not None
    assert isinstance(await cluster.append(new, b"acknowledged by three"), AppendReceipt)
    assert cluster.bodies(new) == [b"acknowledged by n2, n3, n4", b"acknowledged by three"]


async def test_members_that_disagree_about_the_group_refuse_each_other(
    raft_cluster: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    cluster = raft_cluster(3)
    two = parse_peers(";".join(cluster.peers.split(";")[:2]))
    await cluster.start("n0", peers=two)
    await cluster.start("n1", "n2")
    await until(lambda: "its dLegerPeers is 'n0;n1', expected 'n0;n1;n2'" in caplog.text, "n1 names what differs")
    await until(lambda: "its dLegerPeers is 'n0;n1;n2', expected 'n0;n1'" in caplog.text, "n0 names what differs")
    for node_id in ("n0", "n1"):
        families = {family.name: family for family in cluster.logs[node_id].metrics()}
        assert all(row and row[1] for row in families["ledgermq_refused_peers_total"].rows)


def test_a_changed_membership_makes_the_node_recover_before_it_is_noted(tmp_path: Path) -> None:
    write_hard_state(tmp_path, HardState(4, "n1"))
    assert note_members(tmp_path, ["n1", "n0", "n2"]) is None
    assert note_members(tmp_path, ["n0", "n2", "n1"]) is None, "order does not matter"
    assert read_hard_state(tmp_path) == HardState(4, "n1")
    doubt = note_members(tmp_path, ["n0", "n1"])
    assert doubt is not None and "n0;n1;n2" in doubt
    assert read_hard_state(tmp_path) == HardState(4, "n1", recovering=True)
    assert note_members(tmp_path, ["n0", "n1"]) is None


def test_without_room_to_note_a_changed_membership_the_node_recovers_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hard_state(tmp_path, HardState(4, "n1"))
    note_members(tmp_path, ["n0", "n1", "n2"])

    def refuse(path: Path, _: bytes) -> None:
        raise DiskFullError(path, 100)

    monkeypatch.setattr("dledger.log.membership.write_durably", refuse)
    with pytest.raises(DiskFullError):
        note_members(tmp_path, ["n0", "n1"])
    assert read_hard_state(tmp_path) == HardState(4, "n1", recovering=True)
