"""Messages of a leader that come twice, late or in part: what one member acknowledged stays in its journal.

The member is real (PySyncObj, transport, journal, files). The two others are this test: it delivers their messages and
reads the answers. After each sync the journal is read as a restart would find it.
"""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pysyncobj.transport import TCPTransport

from ha.controller.core.machine import ControllerMachine
from ha.controller.errors import QuorumFileError
from ha.controller.quorum.journal import JOURNAL, VOTE, QuorumJournal
from ha.controller.quorum.quorum import SNAPSHOT, Quorum
from ha.controller.quorum.snapshot_file import Entry, Snapshot, encode_snapshot, read_snapshot
from tests.ha.controller.quorums import members

_NO_OP = b"\x01"


def entries(first: int, last: int, term: int = 1) -> list[Entry]:
    return [(_NO_OP + b"%d" % index, index, term) for index in range(first, last + 1)]


def snapshot_at(index: int) -> tuple[bytes, Entry]:
    """The file of a snapshot, and its last entry."""
    previous, last = entries(index - 1, index)
    return encode_snapshot(Snapshot(ControllerMachine().snapshot(), previous, last)), last


class Driven:
    """One member of three, without its thread."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        member = members(folder.parent)[0]
        self.folder = member.settings.folder
        self.folder.mkdir()
        self.sent: list[tuple[Any, dict[str, Any]]] = []
        self.acknowledged = 1
        self.is_checked = True
        self.lost: list[tuple[int, int]] = []  # last entry that a crash would have left, last one acknowledged
        monkeypatch.setattr(TCPTransport, "send", self._send)
        quorum = Quorum(member.settings, ControllerMachine(), lambda: None)
        self.journal = quorum._journal = QuorumJournal(self.folder, None)
        self.sync = quorum._sync = quorum._make_sync()
        self.transport = quorum._transport
        self.leader, self.other = self.transport._nodes
        self.quorum = quorum
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._synced(getattr(os, name)))

    def _send(self, node: Any, message: dict[str, Any]) -> bool:
        self.sent.append((node, message))
        if message["type"] == "next_node_idx" and message["success"]:
            self.acknowledged = message["next_node_idx"] - 1
        return True

    def _synced(self, really: Callable[[int], None]) -> Callable[[int], None]:
        def synced(descriptor: int) -> None:
            really(descriptor)
            if self.is_checked and (end := self.restarted_end()) < self.acknowledged:
                self.lost.append((end, self.acknowledged))  # PySyncObj would swallow an assertion

        return synced

    def restarted_end(self) -> int:
        """Index of the last entry that a restart would find; of the snapshot, if the journal does not reach it."""
        copy = self.folder.parent / "copy"
        copy.mkdir(exist_ok=True)
        for name in (JOURNAL, VOTE):
            (copy / name).write_bytes((self.folder / name).read_bytes())
        snapshot = read_snapshot(self.folder / SNAPSHOT)
        self.is_checked = False
        journal = QuorumJournal(copy, snapshot)
        end: int = journal[-1][1] if len(journal) else 0
        journal._destroy()
        self.is_checked = True
        return end if snapshot is None else max(end, snapshot.last[1])

    def receive(self, previous: int, new: list[Entry], *, commit: int = 1, term: int = 1, before: int = 1) -> Any:
        """Deliver entries behind `previous`, whose term is `before`; returns the answer."""
        message = {"term": term, "commit_index": commit, "prevLogIdx": previous, "prevLogTerm": before, "entries": new}
        return self.deliver("append_entries", **message)

    def receive_snapshot(self, parts: list[bytes], last: Entry, *, numbers: list[int] | None = None) -> None:
        """Deliver a snapshot in parts, and PySyncObj's empty one behind them."""
        for number in range(len(parts) + 1) if numbers is None else numbers:
            is_last = number == len(parts)
            data = b"" if is_last else parts[number]
            one = {"serialized": (data, number == 0, is_last), "part": (last[1], last[2], number)}
            self.deliver("append_entries", term=1, commit_index=last[1], **one)

    def compact(self, index: int) -> None:
        """Write a snapshot of the state after this entry, and trim the journal."""
        data, _ = snapshot_at(index)
        (self.folder / SNAPSHOT).write_bytes(data)
        self.journal.deleteEntriesTo(index - 1 - self.journal[0][1])

    def deliver(self, kind: str, **message: Any) -> Any:
        before = len(self.sent)
        self.transport._onMessageReceived(self.leader, {"type": kind, **message})
        answers = [message for _, message in self.sent[before:]]
        return answers[-1] if answers else None


@pytest.fixture
def driven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driven]:
    driven = Driven(tmp_path / "n0", monkeypatch)
    yield driven
    driven.is_checked = False
    driven.sync.destroy()
    assert driven.lost == [], "a crash at these moments loses what was acknowledged"


