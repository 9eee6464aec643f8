"""Who counts as alive, and when a successor may be named."""

from dataclasses import replace

import ha.controller.core.live as live
from ha.controller.core.live import LiveBrokers, ReplicaHeartbeat
from ha.controller.core.model import Candidate

BEAT = ReplicaHeartbeat("a", 1, "127.0.0.1:1", silence_ms=1000, epoch=2, end_offset=500, priority=7)


def test_a_broker_lives_for_the_silence_that_it_named() -> None:
    table = LiveBrokers()
    table.hear(BEAT, 100, object())
    assert table.is_alive("a", 1, 1100)
    assert not table.is_alive("a", 1, 1101)
    assert not table.is_alive("a", 2, 100)
    assert not table.is_alive("a", None, 100)
    assert table.expire(1100) == []
    ((dead, _),) = table.expire(1101)
    assert (dead, len(table)) == (BEAT, 0)


def test_a_broker_is_dead_when_its_connection_closes() -> None:
    table, first, second = LiveBrokers(), object(), object()
    table.hear(BEAT, 0, first)
    table.hear(replace(BEAT, broker_id=2), 0, first)
    table.hear(BEAT, 1, second)
    assert [beat.broker_id for beat in table.closed(first)] == [2]
    assert table.is_alive("a", 1, 1)
    assert table.closed(second) == [BEAT]
    assert table.closed(second) == []


def test_the_newest_heartbeat_counts_even_if_the_log_became_shorter() -> None:
    table = LiveBrokers()
    table.hear(BEAT, 0, object())
    table.hear(replace(BEAT, end_offset=300), 1, object())
    assert table.candidates("a", [1, 2], 1) == (Candidate(1, 2, 300, 7),)
    assert table.last("a", 1) == replace(BEAT, end_offset=300)
    assert table.last("a", 2) is None


def test_candidates_are_alive() -> None:
    table = LiveBrokers()
    table.hear(BEAT, 0, object())
    table.hear(replace(BEAT, broker_id=2), 900, object())
    assert table.alive("a", [1, 2, 3], 1500) == {2}
    assert [one.broker_id for one in table.candidates("a", [3, 2, 1], 900)] == [1, 2]


def test_the_table_has_a_limit() -> None:
    table = LiveBrokers()
    for number in range(live.LIVE_MAX):
        assert table.hear(replace(BEAT, broker_id=number), 0, None)
    assert not table.hear(replace(BEAT, broker_id=live.LIVE_MAX), 0, None)
    assert table.hear(replace(BEAT, broker_id=0), 1, None)
