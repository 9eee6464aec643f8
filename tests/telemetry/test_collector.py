"""The garbage collector while a server serves."""

import gc

from ledgermq.telemetry.collector import QuietCollector


def test_what_was_there_is_left_alone_until_the_end() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    collector = QuietCollector()
    collector.begin()
    try:
        assert gc.get_threshold() != before
        assert gc.get_freeze_count() > frozen
    finally:
        collector.end()
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
    collector.end()
    assert gc.get_threshold() == before