@pytest.fixture
def follower(driven: Driven) -> Driven:
    """It has acknowledged entries 2 to 5 of term 1."""
    driven.receive(1, entries(2, 5), before=0)
    assert driven.acknowledged == 5
    return driven


def test_entries_that_come_twice_delete_nothing(follower: Driven) -> None:
    """Two refusals reach the leader: it sends all of it twice, the second time with one entry more."""
    answer = follower.receive(1, entries(2, 6), before=0, commit=5)
    assert (answer["success"], answer["next_node_idx"]) == (True, 7)
    assert follower.journal[1:] == entries(2, 6)


@pytest.mark.parametrize("last", [1, 3])
def test_a_late_message_that_ends_earlier_deletes_nothing(follower: Driven, last: int) -> None:
    answer = follower.receive(1, entries(2, last), before=0, commit=2)
    assert (answer["success"], answer["next_node_idx"]) == (True, last + 1)
    assert follower.journal[1:] == entries(2, 5)


def test_entries_that_were_not_compared_are_not_committed(follower: Driven) -> None:
    """A new leader has other entries at 4 and 5, and has committed them."""
    answer = follower.receive(2, entries(3, 3), term=2, commit=5)
    assert (answer["next_node_idx"], follower.sync.raftCommitIndex) == (4, 3)
    follower.acknowledged = 3
    follower.receive(3, entries(4, 6, 2), term=2, commit=5)
    assert follower.journal[1:] == [*entries(2, 3), *entries(4, 6, 2)]
    assert follower.sync.raftCommitIndex == 5


def test_a_conflict_in_the_middle_replaces_the_rest(follower: Driven) -> None:
    follower.acknowledged = 3
    answer = follower.receive(1, [*entries(2, 3), *entries(4, 4, 2)], before=0, term=2)
    assert answer["next_node_idx"] == 5
    assert follower.journal[1:] == [*entries(2, 3), *entries(4, 4, 2)]


def test_entries_older_than_the_journal_are_held(follower: Driven) -> None:
    follower.compact(4)
    assert follower.receive(1, [], before=0)["next_node_idx"] == 4
    assert follower.receive(1, entries(2, 6), before=0)["next_node_idx"] == 7
    assert follower.journal[:] == entries(3, 6)


def test_what_does_not_fit_is_refused(follower: Driven) -> None:
    assert follower.receive(8, entries(9, 9))["reset"]
    assert follower.receive(3, entries(4, 4, 2), before=2, term=2)["reset"]
    assert follower.journal[1:] == entries(2, 5)


def test_a_message_of_an_older_term_is_not_heard(follower: Driven) -> None:
    follower.receive(5, [], term=3)
    assert follower.receive(5, [], term=2) is None


def test_a_snapshot_that_comes_twice_deletes_nothing(driven: Driven) -> None:
    data, last = snapshot_at(20)
    driven.receive_snapshot([data[:50], data[50:]], last)
    assert (driven.acknowledged, driven.journal[-1]) == (20, last)
    driven.receive(20, entries(21, 25))
    driven.receive_snapshot([data[:50], data[50:]], last)
    assert driven.journal[:] == entries(19, 25)
    driven.compact(23)
    driven.receive_snapshot([data], last)
    assert driven.journal[:] == entries(22, 25)
    assert (driven.folder / SNAPSHOT).read_bytes() == snapshot_at(23)[0]


def test_a_part_of_a_snapshot_commits_nothing(follower: Driven) -> None:
    """The leader's log and this one may differ: only the whole snapshot replaces it."""
    data, last = snapshot_at(20)
    follower.receive_snapshot([data[:50], data[50:]], last, numbers=[0, 1])
    follower.deliver("append_entries", term=1, commit_index=20, serialized=None)
    assert follower.sync.raftCommitIndex == 1
    follower.receive_snapshot([data[:50], data[50:]], last, numbers=[2])
    assert follower.journal[:] == entries(19, 20)


def test_a_snapshot_with_a_gap_is_not_taken(follower: Driven) -> None:
    """The connection was replaced while the leader sent: a part is missing."""
    data, last = snapshot_at(20)
    follower.receive_snapshot([data[:50], data[50:90], data[90:]], last, numbers=[0, 2, 3])
    assert not (follower.folder / SNAPSHOT).exists()
    assert follower.quorum.failure is None
    follower.receive_snapshot([data[:50], data[50:90], data[90:]], last)
    assert follower.journal[:] == entries(19, 20)


def test_a_snapshot_that_cannot_be_loaded_is_not_acknowledged(follower: Driven) -> None:
    """PySyncObj goes on with its own journal, which ends further ahead than the snapshot."""
    damaged, last = b"ledgermq controller 1\n", entries(4, 4, 2)[0]
    follower.sent.clear()
    follower.receive_snapshot([damaged], last)
    assert follower.sent == []
    assert isinstance(follower.quorum.failure, QuorumFileError)
    (follower.folder / SNAPSHOT).unlink()


