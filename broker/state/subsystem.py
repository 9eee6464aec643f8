"""The replicated tables as a subsystem: reactions to changes of the leader and of topics."""

import logging

from broker.role import Role
from broker.state.clamping import clamp_to_own_log
from broker.state.metadata import Metadata
from broker.state.offsets import ConsumerOffsets
from broker.state.tables import Propose, ReplicatedState, StateChange
from broker.subsystem import Subsystem
from ledgermq.remoting.refusal import Refusal
from store.message_store import MessageStore

log = logging.getLogger(__name__)


class StateSubsystem(Subsystem):
    """Keeps proposals, gathered offsets and queues consistent with the replicated tables."""

    def __init__(
        self,
        state: ReplicatedState,
        metadata: Metadata,
        offsets: ConsumerOffsets,
        store: MessageStore,
        role: Role,
        propose: Propose,
    ) -> None:
        self._state = state
        self._metadata = metadata
        self._offsets = offsets
        self._store = store
        self._role = role
        self._propose = propose

    def lead(self) -> None:
        """Replicate this leader's tables once if those of members may differ.

        They may if a Java group left them, whose members copied them by polling, or if the log lacks records that this
        leader's tables have. Tables that are written afterwards have our member `writtenBy`, so this happens once.
        """
        if clamp_to_own_log(self._state, self._store):
            log.warning("the log lacks records that the tables have: positions in them are set back to its end")
            self._state.is_foreign = True
            self._metadata.on_changed()
        if not self._role.is_alone and self._state.is_foreign:
            self._state.is_foreign = False
            for change in self._state.whole():
                self._propose(change, self._on_replicated)

    def follow(self) -> None:
        """Drop proposals and gathered offsets, which may never be committed."""
        self._metadata.forget_proposals()
        self._offsets.forget_ahead()

    def forget_topic(self, topic: str) -> None:
        """Remove the topic's queues."""
        self._store.queues.delete_topic(topic, self._state.removed.get(topic, -1))
        self._offsets.forget_topic(topic)

    async def drain(self) -> None:
        """Wait until the gathered consumer offsets are committed or refused."""
        await self._offsets.drain()

    def on_applied(self, change: StateChange) -> None:
        """Take note of an applied change; called before subsystems forget the topics and groups that it removes."""
        self._metadata.applied(change)
        self._offsets.on_applied(change)
        for key, queues in change.offsets.items():
            if queues is None:
                self._offsets.forget_key(key)
        if change.topics or change.groups:
            self._metadata.on_changed()

    def restore(self, snapshot: bytes) -> None:
        """Replace the tables by a leader's snapshot; raises as `ReplicatedState.restore`."""
        before, applied_offset = set(self._state.topics), self._state.applied_offset
        self._state.restore(snapshot)
        made_again = {name for name, removed_at in self._state.removed.items() if removed_at >= applied_offset}
        for name in before - self._state.topics.keys() | made_again:
            self._store.queues.delete_topic(name)
        self._metadata.on_changed()
        self.follow()

    def _on_replicated(self, outcome: Refusal | None) -> None:
        if outcome is not None:
            self._state.is_foreign = True  # the next leader tries again
            log.warning("the tables, in which those of members may differ, cannot be replicated yet: %s", outcome)
