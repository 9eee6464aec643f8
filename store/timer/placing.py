"""The slot of a timer: it depends on the record alone, not on when this node came to it, so all nodes agree.

    store time |---- delay within the roll window ----> the slot it is due in
               |---- a longer one ----> a slot within the window, to be put into the timer topic again from there

Source: apache/rocketmq `store/.../timer/TimerMessageStore.java` (doEnqueue, 5.3.3). Ours: the roll is counted from the
record's store time, upstream from the node's clock.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store.timer.timer_log import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL
from store.timer.timer_message import TimerMessage
from store.timer.wheel import SLOT_COUNT

_BLANK_SLOTS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerIndexConfig:
    """Settings of the slots: their place and precision.

    Attributes:
        root: the store's directory.
        precision_ms: length of a slot.
        roll_window_slots: longest delay in slots before a timer is rolled on; out of range means the longest possible.
        log_file_size_bytes: of a file of the timer log.
    """

    root: Path
    precision_ms: int = 1000
    roll_window_slots: int = 172_800
    log_file_size_bytes: int = 100 << 20
    slot_count: int = SLOT_COUNT

    @property
    def roll_window_ms(self) -> int:
        longest = self.slot_count // 2 - _BLANK_SLOTS
        slots = self.roll_window_slots if 2 <= self.roll_window_slots <= longest else longest
        return slots * self.precision_ms


def place(timer: TimerMessage, config: TimerIndexConfig) -> tuple[int, int, int]:
    """Return slot time (ms), magic and write time (ms) of a timer."""
    precision, window = config.precision_ms, config.roll_window_ms
    write_ms = timer.store_ms // precision * precision
    slot_ms, magic = timer.out_ms // precision * precision, MAGIC_DEFAULT
    excess = slot_ms - write_ms - window
    if excess >= 0:
        magic |= MAGIC_ROLL
        half = window // precision // 2 * precision
        slot_ms = write_ms + (half if excess < window // precision // 3 * precision else window)
    if timer.deletes:
        magic |= MAGIC_DELETE
    return slot_ms, magic, write_ms