def lead(driven: Driven) -> None:
    """Stand for election, and win with the other's vote."""
    driven.journal.become_sound()
    driven.sync._SyncObj__connectedNodes.update((driven.leader, driven.other))
    driven.sync._SyncObj__raftElectionDeadline = 0
    driven.sync.doTick(0)
    driven.deliver("response_vote", term=driven.sync.raftCurrentTerm)
    assert driven.sync._isLeader()


def test_an_answer_counts_in_its_term_only(follower: Driven) -> None:
    lead(follower)
    end, term = follower.journal[-1][1:]
    answer = {"next_node_idx": end + 1, "reset": False, "success": True}
    for other in (term - 1, term):
        follower.deliver("next_node_idx", term=other, **answer)
        follower.sync.doTick(0)
        assert (follower.sync.raftCommitIndex == end) is (other == term)


def test_each_part_of_a_snapshot_tells_what_it_belongs_to(driven: Driven) -> None:
    data, last = snapshot_at(20)
    driven.receive_snapshot([data], last)
    driven.sent.clear()
    for part in ((data, True, False), (b"", False, True)):
        driven.transport.send(driven.other, {"type": "append_entries", "serialized": part})
    assert [message["part"] for _, message in driven.sent] == [(20, 1, 0), (20, 1, 1)]


class Leaders:
    """Eight leaders after each other, whose messages reach the member late, twice, or never."""

    def __init__(self, driven: Driven, seed: int) -> None:
        self.driven = driven
        self.random = random.Random(seed)
        self.log: list[Entry] = [(_NO_OP, 1, 0)]
        self.committed = 1
        self.matched = 1  # what the member has acknowledged to this leader
        self.packets: list[dict[str, Any]] = []

    def lead(self, term: int) -> None:
        """Whoever leads has all that is committed."""
        base = self.random.randint(self.committed, len(self.log))
        self.log, self.matched, self.packets = self.log[:base], 1, []
        for _ in range(self.random.randint(5, 40)):
            if self.random.random() < 0.5:
                self.log.extend(entries(len(self.log) + 1, len(self.log) + 1, term))
            self.packets.append(self._packet(term))
            self._heard(self.driven.deliver("append_entries", **self.random.choice(self.packets)))
            if self.committed >= 3 and self.random.random() < 0.1:
                self._send_snapshot(term)
            self._check()
            if self.matched > base and self.random.random() < 0.5:
                self.committed = max(self.committed, self.matched)
            self._compact()

    def _packet(self, term: int) -> dict[str, Any]:
        previous = self.random.randint(1, len(self.log))
        end = self.random.randint(previous, len(self.log))
        return {"term": term, "commit_index": self.committed, "prevLogIdx": previous,
                "prevLogTerm": self.log[previous - 1][2], "entries": self.log[previous:end]}  # fmt: skip

    def _send_snapshot(self, term: int) -> None:
        last = self.random.randint(3, self.committed)
        data = encode_snapshot(Snapshot(ControllerMachine().snapshot(), *self.log[last - 2 : last]))
        for number, part in enumerate(((data, True, False), (b"", False, True))):
            one = {"serialized": part, "part": (*self.log[last - 1][1:], number)}
            self._heard(self.driven.deliver("append_entries", term=term, commit_index=self.committed, **one))

    def _heard(self, answer: Any) -> None:
        if answer is not None and answer["success"]:
            self.matched = max(self.matched, answer["next_node_idx"] - 1)

    def _check(self) -> None:
        journal, commit = self.driven.journal, self.driven.sync.raftCommitIndex
        assert journal[-1][1] >= self.matched
        assert commit <= self.committed
        for entry in journal[:]:
            assert entry[1] > max(self.matched, commit) or entry == self.log[entry[1] - 1]

    def _compact(self) -> None:
        self.driven.sync._SyncObj__applyLogEntries()
        applied = self.driven.sync.raftLastApplied
        if self.random.random() < 0.05 and applied > self.driven.journal[0][1] + 4:
            data = encode_snapshot(Snapshot(ControllerMachine().snapshot(), *self.log[applied - 2 : applied]))
            (self.driven.folder / SNAPSHOT).write_bytes(data)
            self.driven.journal.deleteEntriesTo(applied - 1 - self.driven.journal[0][1])


@pytest.mark.parametrize("seed", range(8))
def test_messages_in_any_order_leave_what_was_acknowledged(driven: Driven, seed: int) -> None:
    driven.is_checked = False  # entries are compared here, not only the end
    leaders = Leaders(driven, seed)
    for term in range(1, 9):
        leaders.lead(term)
    assert leaders.committed > 8, "too little was agreed on for a test"
