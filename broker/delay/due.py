"""Timers that are due soon, in memory on the leader: loaded by slot, taken in the order of their times.

    slots of the index ---load, a little ahead---> heap by (due, queue offset) ---take(now)---> in flight ---finish
                                deletions remove timers of their slot --------'

Slots are loaded in order; new timers of a loaded slot are added by `add`. Pure: the caller reads the records.

Source: apache/rocketmq `store/.../timer/TimerMessageStore.java` (dequeue, TimerDequeueGetMessageService), 5.3.3.
"""

import heapq
from dataclasses import dataclass, field

from store.log.drafts import QueuedDraft
from store.timer.timer_log import MAGIC_ROLL
from store.timer.timer_message import TimerMessage

LATE = -1
"""The slot of a timer that was stored after its slot had been delivered."""


@dataclass(slots=True, eq=False)
class DueTimer:
    """One timer.

    Attributes:
        slot_ms: the start of its slot, ms since the epoch, or `LATE`.
        write_ms: when it was entered into its slot, ms since the epoch.
        magic: the flags of its unit in the timer log.
        draft: the message to deliver; None: not made yet.
    """

    timer: TimerMessage
    slot_ms: int
    write_ms: int
    magic: int
    draft: QueuedDraft | None = None

    @property
    def is_roll(self) -> bool:
        """Whether its time is beyond the wheel, so that it goes into the timer topic again."""
        return bool(self.magic & MAGIC_ROLL)

    @property
    def due_ms(self) -> int:
        return self.slot_ms if self.is_roll else self.timer.due_ms


@dataclass(slots=True)
class _SlotState:
    open: int = 0  # timers in the heap or in flight, and units that could not be read yet
    delivered: int = 0
    early: set[int] = field(default_factory=set)  # physical offsets delivered before the whole slot was loaded
    deleted: set[str] = field(default_factory=set)


class DueTimers:
    """The heap and its slots.

    Args:
        precision_ms: length of a slot.

    Attributes:
        loaded_ms: slots before it are loaded.
    """

    def __init__(self, precision_ms: int) -> None:
        self._precision_ms = precision_ms
        self._heap: list[tuple[int, int, DueTimer]] = []
        self._slots: dict[int, _SlotState] = {}
        self._present: dict[int, DueTimer] = {}
        self._by_key: dict[str, set[int]] = {}
        self.loaded_ms = 0

    def __len__(self) -> int:
        return len(self._present)

    def has(self, key: str) -> bool:
        """Return whether a timer with this key is present and not finished."""
        return key in self._by_key

    def restart(self, read_ms: int) -> None:
        """Forget everything; the slot at `read_ms` is the first to load."""
        for table in (self._heap, self._slots, self._present, self._by_key):
            table.clear()
        self.loaded_ms = read_ms

    def add(self, due: DueTimer) -> None:
        """Add a timer, unless it is present already or deleted by a deletion of its slot."""
        timer = due.timer
        state = self._slots.setdefault(due.slot_ms, _SlotState())
        if timer.deletes and not due.is_roll:
            self._delete(due.slot_ms, state, timer.deletes)
            return
        if timer.physical_offset in self._present or timer.physical_offset in state.early:
            return
        if not due.is_roll and timer.key in state.deleted:
            return
        state.open += 1
        self._present[timer.physical_offset] = due
        if timer.key:
            self._by_key.setdefault(timer.key, set()).add(timer.physical_offset)
        heapq.heappush(self._heap, (due.due_ms, timer.queue_offset, due))

    def take(self, now_ms: int, count_max: int) -> list[DueTimer]:
        """Return up to `count_max` timers that are due, the earliest first; each needs `finish` or `retry`."""
        taken: list[DueTimer] = []
        while self._heap and self._heap[0][0] <= now_ms and len(taken) < count_max:
            due = heapq.heappop(self._heap)[2]
            if self._present.get(due.timer.physical_offset) is due:
                taken.append(due)
        return taken

    def retry(self, due: DueTimer, at_ms: int) -> None:
        """Put back a taken timer that could not be delivered; it is due again at `at_ms`."""
        heapq.heappush(self._heap, (at_ms, due.timer.queue_offset, due))

    def finish(self, due: DueTimer) -> None:
        """End a taken timer: it is delivered, or never will be."""
        if self._present.pop(due.timer.physical_offset, None) is None:
            return
        state = self._slots[due.slot_ms]
        state.open -= 1
        state.delivered += 1
        if due.slot_ms >= self.loaded_ms:
            state.early.add(due.timer.physical_offset)
        if due.timer.key and (known := self._by_key.get(due.timer.key)) is not None:
            known.discard(due.timer.physical_offset)
            if not known:
                del self._by_key[due.timer.key]

    def hold(self, slot_ms: int) -> None:
        """Count one unreadable timer of the slot: the slot is not complete until `release` is called for it."""
        self._slots.setdefault(slot_ms, _SlotState()).open += 1

    def release(self, slot_ms: int) -> None:
        """Undo one `hold`: its timer is read by now, or deleted."""
        self._slots[slot_ms].open -= 1

    def overdue_count(self, now_ms: int) -> int:
        """Return the number of timers that are due at `now_ms` and not taken."""
        return sum(1 for due_ms, _, _ in self._heap if due_ms <= now_ms) if self._heap else 0

    def next_due_ms(self) -> int | None:
        """Return when the earliest timer is due, in ms since the epoch; None without timers."""
        return self._heap[0][0] if self._heap else None

    def read_ms(self, now_ms: int) -> int:
        """Return the start of the first slot that is not delivered completely; the present one's at the latest."""
        limit = min(self.loaded_ms, now_ms // self._precision_ms * self._precision_ms)
        for slot_ms in [slot_ms for slot_ms, state in self._slots.items() if not state.open and slot_ms < limit]:
            del self._slots[slot_ms]
        return min((slot_ms for slot_ms, state in self._slots.items() if slot_ms != LATE and state.open), default=limit)

    def oldest_late(self) -> int | None:
        """Return the least queue offset of the late timers that are not delivered; None without such."""
        late = self._slots.get(LATE)
        if late is None or not late.open:
            return None
        return min(due.timer.queue_offset for due in self._present.values() if due.slot_ms == LATE)

    def partly_delivered(self) -> dict[int, list[DueTimer]]:
        """Return the slots that are loaded whole and delivered in part, in order, each with its remaining timers."""
        partly_delivered: dict[int, list[DueTimer]] = {
            slot_ms: []
            for slot_ms in sorted(self._slots)
            if slot_ms != LATE and slot_ms < self.loaded_ms and self._slots[slot_ms].delivered
        }
        for due in self._present.values():
            if due.slot_ms in partly_delivered:
                partly_delivered[due.slot_ms].append(due)
        return partly_delivered

    def _delete(self, slot_ms: int, state: _SlotState, key: str) -> None:
        state.deleted.add(key)
        for physical_offset in list(self._by_key.get(key, ())):
            due = self._present[physical_offset]
            if due.slot_ms == slot_ms and not due.is_roll:
                self.finish(due)
