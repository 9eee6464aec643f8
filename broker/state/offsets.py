"""Consumer offsets: changed at once on the leader, and appended to the log soon after.

    commit -> ahead (this leader only) --every 200 ms, one record--> log --commit--> replicated state, on every node
                 '-- read first                                                        '-- read otherwise

A one-way report that came within 200 ms before a leader dies is lost, and its consumers get those messages again. A
report that waits for an answer is appended at the end of the turn, and answered when it is committed.
"""

import asyncio
from collections.abc import Callable, Mapping

from broker.role import Role
from broker.state.pop_tables import PopChange
from broker.state.tables import OFFSET_KEY_SEPARATOR, Propose, ReplicatedState, StateChange, offset_key
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.route import QUEUES_MAX

GATHER_SECONDS = 0.2
_OFFSETS_PER_RECORD = 2_000
KEPT_MAX = 100_000
"""Most queues of groups of which a slave keeps the progress."""

CommitDone = Callable[[Refusal | None], None]


class ConsumerOffsets:
    """Offsets of all groups: the next queue offset a group will read, by topic, group and queue.

    Args:
        is_undecided: whether the removal of a topic or of a group is undecided; their offsets wait until then.

    Attributes:
        beside: returns POP's changes, in parts with the function to call when settled. They are appended no later than
            the offsets, the last part in the record of the first offsets.
    """

    def __init__(
        self,
        state: ReplicatedState,
        role: Role,
        propose: Propose,
        is_undecided: Callable[[str, str], bool],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._state = state
        self._role = role
        self._propose = propose
        self._is_undecided = is_undecided
        self._loop = loop
        self._ahead: dict[str, dict[int, int]] = {}
        self._resets: dict[tuple[str, int], int | None] = {}  # ahead of the state; None: the group's pull has had it
        self._unsent: set[tuple[str, int]] = set()
        self._sent: dict[tuple[str, int], int] = {}  # number of the last record with each offset, until that is settled
        self._kept: dict[tuple[str, int], int] = {}  # the master's offset below progress that this slave keeps
        self._records = 0
        self._waiting: list[CommitDone] = []
        self._timer: asyncio.Handle | None = None
        self._settled = asyncio.Event()
        self.beside: Callable[[], list[tuple[PopChange, CommitDone]]] = list

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the stored offset; None when the group has none for the queue."""
        key = offset_key(topic, group)
        ahead = self._ahead.get(key)
        if ahead is not None and queue_id in ahead:
            return ahead[queue_id]
        return self._state.offsets.get(key, {}).get(queue_id)

    def has_room(self, topic: str, group: str, queue_id: int) -> bool:
        """Return whether the group may have an offset in this queue, which need not exist.

        A group may have offsets of 65,536 queues of a topic.
        """
        key = offset_key(topic, group)
        known, ahead = self._state.offsets.get(key, {}), self._ahead.get(key, {})
        return len(known) + len(ahead) < QUEUES_MAX or queue_id in known or queue_id in ahead

    def commit(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        """Store an offset, which may be lower than before. The caller has checked that this node leads.

        While a reset waits for the group's pull, reports of the group are older than the reset and are ignored.
        """
        key = offset_key(topic, group)
        if self.get(topic, group, queue_id) == queue_offset or self._reset_of(key, queue_id) is not None:
            return
        if self._is_undecided(topic, group):
            return
        self._ahead.setdefault(key, {})[queue_id] = queue_offset
        self._unsent.add((key, queue_id))
        if self._timer is None:
            self._timer = self._loop.call_later(GATHER_SECONDS, self.send)
        elif len(self._unsent) == _OFFSETS_PER_RECORD:
            self._timer.cancel()
            self._timer = self._loop.call_soon(self.send)

    def commit_and_tell(self, topic: str, group: str, queue_offsets: Mapping[int, int], done: CommitDone) -> None:
        """Store offsets by queue id; `done` is called with None when all are committed, else with the refusal."""
        if self._is_undecided(topic, group):
            done(Refusal(Cause.TOPIC_NOT_EXIST, f"topic {topic} or group {group} is being removed"))
            return
        key = offset_key(topic, group)
        ahead, known = self._ahead.get(key, {}), self._state.offsets.get(key, {})
        changed = {
            queue_id: offset
            for queue_id, offset in queue_offsets.items()
            if self._reset_of(key, queue_id) is None and (queue_id in ahead or known.get(queue_id) != offset)
        }
        if changed:
            self._send_soon(key, changed, done)
        else:
            done(None)

    def _send_soon(self, key: str, queue_offsets: Mapping[int, int], done: CommitDone) -> None:
        """Append offsets by queue id at the end of this turn of the loop."""
        self._ahead.setdefault(key, {}).update(queue_offsets)
        self._unsent.update((key, queue_id) for queue_id in queue_offsets)
        if not self._waiting:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_soon(self.send)
        self._waiting.append(done)
        if len(self._unsent) >= _OFFSETS_PER_RECORD:  # so that a long request sees what is not settled yet, and pauses
            self.send()

    def keep(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        """Note progress at a slave, until the master has it: a higher offset than is known. Lower ones are ignored.

        Progress is also ignored while a reset waits for the group's pull, and beyond `KEPT_MAX` queues.
        """
        key = offset_key(topic, group)
        pair = key, queue_id
        if queue_offset <= (self.get(topic, group, queue_id) or 0) or self._reset_of(key, queue_id) is not None:
            return
        if pair in self._kept or len(self._kept) < KEPT_MAX:
            self._ahead.setdefault(key, {})[queue_id] = queue_offset
            self._unsent.add(pair)
            self._kept[pair] = self._state.offsets.get(key, {}).get(queue_id, 0)

    def on_applied(self, change: StateChange) -> None:
        """Drop kept progress that the master's log, which has changed the tables, has reset or taken back."""
        for key, queues in change.offsets.items() if self._kept else ():
            for queue_id, offset in (queues or {}).items():
                if offset < self._kept.get((key, queue_id), 0):
                    self._drop_kept(key, queue_id)
                elif (key, queue_id) in self._kept:
                    self._kept[key, queue_id] = offset
        for key, resets in change.resets.items() if self._kept else ():
            for queue_id, reset in resets.items():
                if reset is not None and (key, queue_id) in self._kept:
                    self._drop_kept(key, queue_id)

    def kept(self) -> list[tuple[str, str, int, int]]:
        """Return `(topic, group, queue id, offset)` of progress that this slave keeps and the log does not have."""
        found = []
        for key, queue_id in sorted(self._unsent):
            offset = self._ahead[key][queue_id]
            if offset > self._state.offsets.get(key, {}).get(queue_id, 0):
                topic, _, group = key.rpartition(OFFSET_KEY_SEPARATOR)
                found.append((topic, group, queue_id, offset))
            else:
                self._drop_kept(key, queue_id)
        return found

    def _drop_kept(self, key: str, queue_id: int) -> None:
        self._unsent.discard((key, queue_id))
        del self._kept[key, queue_id]
        ahead = self._ahead[key]
        del ahead[queue_id]
        if not ahead:
            del self._ahead[key]

    def reset(self, topic: str, group: str, queue_offsets: Mapping[int, int], done: CommitDone) -> None:
        """Move a group to offsets by queue id. Its next pull of a queue gets them by `take_reset`, on any later leader.

        `done` as in `commit_and_tell`, once for all of them. The reset and the offset of a queue are in one record.
        """
        if self._is_undecided(topic, group):
            done(Refusal(Cause.TOPIC_NOT_EXIST, f"topic {topic} or group {group} is being removed"))
            return
        key = offset_key(topic, group)
        self._resets.update(((key, queue_id), queue_offset) for queue_id, queue_offset in queue_offsets.items())
        self._send_soon(key, queue_offsets, done)

    @property
    def has_resets(self) -> bool:
        """Whether any reset waits for a pull."""
        return bool(self._resets or self._state.resets)

    def reset_of(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the offset of a reset that waits for the group's pull of the queue; None without one."""
        return self._reset_of(offset_key(topic, group), queue_id)

    def take_reset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return what `reset_of` returns, on the leader, and end the reset.

        So a pull gets it once, unless this node stops leading.
        """
        key = offset_key(topic, group)
        offset = self._reset_of(key, queue_id)
        if offset is not None:
            self._resets[key, queue_id] = None

            def done(refusal: Refusal | None) -> None:
                if refusal is None and self._resets.get((key, queue_id), 0) is None:
                    del self._resets[key, queue_id]

            self._propose(StateChange(resets={key: {queue_id: None}}), done)
        return offset

    def _reset_of(self, key: str, queue_id: int) -> int | None:
        if (key, queue_id) in self._resets:
            return self._resets[key, queue_id]
        return self._state.resets.get(key, {}).get(queue_id)

    def queues(self, topic: str, group: str) -> dict[int, int]:
        """Return the group's offsets in a topic, by queue id."""
        key = offset_key(topic, group)
        return {**self._state.offsets.get(key, {}), **self._ahead.get(key, {})}

    def groups_of_topic(self, topic: str) -> list[str]:
        """Return groups with stored offsets in a topic."""
        beginning = topic + OFFSET_KEY_SEPARATOR
        return [key.removeprefix(beginning) for key in self.all() if key.startswith(beginning)]

    def all(self) -> Mapping[str, Mapping[int, int]]:
        """Return every offset by `topic@group` and queue id."""
        merged: dict[str, Mapping[int, int]] = dict(self._state.offsets)
        for key, queues in self._ahead.items():
            merged[key] = {**merged.get(key, {}), **queues}
        return merged

    def topics_of_group(self, group: str) -> list[str]:
        """Return topics in which the group has stored offsets."""
        ending = OFFSET_KEY_SEPARATOR + group
        return [key.removesuffix(ending) for key in self.all() if key.endswith(ending)]

    def topics_by_group(self) -> dict[str, list[str]]:
        """Return topics in which groups have stored offsets, by group."""
        found: dict[str, list[str]] = {}
        for key in self.all():
            topic, _, group = key.rpartition(OFFSET_KEY_SEPARATOR)
            found.setdefault(group, []).append(topic)
        return found

    def send(self) -> None:
        """Append the gathered offsets now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._role.writable:
            return
        *before, (pop, pop_done) = self.beside() or [(PopChange(), _no_caller)]
        for change, done in before:
            self._propose(StateChange(pop=change), done)
        waiting, self._waiting = self._waiting, []
        kept_back = {key for key in {key for key, _ in self._unsent} if self.is_kept_back(key)}
        pending = sorted(pair for pair in self._unsent if pair[0] not in kept_back)
        self._unsent.difference_update(pending)
        if self._unsent:
            self._timer = self._loop.call_later(GATHER_SECONDS, self.send)
        if not pending:
            _call_all(
                waiting,
                Refusal(
                    Cause.TOPIC_NOT_EXIST, "the topic or the group was removed while the offset was being committed"
                ),
            )
            if pop:
                self._propose(StateChange(pop=pop), pop_done)
        for start in range(0, len(pending), _OFFSETS_PER_RECORD):
            chosen = pending[start : start + _OFFSETS_PER_RECORD]
            # records commit in order, so the last one settles all
            callbacks = [pop_done] if start == 0 else []
            callbacks += waiting if chosen[-1] is pending[-1] else []
            self._send_record(chosen, pop if start == 0 else PopChange(), callbacks)

    def _send_record(self, chosen: list[tuple[str, int]], pop: PopChange, waiting: list[CommitDone]) -> None:
        self._records = number = self._records + 1
        values: dict[str, dict[int, int]] = {}
        resets: dict[str, dict[int, int | None]] = {}
        for key, queue_id in chosen:
            if (moved_to := self._resets.get((key, queue_id))) is not None:
                resets.setdefault(key, {})[queue_id] = moved_to
            values.setdefault(key, {})[queue_id] = self._ahead[key][queue_id]
            self._sent[key, queue_id] = number

        def done(refusal: Refusal | None) -> None:
            self._settle(chosen, number, refusal)
            _call_all(waiting, refusal)

        self._propose(StateChange(offsets=values, resets=resets, pop=pop), done)

    def is_kept_back(self, key: str) -> bool:
        """Return whether changes of `key` (`topic@group`, or longer) must wait, since a removal is undecided."""
        topic, group = key.split(OFFSET_KEY_SEPARATOR)[:2]
        return self._is_undecided(topic, group)

    async def drain(self) -> None:
        """Append the gathered offsets and wait until they are committed or refused."""
        self.send()
        while self._ahead and self._role.writable:
            self._settled.clear()
            await self._settled.wait()

    def forget_topic(self, topic: str) -> None:
        """Drop the offsets of a topic that was removed."""
        known = {*self._ahead, *(key for key, _ in self._resets)}
        self._forget([key for key in known if key.partition(OFFSET_KEY_SEPARATOR)[0] == topic])

    def forget_key(self, key: str) -> None:
        """Drop the offsets of one `topic@group`, which were removed."""
        self._forget([key])

    def forget_ahead(self) -> None:
        """Drop offsets that the log does not have: this node no longer leads. A slave keeps them for its master.

        So does one that was master up to now, elected by controllers.
        """
        if self._role.is_slave:
            for key, queues in self._ahead.items():
                for queue_id in queues:
                    self._unsent.add((key, queue_id))
                    self._kept.setdefault((key, queue_id), self._state.offsets.get(key, {}).get(queue_id, 0))
        else:
            self._ahead.clear()
            self._unsent.clear()
        self._resets.clear()
        self._sent.clear()
        waiting, self._waiting = self._waiting, []
        _call_all(waiting, Refusal(Cause.LEADER_CHANGED, "this node stopped leading before the offset was in the log"))
        self._settled.set()

    def _settle(self, chosen: list[tuple[str, int]], number: int, refusal: Refusal | None) -> None:
        """Settle a record: it is applied, or refused; then its offsets are appended again while this node leads.

        Offsets that a later record has, or will have, are left to that record.
        """
        for pair in chosen:
            if self._sent.get(pair) != number:
                continue
            del self._sent[pair]
            if pair in self._unsent:
                continue
            if refusal is not None:
                self._unsent.add(pair)
                continue
            key, queue_id = pair
            if self._resets.get(pair) is not None:
                del self._resets[pair]  # the replicated state has it now
            self._kept.pop(pair, None)
            ahead = self._ahead[key]
            del ahead[queue_id]
            if not ahead:
                del self._ahead[key]
        self._settled.set()
        if self._unsent and self._timer is None:
            self._timer = self._loop.call_later(GATHER_SECONDS, self.send)

    def _forget(self, keys: list[str]) -> None:
        for key in keys:
            self._ahead.pop(key, None)
        self._resets = {pair: offset for pair, offset in self._resets.items() if pair[0] not in keys}
        self._unsent = {item for item in self._unsent if item[0] not in keys}
        self._sent = {item: number for item, number in self._sent.items() if item[0] not in keys}
        self._kept = {item: offset for item, offset in self._kept.items() if item[0] not in keys}


def _no_caller(_: Refusal | None) -> None: ...


def _call_all(waiting: list[CommitDone], refusal: Refusal | None) -> None:
    for tell in waiting:
        tell(refusal)
