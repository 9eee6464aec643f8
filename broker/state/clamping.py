"""Clamps tables that are ahead of the log to its end.

A power cut may take the end of the log and leave tables that were saved later, for example by a release that did not
wait for the log, or restored by hand. New records will get the positions that such tables name, so positions at or
behind the log's end are taken out.

A member of a Raft group that was killed after an install has such tables too, but gets the very records that they name
again: offsets of groups stay there, since administrators may have moved some beyond the end that a queue has so far.
If it leads with a log that does not reach so far, those records are lost: then offsets are clamped, too. An offset
beyond the end of its queue would hide the messages that are sent there next.
"""

from broker.state.pop_core import Checkpoint
from broker.state.tables import MARKS_KEY, OFFSET_KEY_SEPARATOR, TIMER_PROGRESS_KEY, ReplicatedState
from store.message_store import MessageStore


def clamp_to_log(state: ReplicatedState, store: MessageStore) -> None:
    """Limit the positions in `state` to what `store` has dispatched; state records behind that are applied again.

    In a Raft group, offsets stay as they are until the member leads.
    """
    if store.log.state.role.is_member:
        state.ahead_to = max(state.ahead_to, state.applied_offset)
    else:
        _clamp_offsets(state, store)
    _clamp_others(state, store)


def clamp_to_own_log(state: ReplicatedState, store: MessageStore) -> bool:
    """Limit all positions in `state`, if this node leads a Raft group and its log lacks records that the tables have.

    A leader has dispatched all records that there are.

    Returns:
        Whether positions were limited. The other members do not know that they have changed.
    """
    is_whole = store.dispatched_offset >= max(state.ahead_to, state.applied_offset)
    if is_whole or not store.log.state.role.is_member:
        return False
    state.ahead_to = 0
    _clamp_offsets(state, store)
    _clamp_others(state, store)
    return True


def _clamp_offsets(state: ReplicatedState, store: MessageStore) -> None:
    def clamped(key: str, number: int, value: int) -> int:
        if key == MARKS_KEY:
            return min(value, store.dispatched_offset)
        if key == TIMER_PROGRESS_KEY and number != 0:  # a time, not a position
            return value
        return min(value, _queue_end(store, key.partition(OFFSET_KEY_SEPARATOR)[0], number))

    for moves in (state.offsets, state.resets):
        for key, values in moves.items():
            moves[key] = {number: clamped(key, number, value) for number, value in values.items()}


def _clamp_others(state: ReplicatedState, store: MessageStore) -> None:
    end = store.dispatched_offset
    state.applied_offset = end
    state.removed = {name: min(position, end - 1) for name, position in state.removed.items()}
    state.lanes = {key: lane for key, lane in state.lanes.items() if lane.offset < end}
    state.lane_version += 1
    pop = state.pop
    pop.version += 1
    checkpoints = [_before(taken, _queue_end(store, taken.topic, taken.queue_id)) for taken in pop.checkpoints.values()]
    pop.checkpoints = {taken.key: taken for taken in checkpoints if taken.offsets}
    for key, given in list(pop.orders.items()):
        topic, _, queue_id = key.split(OFFSET_KEY_SEPARATOR)
        if given.offsets[-1] >= _queue_end(store, topic, int(queue_id)):
            del pop.orders[key]


def _queue_end(store: MessageStore, topic: str, queue_id: int) -> int:
    queue = store.queues.find(topic, queue_id)
    return queue.max_offset if queue is not None else 0


def _before(taken: Checkpoint, end: int) -> Checkpoint:
    """Return the checkpoint with only its messages below queue offset `end`."""
    offsets = tuple(offset for offset in taken.offsets if offset < end)
    return taken._replace(offsets=offsets, acked=taken.acked & (1 << len(offsets)) - 1)
