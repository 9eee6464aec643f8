"""Hands the offsets that consumers committed to a slave over to its master, when the master is back.

A slave writes no records. Consumers that read from it while the master is away commit there, and continue from there.
The master gets these offsets within seconds of its return, unless it has higher ones by then.
"""

from broker.forwarding import LeaderForwarding
from broker.role import Role
from broker.state.offsets import ConsumerOffsets
from broker.timers import Spawn
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError

_AT_ONCE = 500


class KeptOffsets:
    """Sends kept offsets to the master; call `hand_over` periodically."""

    def __init__(self, offsets: ConsumerOffsets, role: Role, forwarding: LeaderForwarding, spawn: Spawn) -> None:
        self._offsets = offsets
        self._role = role
        self._forwarding = forwarding
        self._spawn = spawn
        self._is_sending = False
        self._sent_last = ("", "", -1)  # topic, group, queue id

    def hand_over(self) -> None:
        """Begin to send kept offsets to the master, unless that is under way; do nothing on other nodes."""
        master = self._role.leader_elsewhere if self._role.is_slave else None
        if not self._is_sending and master is not None and self._offsets.kept():
            self._is_sending = True
            self._spawn(self._send(master))

    async def _send(self, master: str) -> None:
        """Send kept offsets to the master; each is kept until it comes back with the master's log.

        Each call continues behind the last one sent, so that what the master refuses does not keep the rest waiting.
        """
        try:
            forward = self._forwarding.forward
            kept = sorted(self._offsets.kept())
            first = next((index for index, one in enumerate(kept) if one[:3] > self._sent_last), 0)
            for topic, group, queue_id, offset in (kept[first:] + kept[:first])[:_AT_ONCE]:
                self._sent_last = topic, group, queue_id
                fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
                if forward is not None:
                    await forward(master, Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext=fields))
        except RemotingError:
            self._role.avoid(master)  # it is away, perhaps: tried again
        finally:
            self._is_sending = False
