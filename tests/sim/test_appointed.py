"""An appointed master and its slaves in simulation: good runs keep what SEND_OK promises, planted bugs are found."""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from chaos.appointed.__main__ import CAMPAIGN, simulate
from chaos.appointed.plan import draw
from chaos.sim.corpus import corpus_seeds
from chaos.sim.nemesis import Script
from chaos.sim.seeds import shrink
from ha import sender
from ha.core import handshake
from ha.core.copies import Copies, Copy, Promise
from ha.core.stream import Report
from ha.slave import Slave
from store.log.part import Settlement
from tests.sim.ranked_seeds import first_that_finds

SEEDS = 4
SEARCHED = 200


def test_what_is_answered_send_ok_has_its_copies_and_survives_each_promotion() -> None:
    seen = [simulate(seed, Script()) for seed in range(SEEDS)]
    assert not [(seed, one.violations) for seed, one in enumerate(seen) if one.violations]
    assert sum(len(one.acked) for one in seen) > 100 * SEEDS, "records flow"
    assert sum(one.leader_count for one in seen) > 2 * SEEDS, "masters change"
    answers = {answer for one in seen for answer in one.answers}
    assert answers >= {"SEND_OK", "REPLICA_TIMEOUT", "SLAVE_NOT_AVAILABLE", "IN_SYNC_REPLICAS_NOT_ENOUGH"}


def test_a_seed_gives_the_same_run_each_time() -> None:
    first, second = simulate(0, Script()), simulate(0, Script())
    assert first == second and first.acked


def test_a_plan_is_drawn_for_every_rule() -> None:
    plans = [draw(seed) for seed in range(100)]
    assert {len(plan.names) for plan in plans} == {2, 3}
    assert {plan.rules.wanted for plan in plans} == {2, 3}
    for what in ("counts_durable", "is_adaptive"):
        assert {getattr(plan.rules, what) for plan in plans} == {False, True}


def _acknowledge_alone(copies: Copies, local: int, acknowledged: int) -> Promise:
    """Nobody is told that no slave has the record."""
    return promise(copies, local, acknowledged)._replace(lacks_slaves=False)


def _take_into_the_set_at_once(copies: Copies, end: int, confirmed: int, now_s: float) -> list[Copy]:
    """A slave comes into sync that lacks what is confirmed."""
    return update_in_sync(copies, end, 0, now_s)


def _count_what_is_received(copy: Copy, *, durable: bool) -> int:
    """A copy counts that a power cut may take."""
    return copy.received


def _compare_lengths_only(*arguments: Any) -> int:
    """A slave goes on whose last bytes are others."""
    hello, min_offset, end, _, epochs = (*arguments, ())[:5]
    return join_offset(hello, min_offset, end, lambda _start, _end: hello.tail_crc, epochs)


def _confirm_all_that_came(part: Slave, local: int, flushed: int) -> Settlement:
    """A slave's readers see what the master has not confirmed."""
    found = settle(part, local, flushed)
    return found._replace(confirmed=min(part._record_end, local))


def _report_what_will_come(part: Slave) -> Report:
    """A slave reports as durable what it has received."""
    found = report(part)
    return found._replace(durable=found.received)


def _dial_again(_part: Slave, _error: Exception) -> bool:
    """A slave whose log differs tells nobody, and dials for ever."""
    return True


def _log_an_error(part: Slave, error: Exception | None) -> None:
    """An error that is logged and has no other consequence."""
    logging.getLogger("ha.slave").error("the connection ended: %s", error)
    lost(part, error)


lost = Slave.lost
promise, update_in_sync, settle, report = Copies.promise, Copies.update_in_sync, Slave.settle, Slave.report
join_offset = handshake.join_offset
BUGS: dict[str, tuple[int, Sequence[tuple[Any, str, Callable[..., Any] | property]]]] = {
    "acknowledged without a slave": (0, [(Copies, "promise", _acknowledge_alone)]),
    "in sync without what is confirmed": (1, [(Copies, "update_in_sync", _take_into_the_set_at_once)]),
    "what is received counts as durable": (0, [(Copy, "acked", _count_what_is_received)]),
    "bytes of a slave that differ are not compared": (7, [(sender, "join_offset", _compare_lengths_only)]),
    "a slave confirms by itself": (1, [(Slave, "settle", _confirm_all_that_came)]),
    "a slave reports as durable what is not": (0, [(Slave, "report", _report_what_will_come)]),
    "a slave that differs dials for ever": (7, [(Slave, "resolve", _dial_again)]),
    "an error that is only logged": (0, [(Slave, "lost", _log_an_error)]),
}
"""The seed that finds each, and what is planted in shipping code."""


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.timeout(900)  # where the bug's own seed misses it, others are tried
def test_a_bug_in_shipping_code_is_found(bug: str) -> None:
    first_that_finds(partial(find, bug), [BUGS[bug][0], *range(SEARCHED)], SEARCHED)


def find(bug: str, seed: int) -> str:
    """Run a seed with the bug; return the first rule that it breaks, or nothing."""
    with ExitStack() as patches:
        for owner, name, wrong in BUGS[bug][1]:
            patches.enter_context(patch.object(owner, name, wrong))
        return next(iter(simulate(seed, Script()).violations), "")


def test_the_seeds_that_once_failed_pass_and_each_planted_bug_is_among_them() -> None:
    seeds = corpus_seeds(CAMPAIGN.corpus)
    assert {seed for seed, _ in BUGS.values()} <= set(seeds)
    for seed in seeds:
        assert not simulate(seed, Script()).violations


def test_a_seed_that_fails_is_shrunk_to_faults_that_still_break_it() -> None:
    seed, ((owner, name, wrong),) = BUGS["acknowledged without a slave"]
    with patch.object(owner, name, wrong):
        found = shrink(CAMPAIGN.simulate, seed)
    assert found is not None
    first, last = found
    assert last.violations and len(last.strikes) <= len(first.strikes)
