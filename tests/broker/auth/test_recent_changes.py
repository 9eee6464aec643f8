"""Changes of users that were made lately are remembered by digests, and not more than so many."""

import sys

import pytest

from broker.auth.requests import _RecentChanges
from ledgermq.remoting.codec.command import Command


def _change(name: str, body: bytes = b"{}") -> Command:
    return Command(3001, ext={"username": name}, body=body)


def test_a_change_is_known_for_ten_seconds() -> None:
    now = 100.0
    recent = _RecentChanges(lambda: now)
    recent.note(_change("a"))
    now = 109.0
    assert recent.has(_change("a"))
    assert not recent.has(_change("b"))
    assert not recent.has(_change("a", b"[]"))
    recent.note(_change("b"))
    now = 110.0
    assert (recent.has(_change("a")), recent.has(_change("b"))) == (False, True)
    recent.note(_change("c"))
    assert len(recent._until) == 2


def test_the_oldest_of_too_many_is_forgotten_and_no_body_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.auth.requests._RECENT_MAX", 2)
    recent = _RecentChanges(lambda: 1.0)
    for name in ("a", "b", "a", "c"):
        recent.note(_change(name, bytes(100_000)))
    assert [recent.has(_change(name, bytes(100_000))) for name in "abc"] == [True, False, True]
    assert sum(map(sys.getsizeof, recent._until)) < 1000
