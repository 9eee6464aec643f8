"""Warnings that come too often."""

import logging

import pytest

from ledgermq.remoting.rate_limited_log import RateLimitedLog


def test_a_flood_of_warnings_is_one_now_and_then_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    log = RateLimitedLog(logging.getLogger("seldom"), lambda: now)
    for number in range(5):
        log.warning("%d is refused", number)
    now = 111.0
    log.warning("%d is refused", 5)
    now = 122.0
    log.warning("%d is refused", 6)
    told = [record.getMessage() for record in caplog.records]
    assert told == ["0 is refused", "5 is refused (4 more of such warnings before)", "6 is refused"]
