"""Shares queue locks with the next leader: the present one tells the other members which queues are locked.

    member --LOCKS--> leader        the answer: all locks; from then on the leader tells of each change, on the same
    member <--LOCKS-- leader        connection, in order

A lock that was given out in the moment in which the leader dies may be unknown to the next one.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

from broker.groups.locks import GroupLocks
from broker.role import Role
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.java_json import dumps
from ledgermq.remoting.codec.lenient_json import request_json
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.route import MessageQueue

LOCKS: Final = 53008
"""Request of a member for all queue locks, and one-way notice of the leader about later ones. The answer and the
notices have a list of changes: `group`, `client`, `queues` (null: all that the client had), `locked`."""

_QUEUES_MAX: Final = 50_000
_BYTES_MAX: Final = 8 << 20
"""Most queues in an answer, and most bytes of a notice: a longer frame would end the connection. Further queues follow
when the clients renew their locks, every 20 s."""

_log = logging.getLogger(__name__)


class SharedLocks:
    """Tells other members of the locks of this node while it leads, and learns of them while it follows."""

    def __init__(self, locks: GroupLocks, role: Role) -> None:
        self._locks = locks
        self._role = role
        self._members: list[Connection] = []
        locks.on_change = self._tell

    def answer(self, connection: Connection, command: Command) -> None:
        """Answer a member with all locks, and send it each later change."""
        self._members = [one for one in self._members if not one.is_closed and one is not connection] + [connection]
        changes, room, room_bytes = [], _QUEUES_MAX, _BYTES_MAX
        for group, client_id, queues in self._locks.held():
            room -= len(queues)
            if room < 0:
                break
            change = _change(group, client_id, queues, is_locked=True)
            if len(change) < room_bytes:
                room_bytes -= len(change) + 1
                changes.append(change)
        connection.respond(command, ResponseCode.SUCCESS, {}, b"[%b]" % b",".join(changes))

    def learn_all(self, outcome: Command | RemotingError) -> None:
        """Replace all locks by those in the leader's answer."""
        if not isinstance(outcome, Command) or outcome.code != ResponseCode.SUCCESS:
            _log.debug("the leader does not tell of queue locks: %s", outcome)
        elif not self._role.is_elected:
            self._locks.clear()
            try:
                self.learn(outcome)
            except Refusal as refusal:
                _log.warning("queue locks that the leader tells of are not understood: %s", refusal.remark)

    def learn(self, command: Command) -> None:
        """Apply changes that the leader sends.

        Raises:
            Refusal: MALFORMED_FIELD.
        """
        if self._role.is_elected:
            return  # they are this node's own now
        try:
            for change in request_json(command):
                self._learn(str(change["group"]), str(change["client"]), change["queues"], bool(change["locked"]))
        except (KeyError, TypeError, ValueError) as error:
            raise Refusal(Cause.MALFORMED_FIELD, f"a change of queue locks has no good {error}") from error

    def _learn(self, group: str, client_id: str, listed: list[Any] | None, is_locked: bool) -> None:
        queues = [MessageQueue(str(topic), str(broker), int(number)) for topic, broker, number in listed or ()]
        if is_locked:
            self._locks.learn(group, client_id, queues)
        elif listed is None:
            self._locks.left(group, client_id)
        else:
            self._locks.unlock(group, client_id, queues)

    def _tell(self, group: str, client_id: str, queues: Sequence[MessageQueue] | None, is_locked: bool) -> None:
        if not self._members or not self._role.is_elected:
            return
        body = b"[%b]" % _change(group, client_id, queues, is_locked=is_locked)
        for member in self._members:
            if not member.is_closed and len(body) <= _BYTES_MAX:
                member.oneway(Command(LOCKS, body=body))


def _change(group: str, client_id: str, queues: Sequence[MessageQueue] | None, *, is_locked: bool) -> bytes:
    listed = None if queues is None else [list(queue) for queue in queues]
    return dumps({"group": group, "client": client_id, "queues": listed, "locked": is_locked})
