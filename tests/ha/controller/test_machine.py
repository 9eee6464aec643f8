"""The controllers' state machine: each rule by an example, and what holds after any commands."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.controller.core.commands import (
    BY_CONTROLLER,
    AlterSet,
    Clean,
    Confirm,
    Elect,
    GrantId,
    Register,
    StateCommand,
)
from ha.controller.core.machine import REMEMBERED_MAX, ControllerMachine, decode_command, encode_command
from ha.controller.core.model import GROUPS_MAX, REPLICAS_MAX, Candidate, DamagedStateError, Group
from ha.controller.core.outcome import CommandOutcome
from ledgermq.remoting.refusal import Cause

A = "broker-a"


class Desk:
    """A machine to which commands are given as the log would."""

    def __init__(self) -> None:
        self.machine = ControllerMachine()
        self._numbers = itertools.count()

    def do(self, command: StateCommand) -> CommandOutcome:
        return self.machine.apply(encode_command(("test", next(self._numbers)), command))

    @property
    def group(self) -> Group:
        return self.machine.groups[A]

    def register(self, count: int) -> None:
        """Replicas 1 to `count`."""
        for broker_id in range(1, count + 1):
            granted = self.do(GrantId(name=A, cluster="c", broker_id=broker_id, check_code=code(broker_id)))
            assert granted.cause is None

    def elect(self, asker: int = BY_CONTROLLER, alive: Any = (), **others: Any) -> CommandOutcome:
        given = {"designated": False, "unclean": False} | others
        candidates = tuple(one if isinstance(one, Candidate) else Candidate(one, 1, 100, 5) for one in alive)
        return self.do(Elect(name=A, asker=asker, alive=candidates, **given))

    def alter(self, wanted: set[int], alive: set[int] | None = None, **others: Any) -> CommandOutcome:
        group = self.group
        now: dict[str, Any] = {
            "master_id": group.master_id or 0,
            "master_epoch": group.master_epoch,
            "set_epoch": group.set_epoch,
        }
        living = frozenset(group.replicas if alive is None else alive)
        return self.do(AlterSet(name=A, wanted=frozenset(wanted), alive=living, **(now | others)))


def code(broker_id: int) -> str:
    return f"127.0.0.1:{10000 + broker_id};170000000{broker_id}"


@pytest.fixture
def three() -> Desk:
    """Three replicas, all in sync; 1 is master at epoch 1, the set has epoch 2."""
    desk = Desk()
    desk.register(3)
    assert desk.elect(1).cause is None
    assert desk.alter({1, 2, 3}).cause is None
    return desk


# ---- ids


def test_ids_are_given_from_one_on_and_again_to_who_has_them() -> None:
    desk = Desk()
    desk.register(2)
    desk.register(2)
    assert (desk.group.next_id, sorted(desk.group.replicas)) == (3, [1, 2])
    assert desk.group.address_of(2) == "127.0.0.1:10002"


def test_an_id_of_another_is_refused() -> None:
    desk = Desk()
    desk.register(1)
    other = desk.do(GrantId(name=A, cluster="c", broker_id=1, check_code="127.0.0.9:1;5"))
    assert (other.cause, other.remark) == (
        Cause.CONTROLLER_ID_INVALID,
        "Fail to apply brokerId: 1 in broker-set: broker-a",
    )
    assert desk.group.replicas[1].check_code == code(1)


def test_the_first_id_of_a_name_is_one() -> None:
    desk = Desk()
    refused = desk.do(GrantId(name=A, cluster="c", broker_id=2, check_code=code(2)))
    assert refused.cause is Cause.CONTROLLER_ID_INVALID
    assert desk.machine.groups == {}


def test_an_id_below_one_is_refused() -> None:
    desk = Desk()
    desk.register(1)
    assert desk.do(GrantId(name=A, cluster="c", broker_id=0, check_code="x;1")).cause is Cause.CONTROLLER_ID_INVALID


def test_replicas_of_a_name_and_names_have_a_limit() -> None:
    desk = Desk()
    desk.register(REPLICAS_MAX)
    further = GrantId(name=A, cluster="c", broker_id=REPLICAS_MAX + 1, check_code="x;1")
    assert desk.do(further).cause is Cause.CONTROLLER_ID_INVALID
    others = {f"n{number}": Group(cluster="c", name=f"n{number}") for number in range(GROUPS_MAX - 1)}
    desk.machine.groups = {**desk.machine.groups, **others}
    assert desk.do(GrantId(name="more", cluster="c", broker_id=1, check_code="x;1")).cause is Cause.SYSTEM_ERROR
    assert len(desk.machine.groups) == GROUPS_MAX
    assert desk.do(Register(name=A, broker_id=1, address="h:1")).cause is None


def test_a_broker_that_moved_gets_its_new_address() -> None:
    desk = Desk()
    desk.register(1)
    assert desk.do(Register(name=A, broker_id=1, address="127.0.0.2:1")).cause is None
    assert desk.group.address_of(1) == "127.0.0.2:1"


@pytest.mark.parametrize(("name", "broker_id"), [("other", 1), (A, 2)])
def test_who_has_no_id_cannot_register(name: str, broker_id: int) -> None:
    desk = Desk()
    desk.register(1)
    refused = desk.do(Register(name=name, broker_id=broker_id, address="h:1"))
    assert refused.cause is Cause.CONTROLLER_NOT_REGISTERED


# ---- elections


def test_the_first_election_is_won_by_who_asks() -> None:
    desk = Desk()
    desk.register(2)
    won = desk.elect(2)
    assert won.group == desk.group
    assert (desk.group.master_id, desk.group.master_epoch) == (2, 1)
    assert (desk.group.in_sync, desk.group.set_epoch) == (frozenset({2}), 1)


def test_a_first_election_without_a_broker_that_asks_does_not_end_the_first_election() -> None:
    desk = Desk()
    desk.register(2)
    assert desk.elect(alive=[1, 2]).cause is Cause.CONTROLLER_MASTER_NOT_AVAILABLE
    assert desk.group.master_epoch == 0
    assert desk.elect(1).cause is None


def test_who_is_not_registered_is_not_elected() -> None:
    desk = Desk()
    assert desk.elect(1).cause is Cause.CONTROLLER_NOT_REGISTERED
    desk.register(1)
    assert desk.elect(2).cause is Cause.CONTROLLER_INVALID_REPLICAS


def test_a_living_master_stays_whoever_asks(three: Desk) -> None:
    before = three.group
    for asker in (BY_CONTROLLER, 1, 2):
        kept = three.elect(asker, alive=[1, 2, 3])
        assert (kept.cause, kept.group) == (Cause.CONTROLLER_MASTER_STILL_EXISTS, before)


def test_a_dead_follower_changes_no_master(three: Desk) -> None:
    before = three.group
    assert three.elect(alive=[1, 3], seen_epoch=1).cause is Cause.CONTROLLER_MASTER_STILL_EXISTS
    assert three.group == before


@pytest.mark.parametrize(
    ("second", "third", "winner"),
    [
        ((1, 100, 5), (2, 10, 5), 3),  # the newer epoch
        ((2, 100, 5), (2, 100 + (1 << 31), 5), 3),  # the longer log, by 2 GiB, which RocketMQ gets wrong
        ((2, 100 + (1 << 33), 5), (2, 100, 1), 2),
        ((2, 100, 5), (2, 100, 4), 3),  # the smaller number
        ((2, 100, 5), (2, 100, 5), 2),
    ],
)
def test_of_the_living_members_the_best_wins(
    three: Desk, second: tuple[int, int, int], third: tuple[int, int, int], winner: int
) -> None:
    won = three.elect(alive=[Candidate(2, *second), Candidate(3, *third)], seen_epoch=1)
    assert won.cause is None
    assert (three.group.master_id, three.group.master_epoch) == (winner, 2)
    assert (three.group.in_sync, three.group.set_epoch) == (frozenset({winner}), 3)


def doubtful(broker_id: int, epoch: int) -> Candidate:
    """A replica with a long log whose power was cut when it knew this epoch."""
    return Candidate(broker_id, 1, 999, 1, epoch)


def test_a_log_in_doubt_is_no_candidate_while_another_is_sound_or_unknown(three: Desk) -> None:
    assert three.elect(alive=[doubtful(2, 1)], seen_epoch=1).cause is Cause.CONTROLLER_MASTER_NOT_AVAILABLE
    assert three.elect(2, alive=[doubtful(2, 1)], designated=True).cause is Cause.CONTROLLER_ELECTION_FAILED
    assert three.elect(2, alive=[doubtful(2, 1), doubtful(3, 1)]).cause is Cause.CONTROLLER_ELECTION_FAILED
    assert three.elect(2, alive=[doubtful(2, 1), 3]).cause is None
    assert three.group.master_id == 3


def test_when_the_whole_set_lost_its_power_the_longest_log_wins(three: Desk) -> None:
    assert three.elect(1, alive=[doubtful(1, 1), Candidate(2, 1, 1000, 5, 1), doubtful(3, 1)], new_process=True)
    assert three.group.master_id == 2
    assert three.elect(2, alive=[doubtful(1, 1), doubtful(2, 1), doubtful(3, 1)], new_process=True).cause is None
    assert three.group.master_id == 2, "it asks once more, since it cannot know that it was elected as one in doubt"


def test_a_member_that_does_not_come_back_after_the_power_cut_of_all_is_forgotten_before_others_lead(
    three: Desk,
) -> None:
    back = [doubtful(1, 1), doubtful(3, 1)]
    assert three.elect(1, alive=back, new_process=True).cause is Cause.CONTROLLER_ELECTION_FAILED
    assert three.do(clean({2}, {1, 3})).cause is None
    assert three.elect(1, alive=back, new_process=True).cause is None


def test_one_that_was_elected_while_it_was_down_and_lost_its_power_has_less_than_others(three: Desk) -> None:
    assert three.elect(alive=[Candidate(2, 1, 999, 1), 3], seen_epoch=1).cause is None
    assert (three.group.master_id, three.group.in_sync) == (2, frozenset({2}))
    again = three.elect(2, alive=[doubtful(2, 1), doubtful(1, 1)], new_process=True)
    assert again.cause is Cause.CONTROLLER_ELECTION_FAILED
    assert three.elect(2, alive=[doubtful(2, 1), doubtful(1, 1), 3], new_process=True).cause is None
    assert three.group.master_id == 3, "the sound one of the set before"


def test_several_masters_in_a_row_that_never_began_leave_the_set_before_them(three: Desk) -> None:
    three.elect(alive=[Candidate(2, 1, 999, 1), 3], seen_epoch=1)
    assert three.elect(2, alive=[2], new_process=True).cause is None, "the same one, elected again"
    assert three.elect(2, alive=[doubtful(2, 1), 3], new_process=True).cause is None
    assert three.group.master_id == 3
    assert three.elect(3, alive=[1, doubtful(2, 1), doubtful(3, 1)], new_process=True).cause is None
    assert three.group.master_id == 1, "neither 2 nor 3 has begun"
    assert three.elect(1, alive=[doubtful(1, 4), 2, 3], new_process=True).cause is None
    assert three.group.master_id == 1, "1 began, whatever was acknowledged since is in its log alone"


def test_a_master_that_proposed_a_set_has_begun(three: Desk) -> None:
    three.elect(alive=[2, 3], seen_epoch=1)
    three.alter({2, 3})
    three.elect(alive=[3], seen_epoch=2)
    assert three.elect(3, alive=[1, doubtful(3, 2)], new_process=True).cause is Cause.CONTROLLER_ELECTION_FAILED
    assert three.elect(3, alive=[1, 2, doubtful(3, 2)], new_process=True).cause is None
    assert three.group.master_id == 2, "1 lacks what 2 and 3 acknowledged"


def test_who_is_forgotten_is_no_member_of_the_set_before(three: Desk) -> None:
    three.elect(alive=[2, 3], seen_epoch=1)
    three.do(clean({3}))
    three.do(GrantId(name=A, cluster="c", broker_id=3, check_code=code(7)))
    assert three.elect(2, alive=[doubtful(2, 1), 3], new_process=True).cause is Cause.CONTROLLER_ELECTION_FAILED


def test_a_master_alone_in_its_set_that_had_begun_is_believed_after_a_power_cut(three: Desk) -> None:
    three.elect(alive=[Candidate(2, 1, 999, 1), 3], seen_epoch=1)
    assert three.elect(2, alive=[doubtful(2, 2), 1, 3], new_process=True).cause is None
    assert three.group.master_id == 2


def test_without_anybody_in_the_set_nobody_of_the_set_before_is_elected(three: Desk) -> None:
    three.alter({1})
    cleaned = three.do(Clean(name=A, ids=frozenset({1}), even_living=True, alive=frozenset({2, 3})))
    assert cleaned.cause is None and three.group.in_sync == frozenset()
    assert three.elect(2, alive=[2, 3]).cause is Cause.CONTROLLER_ELECTION_FAILED, "it may lack what 1 acknowledged"


def test_the_set_before_an_election_is_kept_in_snapshots(three: Desk) -> None:
    three.elect(alive=[2, 3], seen_epoch=1)
    assert Group.from_json(three.group.to_json()) == three.group
    assert three.group.former == frozenset({1, 2, 3})


def test_a_designated_member_wins_over_a_living_master(three: Desk) -> None:
    assert three.elect(3, alive=[1, 2, 3], designated=True).cause is None
    assert three.group.master_id == 3


def test_a_designated_broker_that_is_no_candidate_is_not_replaced_by_another(three: Desk) -> None:
    three.alter({1, 2})
    before = three.group
    assert three.elect(3, alive=[1, 2, 3], designated=True).cause is Cause.CONTROLLER_ELECTION_FAILED
    assert three.group == before


def test_nobody_designated_is_no_designation(three: Desk) -> None:
    kept = three.elect(BY_CONTROLLER, alive=[1, 2, 3], designated=True)
    assert kept.cause is Cause.CONTROLLER_MASTER_STILL_EXISTS


def test_an_unclean_election_is_refused_unless_it_is_enabled(three: Desk) -> None:
    three.alter({1})
    assert three.elect(alive=[2, 3], seen_epoch=1).cause is Cause.CONTROLLER_MASTER_NOT_AVAILABLE
    assert (three.group.master_id, three.group.master_epoch, three.group.in_sync) == (None, 2, frozenset({1}))
    assert three.elect(2, alive=[2, 3]).cause is Cause.CONTROLLER_ELECTION_FAILED
    assert three.elect(2, alive=[Candidate(2, 1, 5, 5), Candidate(3, 1, 6, 5)], unclean=True).cause is None
    assert (three.group.master_id, three.group.master_epoch) == (3, 3)


def test_even_an_unclean_election_prefers_the_set(three: Desk) -> None:
    three.alter({1, 2})
    assert three.elect(alive=[2, Candidate(3, 9, 999, 1)], unclean=True, seen_epoch=1).cause is None
    assert three.group.master_id == 2


def test_a_lost_master_is_noted_once(three: Desk) -> None:
    three.alter({1})
    assert three.elect(seen_epoch=1).cause is Cause.CONTROLLER_MASTER_NOT_AVAILABLE
    assert three.elect(seen_epoch=2).cause is Cause.CONTROLLER_MASTER_NOT_AVAILABLE
    assert three.group.master_epoch == 2


def test_the_lost_master_that_returns_is_elected_again(three: Desk) -> None:
    three.alter({1})
    three.elect(seen_epoch=1)
    assert three.elect(1, alive=[1, 2]).cause is None
    assert (three.group.master_id, three.group.master_epoch) == (1, 3)


def test_an_administrator_who_names_nobody_takes_no_master_away(three: Desk) -> None:
    three.alter({1})
    assert three.elect(alive=[], designated=True).cause is Cause.CONTROLLER_MASTER_NOT_AVAILABLE
    assert three.group.master_id == 1


def test_a_decision_on_an_old_epoch_is_void(three: Desk) -> None:
    three.elect(2, alive=[2, 3], designated=True)
    before = three.group
    late = three.elect(alive=[3], seen_epoch=1)
    assert (late.cause, three.group) == (Cause.CONTROLLER_FENCED_MASTER_EPOCH, before)


def test_a_new_process_of_the_master_is_a_candidate_like_the_others(three: Desk) -> None:
    short, long = Candidate(1, 1, 80, 5), Candidate(2, 1, 100, 5)
    assert three.elect(1, alive=[short, long]).cause is Cause.CONTROLLER_MASTER_STILL_EXISTS
    assert three.elect(2, alive=[short, long], new_process=True).cause is Cause.CONTROLLER_MASTER_STILL_EXISTS
    assert three.elect(1, alive=[short, long], new_process=True).cause is None
    assert (three.group.master_id, three.group.master_epoch) == (2, 2), "the log of 1 has lost its end"
    assert three.elect(2, alive=[short, long], new_process=True).cause is None
    assert (three.group.master_id, three.group.master_epoch, three.group.in_sync) == (2, 3, frozenset({2}))


# ---- the in-sync set


def test_a_set_that_is_renewed_makes_earlier_proposals_void(three: Desk) -> None:
    epoch = three.group.set_epoch
    assert three.alter({1, 2, 3}, renew=True).cause is None
    assert (three.group.in_sync, three.group.set_epoch) == (frozenset({1, 2, 3}), epoch + 1)
    assert three.alter({1, 2}, set_epoch=epoch).cause is Cause.CONTROLLER_FENCED_SET_EPOCH


def test_two_proposals_for_one_epoch_make_one_set(three: Desk) -> None:
    epoch = three.group.set_epoch
    assert three.alter({1, 2}, set_epoch=epoch).cause is None
    late = three.alter({1, 3}, set_epoch=epoch)
    assert late.cause is Cause.CONTROLLER_FENCED_SET_EPOCH
    assert (three.group.in_sync, three.group.set_epoch) == (frozenset({1, 2}), epoch + 1)


@pytest.mark.parametrize(
    ("wanted", "alive", "others", "cause"),
    [
        ({1, 2, 3}, {1, 2, 3}, {"master_id": 2}, Cause.CONTROLLER_ALTER_FAILED),  # the same set: before all else
        ({1, 2}, {1, 2}, {"master_id": 2, "master_epoch": 9}, Cause.CONTROLLER_INVALID_MASTER),
        ({1, 2}, {1, 2}, {"master_epoch": 2, "set_epoch": 9}, Cause.CONTROLLER_FENCED_MASTER_EPOCH),
        ({1, 9}, {1, 9}, {"set_epoch": 9}, Cause.CONTROLLER_FENCED_SET_EPOCH),
        ({1, 9}, {1, 9}, {}, Cause.CONTROLLER_INVALID_REPLICAS),
        ({1, 2}, {1}, {}, Cause.CONTROLLER_BROKER_NOT_ALIVE),
        ({1, 2}, {2}, {}, Cause.CONTROLLER_BROKER_NOT_ALIVE),
        ({2, 3}, {1, 2, 3}, {}, Cause.CONTROLLER_ALTER_FAILED),
    ],
)
def test_a_set_is_refused(three: Desk, wanted: set[int], alive: set[int], others: dict[str, int], cause: Cause) -> None:
    before = three.group
    assert three.alter(wanted, alive, **others).cause is cause
    assert three.group == before


def test_a_set_of_an_unknown_name_is_refused() -> None:
    alter = AlterSet(name=A, master_id=1, master_epoch=1, set_epoch=1, wanted=frozenset({1}), alive=frozenset({1}))
    assert Desk().do(alter).cause is Cause.CONTROLLER_ALTER_FAILED


def test_after_its_master_is_lost_a_group_takes_no_set(three: Desk) -> None:
    three.alter({1})
    three.elect(seen_epoch=1)
    assert three.alter({1, 2}, master_id=1).cause is Cause.CONTROLLER_INVALID_MASTER


# ---- cleaning


def clean(ids: set[int], alive: set[int] | None = None, *, even_living: bool = False) -> Clean:
    return Clean(name=A, ids=frozenset(ids), alive=frozenset(alive or ()), even_living=even_living)


def test_cleaning_makes_a_new_epoch_of_a_set_that_shrinks(three: Desk) -> None:
    epoch = three.group.set_epoch
    assert three.do(clean({3}, {1, 2})).cause is None
    assert (three.group.in_sync, three.group.set_epoch) == (frozenset({1, 2}), epoch + 1)
    assert 3 not in three.group.replicas


def test_what_lives_is_cleaned_only_when_told(three: Desk) -> None:
    before = three.group
    assert three.do(clean({2, 3}, {2})).remark == "Broker [broker-a,  2] is still alive, clean up failure"
    assert three.do(clean(set())).remark == "Broker broker-a is still alive, clean up failure"
    assert three.group == before
    assert three.do(clean({2}, {2}, even_living=True)).cause is None
    assert sorted(three.group.replicas) == [1, 3]


def test_a_master_that_is_cleaned_is_master_no_more(three: Desk) -> None:
    assert three.do(clean({1})).cause is None
    assert (three.group.master_id, three.group.master_epoch, three.group.in_sync) == (None, 2, frozenset({2, 3}))
    assert three.elect(2, alive=[2, 3]).cause is None


def test_a_name_without_replicas_is_gone(three: Desk) -> None:
    assert three.do(clean({1, 2, 3})).cause is None
    assert three.machine.groups == {}
    assert three.do(clean(set(), even_living=True)).cause is Cause.CONTROLLER_INVALID_CLEAN


def test_ids_are_not_given_again(three: Desk) -> None:
    three.do(clean({3}))
    assert three.group.next_id == 4


# ---- repeated commands, and bytes


def test_a_repeated_command_gets_its_first_outcome_and_changes_nothing() -> None:
    machine = ControllerMachine()
    first = encode_command(("n0", 1), GrantId(name=A, cluster="c", broker_id=1, check_code=code(1)))
    outcome = machine.apply(first)
    machine.apply(encode_command(("n0", 2), clean({1})))
    assert machine.apply(first) == outcome
    assert machine.groups == {}


def test_the_last_outcomes_are_remembered() -> None:
    machine = ControllerMachine()
    for number in range(REMEMBERED_MAX + 1):
        machine.apply(encode_command(("n0", number), GrantId(name=A, cluster="c", broker_id=1, check_code=code(1))))
    machine.apply(encode_command(("n0", -1), clean({1})))
    machine.apply(encode_command(("n0", 5), GrantId(name=A, cluster="c", broker_id=1, check_code=code(1))))
    assert machine.groups == {}
    machine.apply(encode_command(("n0", 0), GrantId(name=A, cluster="c", broker_id=1, check_code=code(1))))
    assert A in machine.groups


_IDS = st.integers(1, 4)
_SETS = st.frozensets(_IDS)
_NAMES = st.sampled_from(["a", "b"])
_EPOCHS = st.integers(0, 6)
_CANDIDATES = st.lists(
    st.builds(Candidate, _IDS, st.integers(-1, 3), st.integers(-1, 1 << 40), st.integers(0, 2)),
    unique_by=lambda one: one.broker_id,
).map(tuple)
COMMANDS: st.SearchStrategy[StateCommand] = st.one_of(
    st.builds(Confirm, name=_NAMES),
    st.builds(GrantId, name=_NAMES, cluster=st.just("c"), broker_id=_IDS, check_code=st.sampled_from(["x;1", "y;2"])),
    st.builds(Register, name=_NAMES, broker_id=_IDS, address=st.sampled_from(["x", "z"])),
    st.builds(
        AlterSet, name=_NAMES, master_id=_IDS, master_epoch=_EPOCHS, set_epoch=_EPOCHS, wanted=_SETS, alive=_SETS
    ),
    st.builds(
        Elect,
        name=_NAMES,
        asker=st.sampled_from([BY_CONTROLLER, 1, 2, 3, 4]),
        designated=st.booleans(),
        alive=_CANDIDATES,
        unclean=st.booleans(),
        seen_epoch=st.none() | _EPOCHS,
    ),
    st.builds(Clean, name=_NAMES, ids=_SETS, even_living=st.booleans(), alive=_SETS),
)


@given(st.lists(COMMANDS, max_size=60))
def test_no_commands_break_a_group(commands: list[StateCommand]) -> None:
    """One master an epoch, one set an epoch, epochs that only grow, no master outside its set or its replicas."""
    machine = ControllerMachine()
    masters: dict[tuple[str, int], int | None] = {}
    sets: dict[tuple[str, int], frozenset[int]] = {}
    for number, command in enumerate(commands):
        before = machine.groups
        outcome = machine.apply(encode_command(("p", number), command))
        for name in ("a", "b"):
            old, new = before.get(name), machine.groups.get(name)
            if new is None:  # a name that was cleaned begins anew
                masters = {key: value for key, value in masters.items() if key[0] != name}
                sets = {key: value for key, value in sets.items() if key[0] != name}
                continue
            if old is not None:
                assert new.master_epoch >= old.master_epoch
                assert new.set_epoch >= old.set_epoch
            assert masters.setdefault((name, new.master_epoch), new.master_id) == new.master_id
            assert sets.setdefault((name, new.set_epoch), new.in_sync) == new.in_sync
            assert new.master_id is None or (new.master_id in new.in_sync and new.master_id in new.replicas)
            assert new.in_sync <= new.replicas.keys()
            assert all(broker_id < new.next_id for broker_id in new.replicas)
        changed = {name for name in ("a", "b") if before.get(name) != machine.groups.get(name)}
        assert changed <= {command.name}
        is_lost = outcome.cause is Cause.CONTROLLER_MASTER_NOT_AVAILABLE
        assert outcome.cause is None or is_lost or not changed


@given(st.lists(COMMANDS, max_size=40))
def test_a_snapshot_gives_the_same_machine(commands: list[StateCommand]) -> None:
    first, second = ControllerMachine(), ControllerMachine()
    data = [encode_command(("p", number), command) for number, command in enumerate(commands)]
    half = len(data) // 2
    for one in data[:half]:
        first.apply(one)
    second.restore(first.snapshot())
    assert second.snapshot() == first.snapshot()
    for one in (*data[half:], *data):
        assert first.apply(one) == second.apply(one)
    assert second.snapshot() == first.snapshot()


@given(COMMANDS)
def test_a_command_comes_back_from_its_bytes(command: StateCommand) -> None:
    assert decode_command(encode_command(("n0-ab", 7), command)) == (("n0-ab", 7), command)


def test_the_largest_commands_are_far_shorter_than_what_followers_would_be_sent_in_parts() -> None:
    """PySyncObj makes parts of entries of 64 KiB and more, which `ha.controller.quorum.appends` does not take."""
    most, name, address = (1 << 63) - 1, "\U0001f4e6" * 255, "\U0001f4e6" * 512
    ids = frozenset(range(most - REPLICAS_MAX, most))
    commands: list[StateCommand] = [
        Elect(name=name, asker=most, designated=True, unclean=True, seen_epoch=most, new_process=True,
              alive=tuple(Candidate(one, most, most, most, most) for one in ids)),
        AlterSet(name=name, master_id=most, master_epoch=most, set_epoch=most, wanted=ids, alive=ids, renew=True),
        Clean(name=name, ids=ids, even_living=True, alive=ids),
        GrantId(name=name, cluster=name, broker_id=most, check_code=address),
        Register(name=name, broker_id=most, address=address),
    ]  # fmt: skip
    for command in commands:
        assert len(encode_command(("n" * 255, most), command)) < 32 << 10


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b'{"v":2,"key":["a",1],"kind":"confirm","fields":{"name":""}}',
        b'{"v":1,"key":["a"],"kind":"confirm","fields":{"name":""}}',
        b'{"v":1,"key":["a",1],"kind":"unknown","fields":{"name":""}}',
        b'{"v":1,"key":["a",1],"kind":"register","fields":{"name":""}}',
        b'{"v":1,"key":["a",1],"kind":"confirm","fields":{"name":"","more":1}}',
    ],
)
def test_bytes_of_others_are_refused(data: bytes) -> None:
    with pytest.raises(DamagedStateError):
        ControllerMachine().apply(data)


@pytest.mark.parametrize("data", [b"", b'{"v":2}', b'{"v":1}', b'{"v":1,"groups":[{}],"remembered":[]}'])
def test_a_damaged_snapshot_changes_nothing(three: Desk, data: bytes) -> None:
    before = three.machine.groups
    with pytest.raises(DamagedStateError):
        three.machine.restore(data)
    assert three.machine.groups is before
