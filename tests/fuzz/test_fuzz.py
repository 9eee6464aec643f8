"""Fuzzing: fixed seeds and a fresh one in every run (`make fuzz` for longer); and planted faults, which must be found.

A failure prints the words that run its case again.
"""

import math
import os
import random
import secrets
import struct
import zlib
from pathlib import Path
from typing import Any, Final

import pytest

from cli.main import main
from ledgermq.remoting.codec.frame import FrameParser
from nameserver import register_body
from tests.fuzz import decoders, peers
from tests.fuzz.campaign import Campaign
from tests.fuzz.cases import FuzzError
from tests.fuzz.groups import GroupCampaign
from tests.fuzz.long import CASES, LongCampaign
from tests.fuzz.long import CONF as LONG_CONF
from tests.fuzz.mutants import NODE_FAULTS
from tests.fuzz.nodes import Group, NodePair, TlsPair
from tests.fuzz.rights import RightsCampaign, RightsPair
from tests.fuzz.tls import TlsCampaign
from tests.limits import IS_WHOLE

_PLANTED_CASES: Final = 3000
"""Most cases to find a planted fault in; seed 1 finds the rarest within some hundred."""
_FRESH: Final = secrets.randbits(32)
_ACL: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "authenticationWhitelist": "10,11,310,320",
    "authorizationWhitelist": "10,11,310,320",
    "initAuthenticationUser": '{"username":"root","password":"secret-of-root"}',
}

_OF_NODES: Final = [  # the ids are alike in all workers
    pytest.param(1, {}, id="fixed"),
    pytest.param(_FRESH, _ACL, id="fresh-users"),
    pytest.param(_FRESH, {}, id="fresh"),
]


@pytest.mark.parametrize("seed", [1, _FRESH], ids=["fixed", "fresh"])
def test_no_input_makes_a_decoder_fail_hang_or_grow(seed: int) -> None:
    count, failures = decoders.run(seed, 1200, 60)
    print(f"seed {seed}: {count} cases")
    if failures:
        raise FuzzError(failures)


@pytest.mark.cluster
@pytest.mark.parametrize(("seed", "conf"), _OF_NODES[: 3 if IS_WHOLE else 2])
def test_no_input_makes_a_node_fail_hang_or_grow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int, conf: dict[str, str]
) -> None:
    with NodePair(tmp_path, conf) as pair:
        count, failures = Campaign(pair, seed).run(170, 90)
    print(f"seed {seed}: {count} cases")
    if failures:
        raise FuzzError(failures)
    assert [node.process.returncode for node in pair.nodes] == [0, 0]
    assert main(["store", "check", str(tmp_path / "store")]) == 0, capsys.readouterr().out


@pytest.mark.cluster
def test_no_input_makes_the_peers_port_fail_hang_or_grow(tmp_path: Path) -> None:
    count, failures = peers.run(tmp_path, _FRESH, 200, 90)
    print(f"seed {_FRESH}: {count} cases")
    if failures:
        raise FuzzError(failures)


@pytest.mark.cluster
def test_no_input_behind_a_handshake_makes_a_node_fail_hang_or_grow(tmp_path: Path) -> None:
    with TlsPair(tmp_path) as pair:
        count, failures = TlsCampaign(pair, _FRESH).run(100, 90)
    print(f"seed {_FRESH}: {count} cases")
    if failures:
        raise FuzzError(failures)
    assert [node.process.returncode for node in pair.nodes] == [0, 0]


@pytest.mark.cluster
def test_no_input_makes_a_formed_group_fail_hang_or_grow(tmp_path: Path) -> None:
    with Group(tmp_path) as group:
        count, failures = GroupCampaign(group, _FRESH).run(80, 90)
    print(f"seed {_FRESH}: {count} cases")
    if failures:
        raise FuzzError(failures)
    assert [node.process.returncode for node in group.nodes] == [0, 0, 0, 0]


@pytest.mark.cluster
def test_nobody_reads_or_changes_what_belongs_to_another(tmp_path: Path) -> None:
    with RightsPair(tmp_path) as pair:
        count, failures = RightsCampaign(pair, _FRESH).run(300, 90)
    print(f"seed {_FRESH}: {count} cases")
    if failures:
        raise FuzzError(failures)


@pytest.mark.cluster
@pytest.mark.timeout(900)  # each kind has its turn, however long they take
def test_no_long_list_and_no_wide_topic_costs_a_node_much(tmp_path: Path) -> None:
    with RightsPair(tmp_path, LONG_CONF) as pair:
        _, failures = LongCampaign(pair, 1).run(CASES, math.inf)
    if failures:
        raise FuzzError(failures)


@pytest.mark.cluster
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.environ.get("FUZZ") != "all", reason="FUZZ=all: the faults of nodes take some minutes")
@pytest.mark.parametrize(
    ("fault", "nodes", "campaign"),
    [
        ("every-right", RightsPair, RightsCampaign),
        ("tls-error", TlsPair, TlsCampaign),
        ("peer-error", Group, GroupCampaign),
    ],
    ids=["every-right", "tls-error", "peer-error"],
)
def test_a_fault_planted_in_a_handshake_in_a_group_or_in_the_checks_of_rights_is_found(
    tmp_path: Path, fault: str, nodes: Any, campaign: Any
) -> None:
    with nodes(tmp_path, python=("-m", "tests.fuzz.mutants", fault)) as pair:
        _, failures = campaign(pair, 1, limit_s=8).run(_PLANTED_CASES, math.inf)
    assert failures, f"{fault} is not found"


@pytest.mark.cluster
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", NODE_FAULTS if os.environ.get("FUZZ") == "all" else ["key-error", "growth"])
def test_a_fault_planted_in_a_node_is_found(tmp_path: Path, fault: str) -> None:
    with NodePair(tmp_path, python=("-m", "tests.fuzz.mutants", fault)) as pair:
        _, failures = Campaign(pair, 1, limit_s=8).run(_PLANTED_CASES, math.inf)
    assert failures, f"{fault} is not found"


def _trusted(self: FrameParser, held: bytearray, start: int) -> int:
    """A parser that waits for as many bytes as the frame says it has."""
    return 4 + struct.unpack_from(">i", held)[0] if len(held) >= 8 else 8


def _unbounded(body: bytes | memoryview, most: int) -> bytes:
    return zlib.decompress(body)


_parse = FrameParser._parse
_kept: list[bytearray] = []


def _keeping(self: FrameParser, *arguments: Any) -> int:
    """Keeps something of every frame."""
    _kept.append(bytearray(b"x" * (1 << 19)))
    return _parse(self, *arguments)


@pytest.mark.parametrize(
    ("owner", "name", "fault", "cases"),
    [
        (FrameParser, "_frame_size", _trusted, 20_000),
        (register_body, "_inflate", _unbounded, 20_000),
        (FrameParser, "_parse", _keeping, 1200),
    ],
    ids=["a stated length is believed", "what inflates is not bounded", "memory grows"],
)
def test_a_fault_planted_in_a_decoder_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fault: Any, cases: int
) -> None:
    monkeypatch.setattr(owner, name, fault)
    _, failures = decoders.run(random.Random(1).randrange(100), cases, 60, failures_max=1)
    _kept.clear()
    assert failures
