"""Clamps tables that are ahead of the log to its end.

A power cut may take the end of the log and leave tables that were saved later, for example by a release that did not
wait for the log, or restored by hand. New records will get the positions that such tables name, so positions at or
behind the log's end are taken out.

A member of a Raft group that was killed after an install has such tables too, but gets the very records that they name
again: offsets of groups stay there, since administrators may have moved some beyond the end that a queue has so far.
"""

from broker.state.pop_core import Checkpoint
from broker.state.tables import MARKS_KEY, OFFSET_KEY_SEPARATOR, TIMER_PROGRESS_KEY, ReplicatedState
from store.message_store import MessageStore


def clamp_to_log(state: ReplicatedState, store: MessageStore) -> None:
    """Limit all positions in `state` to what `store` has dispatched; state records behind that are applied again."""
    end = store.dispatched_offset

    def queue_end(topic: str, queue_id: int) -> int:
        queue = store.queues.find(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def clamped(key: str, number: int, value: int) -> int:
        if key == MARKS_KEY:
            return min(value, end)
        if key == TIMER_PROGRESS_KEY and number != 0:  # a time, not a position
            return value
        return min(value, queue_end(key.partition(OFFSET_KEY_SEPARATOR)[0], number))

    state.applied_offset = end
    state.removed = {name: min(position, end - 1) for name, position in state.removed.items()}
    if not store.log.state.role.is_member:
        for moves in (state.offsets, state.resets):
            for key, values in moves.items():
                moves[key] = {number: clamped(key, number, value) for number, value in values.items()}
    state.lanes = {key: lane for key, lane in state.lanes.items() if lane.offset < end}
    state.lane_version += 1
    pop = state.pop
    pop.version += 1
    checkpoints = [_before(taken, queue_end(taken.topic, taken.queue_id)) for taken in pop.checkpoints.values()]
    pop.checkpoints = {taken.key: taken for taken in checkpoints if taken.offsets}
    for key, given in list(pop.orders.items()):
        topic, _, queue_id = key.split(OFFSET_KEY_SEPARATOR)
        if given.offsets[-1] >= queue_end(topic, int(queue_id)):
            del pop.orders[key]


def _before(taken: Checkpoint, end: int) -> Checkpoint:
    """The checkpoint with its messages below queue offset `end` only."""
    offsets = tuple(offset for offset in taken.offsets if offset < end)
    return taken._replace(offsets=offsets, acked=taken.acked & (1 << len(offsets)) - 1)
