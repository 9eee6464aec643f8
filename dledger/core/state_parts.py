"""The state machine's bytes on their way to a follower that starts anew: one part under way at a time.

    leader    StateOut  --part(offset)--> InstallRequest            follower   InstallRequest --take--> StateIn
                        <--state_end---- InstallResponse <--------------------'

A part that is lost is asked for again; a follower that forgot what it had says 0, and all is sent again. A part holds
no more than a span, so that heartbeats are never long behind it.
"""

from dledger.core.messages import InstallRequest

STATE_SIZE_MAX = 1 << 30
"""Bytes of the largest state that a follower takes."""


class StateOut:
    """A leader's picture of its state machine, and how much of it one follower has.

    Attributes:
        state_id: unlike that of other pictures of this leader's term.
        first_index, start_position, prev_term: where the log begins that goes with it.
        data: the whole state.
        end: so many bytes are known to have arrived.
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
        """The part behind what has arrived."""
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
        """The follower has `state_end` bytes; whether that is news, so that the next part is to be sent."""
        is_news = state_end != self.end and state_end <= len(self.data)
        if is_news:
            self.end = state_end
        return is_news


class StateIn:
    """What a follower has of one state.

    Attributes:
        state_id: the leader's.
        data: the bytes so far.
    """

    __slots__ = ("data", "state_id")

    def __init__(self, state_id: int) -> None:
        self.state_id = state_id
        self.data = bytearray()

    def take(self, request: InstallRequest) -> bool:
        """Take in a part that continues what is here; whether the state is whole now."""
        if request.part_start == len(self.data):
            self.data += request.part
        return len(self.data) == request.state_size
