"""Rules for the messages between leader and followers that make PySyncObj comply with Raft.

The invariant: an entry that this member has acknowledged is never absent from its durable journal, or from the snapshot
before it, unless the leader of a newer term has another entry at its place or before it.

PySyncObj's follower deletes all entries behind `prevLogIdx` and adds those of the message. A leader sends entries again
after each refusal, and a refusal may reach it twice. Then entries that were acknowledged in between are deleted, for a
moment, or until they are sent again if the message ends earlier. The same happens with a snapshot that comes twice.
Raft deletes only entries that conflict. `Appends` therefore changes the messages before PySyncObj sees them:

- Entries that the journal has are left out, and `prevLogIdx` moves forward. The remaining ones begin where the journal
  ends, or with a conflict. If none remains, `prevLogIdx` becomes the journal's end, so that nothing is deleted.
- A snapshot that this member already has becomes such an empty message.
- The commit index ends with the last entry that is known to equal the leader's, and so does the acknowledgement.

Entries of one index and term are equal, because a leader never changes its log during its term. An entry before the
journal's first one has been applied, so it is in the log of each later leader.
"""

import itertools
from typing import Any, Final

from ha.controller.quorum.journal import QuorumJournal

Message = dict[str, Any]
_PART: Final = "part"


class Appends:
    """The rules for one member's messages, as leader and as follower. Used by PySyncObj's thread alone."""

    def __init__(self, journal: QuorumJournal) -> None:
        self._journal = journal
        self._matched: tuple[int, int] | None = None  # index and term up to which the last message equals the journal
        self._awaited: tuple[Any, ...] | None = None  # next part of a snapshot: leader, index, term, number
        self._sent: dict[Any, int] = {}  # number of the last part of a snapshot that was sent, by follower

    def sending(self, node: Any, message: Message) -> Message:
        """Return a leader's message; a part of a snapshot also gets the snapshot's last entry and the part's number."""
        serialized = message.get("serialized")  # (data, is first part, is last part)
        if not serialized:
            return message
        self._sent[node] = 0 if serialized[1] else self._sent.get(node, 0) + 1
        return message | {_PART: (*self._journal[1][1:], self._sent[node])}

    def received(self, node: Any, message: Message) -> Message | None:
        """Return the part of a leader's message (of this term or a newer one) that PySyncObj may see; None: nothing."""
        self._matched = None
        if "prevLogIdx" not in message:
            return self._snapshot_part(node, message)
        if "transmission" in message:
            return None  # part of an entry of 64 KiB or more, which no command is
        return self._without_held(message)

    def answering(self, message: Message) -> Message | None:
        """Return the answer to the last received message; None: it must not be sent."""
        if not message["success"] or self._matched is None:
            return message
        index, term = self._matched
        if self._journal.term_of(index) != term:
            return None  # the snapshot could not be loaded
        return message | {"next_node_idx": index + 1}

    def _without_held(self, message: Message) -> Message:
        previous, entries = (message["prevLogIdx"], message["prevLogTerm"]), message["entries"]
        first = self._journal[0][1:]
        if previous[0] is not None and previous[0] < first[0]:
            previous, entries = first, [entry for entry in entries if entry[1] > first[0]]
        if previous[0] is None or self._journal.term_of(previous[0]) != previous[1]:
            return message  # PySyncObj refuses the message, and deletes nothing
        held = list(itertools.takewhile(lambda entry: self._journal.term_of(entry[1]) == entry[2], entries))
        if held:
            previous = held[-1][1:]
        return self._matching(message, previous, entries[len(held) :])

    def _matching(self, message: Message, previous: tuple[int, int], new: list[Any]) -> Message:
        """Return the message with new entries after one that this member has."""
        self._matched = matched = tuple(new[-1][1:]) if new else previous
        before = previous if new else self._journal[-1][1:]
        return message | {
            "entries": new,
            "prevLogIdx": before[0],
            "prevLogTerm": before[1],
            "commit_index": min(message["commit_index"], matched[0]),
        }

    def _snapshot_part(self, node: Any, message: Message) -> Message:
        part = message.get(_PART)
        unverified = message | {"commit_index": 0}  # unknown whether this journal equals the leader's
        if part is None:  # the leader is writing its snapshot, or is of an older version
            return unverified
        index, term, number = part
        first = self._journal[0][1:]
        if index < first[0]:
            return self._matching(message, first, [])
        if self._journal.term_of(index) == term:
            return self._matching(message, (index, term), [])
        if number and self._awaited != (node, index, term, number):
            return unverified | {"serialized": None}  # a part was lost with its connection
        self._awaited = node, index, term, number + 1
        self._matched = index, term
        return unverified
