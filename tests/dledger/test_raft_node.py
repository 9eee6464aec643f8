"""The node's order of steps, and what it does when a port says no."""

import pytest

from dledger.core.errors import MembershipError
from dledger.core.messages import AppendRequest
from dledger.core.settings import RaftSettings
from tests.dledger.core.core_script import Script
from tests.dledger.core.core_strategies import span


@pytest.fixture
def script() -> Script:
    """Three nodes, n1 leads and is idle."""
    script = Script()
    script.run("group", ["n1", "n2", "n3"], {})
    script.run("pass", ["1500"], {})
    return script


def test_entries_that_cannot_be_written_are_withdrawn_and_the_next_ones_take_their_place(script: Script) -> None:
    node = script.members["n1"].node
    first_index, _ = node.propose(3)
    node.withdraw(first_index)
    assert node.propose(1)[0] == first_index


def test_several_proposals_of_one_turn_go_out_as_one_span(script: Script) -> None:
    member = script.members["n1"]
    for _ in range(3):
        _, term = member.node.propose(1)
        member.log.write(term, 1)
    script.run("settle", [], {})
    member.node.proposed()
    assert [message.span.last_index for _, _, message in script.network if message.span] == [3, 3]  # type: ignore[union-attr]  # append requests only


def test_a_flush_report_of_an_earlier_generation_is_not_believed(script: Script) -> None:
    member = script.members["n2"]
    script.run("propose", ["n1", "2"], {})
    script.run("deliver", [], {})
    member.log._generation += 1
    script.run("disk", ["n2"], {})
    assert member.node.status().durable_index == 0


def test_a_full_disk_under_a_new_leader_makes_it_step_down(script: Script) -> None:
    script.run("full", ["n2"], {})
    script.run("transfer", ["n1", "n2"], {})
    printed = script.run("settle", [], {})
    assert "n2 is leader" not in printed
    script.run("full", ["n2"], {"over": "yes"})
    assert "writable" in script.run("pass", ["3000"], {})


def test_a_log_that_denies_what_is_committed_takes_the_node_out_of_the_group(script: Script) -> None:
    script.run("propose", ["n1", "2"], {})
    script.run("settle", [], {})
    script.run("pass", ["200"], {})
    member = script.members["n3"]
    member.node.on_message("n2", AppendRequest(9, "n2", 0, 1, span(9, 1, 1), 1, -1, 1))
    assert member.node.raft.is_halted
    assert member.log.last_index == 2
    printed = script.run("pass", ["3000"], {})
    assert "n3 commits" not in printed and "n3 is pre_candidate" not in printed


def test_a_read_is_refused_by_who_does_not_lead_and_failed_when_leadership_goes(script: Script) -> None:
    assert "NotLeaderError" in script.run("read", ["n2"], {})
    script.run("isolate", ["n1"], {})
    script.run("read", ["n1"], {})
    assert "n1 read index None" in script.run("pass", ["1500"], {})


def test_messages_of_strangers_are_ignored_and_counted(script: Script) -> None:
    script.run("elapse", ["100", "n1"], {})
    [(_, _, message), *_] = script.network
    before = script.members["n2"].node.status()
    script.members["n2"].node.on_message("n9", message)
    script.members["n2"].node.on_message("n3", message)  # n3 speaks in n1's name
    after = script.members["n2"].node.status()
    assert after.ignored_count == before.ignored_count + 2


@pytest.mark.parametrize(
    ("node_id", "peers", "priorities", "named"),
    [
        ("n1", ("n1", "n2", "n1"), {}, "n1"),
        ("n9", ("n1", "n2"), {}, "n9"),
        ("n1", (), {}, "n1"),
        ("n1", ("n1", ""), {}, "empty"),
        ("n1", ("n1", "n2"), {"n7": 1}, "n7"),
    ],
)
def test_a_membership_that_cannot_be_is_refused_by_name(
    node_id: str, peers: tuple[str, ...], priorities: dict[str, int], named: str
) -> None:
    with pytest.raises(MembershipError, match=named):
        RaftSettings(node_id=node_id, peers=peers, priorities=priorities)


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_ms": 0},
        {"heartbeat_ms": 400},
        {"election_max_ms": 600},
        {"window_bytes": 10},
        {"span_limit_bytes": 0},
        {"tick_slack_ms": 0},
    ],
)
def test_times_and_sizes_out_of_relation_are_refused_by_name(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)) if "heartbeat_ms" not in wrong else "heartbeat_ms"):
        RaftSettings(node_id="n1", peers=("n1",), **wrong)  # type: ignore[arg-type]  # only times and sizes
