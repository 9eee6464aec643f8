"""Reads records that a client names by offset, except the cluster's own, which contain users' secrets."""

from broker.state import names
from ledgermq.message.record import decode_record
from ledgermq.remoting.refusal import Cause, Refusal
from store.message_store import MessageStore


def visible_record(store: MessageStore, physical_offset: int) -> memoryview | None:
    """Return the record that begins at a physical offset; None without one.

    Raises:
        Refusal: NO_PERMISSION, it belongs to a topic of the cluster itself.
    """
    record = store.reader.look_up(physical_offset)
    if record is not None and names.is_internal_topic(decode_record(record).topic):
        raise Refusal(Cause.NO_PERMISSION, f"the record at {physical_offset} belongs to a system topic of the cluster")
    return record
