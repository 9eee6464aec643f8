"""The state machine's bytes on their way to a follower that needs an install, one part in flight at a time.

    leader    StateOut  --part(offset)--> InstallRequest            follower   InstallRequest --take--> StateIn
                        <--state_end---- InstallResponse <--------------------'

A lost part is sent again. A follower that forgot what it had answers 0, and everything is sent again. A part is no
larger than a span, so that heartbeats are not delayed for long.
"""

from dledger.core.messages import InstallRequest

STATE_SIZE_MAX = 1 << 30
"""Largest state in bytes that a follower accepts."""


class StateOut:
    """A leader's snapshot of its state machine, and how much of it one follower has.

    Attributes:
        state_id: differs from that of other snapshots of this leader's term.
        first_index, start_position, prev_term: where the log begins that belongs to it.
        data: the whole state.
        end: number of bytes known to have arrived.
    """

    __slots__ = ("data", "end", "first_index", "prev_term", "start_position", "state_id")

    def __init__(self, state_id: int, first_index: int, start_position: int, prev_term: int, data: bytes) -> None:
        self.state_id = state_id
        self.first_index = first_index
        self.start_position = start_position
        self.prev_term = prev_term
        self.data = data
        self.end = 0

    def request(self, term: int, leader_id: str, size_limit_bytes: int, sequence: int) -> InstallRequest:
        """Return the request with the part behind the bytes that have arrived."""
        part = self.data[self.end : self.end + size_limit_bytes]
        return InstallRequest(
            term,
            leader_id,
            self.first_index,
            self.start_position,
            self.prev_term,
            self.state_id,
            len(self.data),
            self.end,
            part,
            sequence,
        )

    def arrived(self, state_end: int) -> bool:
        """Note that the follower has `state_end` bytes; return whether that is news, so that the next part is due."""
        is_news = state_end != self.end and state_end <= len(self.data)
        if is_news:
            self.end = state_end
        return is_news


class StateIn:
    """The part of a state that a follower has received.

    Attributes:
        state_id: the leader's id of the state.
        data: the bytes so far.
    """

    __slots__ = ("data", "state_id")

    def __init__(self, state_id: int) -> None:
        self.state_id = state_id
        self.data = bytearray()

    def take(self, request: InstallRequest) -> bool:
        """Add a part if it continues the bytes so far; return whether the state is whole now."""
        if request.part_start == len(self.data):
            self.data += request.part
        return len(self.data) == request.state_size
