"""The connections of the controllers: PySyncObj's, always encrypted, bounded, and safe against forgotten votes.

This module adds to PySyncObj's connections:

- At most `_STRANGER_BYTES` of a stranger's input are kept, and `_PEER_BYTES` of a controller's; the number of strangers
  and their time are bounded. Nothing is unpickled before its seal (Fernet: AES and HMAC-SHA-256) by the secret is
  verified.
- A request for a vote says whether the candidate is sound (`journal`). Sound members vote for sound candidates only.
  The others vote for each other only, and such a candidate wins if all members voted for it, which happens at the first
  start of a cluster. So a member that lost its disk helps no candidate that lacks what it forgot, and two such members
  cannot overrule a third that has everything.
- Messages of the leader have the time of sending, which the answer repeats: the leader's authority is as old as the
  newest message that a majority has answered.
- An answer names its term, and counts in that term only, since an entry that was acknowledged to a leader may have been
  replaced when the same leader leads again. Messages of a leader pass through `appends`.

PySyncObj takes no such parts as arguments, so this module replaces four names in its modules when it is imported.
"""

import base64
import hmac
import time
from typing import Any, Final

import pysyncobj.syncobj
import pysyncobj.tcp_server
import pysyncobj.transport
from cryptography.fernet import Fernet, MultiFernet
from pysyncobj.poller import POLL_EVENT_TYPE
from pysyncobj.tcp_connection import TcpConnection
from pysyncobj.transport import TCPTransport

from ha.controller.core.commands import FIRST_RULES
from ha.controller.quorum.appends import Appends
from ha.controller.quorum.journal import QuorumJournal
from ledgermq.remoting.proof import Secrets

_STRANGER_BYTES: Final = 4096
_PEER_BYTES: Final = 16 << 20
_STRANGERS_MAX: Final = 64
_UNSOUND: Final = "unsound"
_SENT: Final = "sent"
_TERM: Final = "term"
_RULES: Final = "rules"


class BoundedConnection(TcpConnection):  # type: ignore[misc]  # PySyncObj has no types
    """A connection that closes if an incomplete message exceeds its limit, or if it sends for long without an answer.

    PySyncObj itself closes a connection from which it has read nothing for a while, before it sends or reads. Two
    followers send each other nothing, so the first request for a vote after a leader's end would be lost each time, and
    a process that stood still would close all its connections before it reads what has arrived.

    Attributes:
        bytes_max: the limit.
        since_s: when it was made.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.bytes_max = _STRANGER_BYTES
        self.since_s = time.monotonic()
        self._silence_s: float = named["timeout"]
        self._sent_s = float("-inf")  # when it last sent
        self._asked_s: float | None = None  # since when it has sent without a pause and received nothing
        super().__init__(*arguments, **named)

    def send(self, message: Any) -> None:
        now_s = time.monotonic()
        if self._asked_s is None or now_s - self._sent_s > self._silence_s:
            self._asked_s = now_s
        self._sent_s = now_s
        super().send(message)

    def disconnect(self) -> None:
        self._asked_s = None
        super().disconnect()

    def _TcpConnection__processConnection(self, descriptor: int, events: int) -> None:
        if events & POLL_EVENT_TYPE.READ:
            self._asked_s = None
        super()._TcpConnection__processConnection(descriptor, events)

    def _TcpConnection__processConnectionTimeout(self) -> None:
        if self._asked_s is not None and time.monotonic() - self._asked_s > self._silence_s:
            self.disconnect()

    def _TcpConnection__processRead(self) -> bool:
        if len(self._TcpConnection__readBuffer) > self.bytes_max:
            self.disconnect()
            return False
        return bool(super()._TcpConnection__processRead())


class QuorumTransport(TCPTransport):  # type: ignore[misc]  # PySyncObj has no types
    """PySyncObj's connections with proofs and limits, see the module. Used by PySyncObj's thread alone."""

    def __init__(self, journal: QuorumJournal, silence_s: float, known_rules: int, *arguments: Any) -> None:
        self._journal = journal
        self._known_rules = known_rules
        self._rules: dict[Any, int] = {}  # the newest rules that each other member knows, by its last answer
        self._appends = Appends(journal)
        self._silence_s = silence_s
        self._answered_s: dict[Any, float] = {}  # send time of the message that a member answered last
        self._sent_s: dict[Any, float | None] = {}  # send time of the leader's last message, by its clock
        self._votes: dict[int, dict[Any, Any]] = {}  # votes for an unsound candidate, by term and member
        super().__init__(*arguments)

    def answered_s(self, now_s: float) -> float:
        """Return when the newest message was sent that a majority, this controller included, has answered."""
        others = len(self._nodes)
        newest = sorted(self._answered_s.values(), reverse=True)
        needed = (others + 1) // 2  # of the others
        if not needed:
            return now_s
        return newest[needed - 1] if len(newest) >= needed else float("-inf")

    @property
    def rules(self) -> int:
        """Newest version of the rules that all members know, by their answers to this one as the leader."""
        return min([self._known_rules, *(self._rules.get(node, FIRST_RULES) for node in self._nodes)])

    def send(self, node: Any, message: Any) -> bool:
        kind = message["type"]
        if kind == "apply_command":
            # of a leader that was deposed before it began: made from what it knew, such as its leases, it is void now
            return False
        if kind == "request_vote" and not self._journal.is_sound:
            message = message | {_UNSOUND: True}
        elif kind == "append_entries":
            message = self._appends.sending(node, message) | {_SENT: time.monotonic()}
        elif kind == "next_node_idx":
            answer = self._appends.answering(message)
            if answer is None:
                return False
            message = answer | {_SENT: self._sent_s.get(node), _TERM: self._syncObj.raftCurrentTerm}
            message[_RULES] = self._known_rules
        return bool(super().send(node, message))

    def _onMessageReceived(self, node: Any, message: Any) -> None:
        kind = message["type"]
        if kind == "request_vote" and message.get(_UNSOUND, False) == self._journal.is_sound:
            return
        if kind == "response_vote" and not self._journal.is_sound:
            self._collect(node, message)
            return
        term = self._syncObj.raftCurrentTerm
        if kind == "append_entries":
            if message["term"] < term:
                return
            self._sent_s[node] = message.get(_SENT)
            message = self._appends.received(node, message)
            if message is None:
                return
        elif kind == "next_node_idx":
            if message.get(_TERM, term) != term:
                return
            self._rules[node] = message.get(_RULES, FIRST_RULES)
            if message.get(_SENT) is not None:
                self._answered_s[node] = message[_SENT]
        super()._onMessageReceived(node, message)

    def _collect(self, node: Any, message: Any) -> None:
        """Deliver the votes for an unsound candidate once all members have voted."""
        votes = self._votes.setdefault(message["term"], {})
        votes[node] = message
        self._votes = {message["term"]: votes}
        if len(votes) == len(self._nodes):
            for voter, vote in votes.items():
                super()._onMessageReceived(voter, vote)

    def _onNodeConnected(self, node: Any) -> None:
        self._connections[node].bytes_max = _PEER_BYTES
        super()._onNodeConnected(node)

    def _onNewIncomingConnection(self, connection: Any) -> None:
        if len(self._unknownConnections) >= _STRANGERS_MAX:
            connection.disconnect()
            return
        super()._onNewIncomingConnection(connection)

    def _onTick(self) -> None:
        late = time.monotonic() - self._silence_s
        for stranger in [one for one in self._unknownConnections if one.since_s < late]:
            stranger.disconnect()
            self._unknownConnections.discard(stranger)
        super()._onTick()


def _encryptor(secrets: Secrets) -> MultiFernet:
    """Encrypt by the first secret and decrypt by each, so that a secret can be replaced without a stop."""
    keys = (hmac.digest(secret, b"ledgermq controllers", "sha256") for secret in secrets)
    return MultiFernet([Fernet(base64.urlsafe_b64encode(key)) for key in keys])


def _as_given(journal: QuorumJournal) -> QuorumJournal:
    """Replace PySyncObj's `createJournal`: the configuration has the journal itself, not its name."""
    return journal


pysyncobj.syncobj.createJournal = _as_given
pysyncobj.syncobj.getEncryptor = _encryptor
pysyncobj.tcp_server.TcpConnection = BoundedConnection
pysyncobj.transport.TcpConnection = BoundedConnection
