"""Makes the broker's own drafts: state records, and stored messages that are written to the log again."""

from typing import Final

from broker.append.target import SendTarget
from broker.state import names
from ledgermq.message.flags import TRANSACTION_MASK, with_host_bits
from ledgermq.message.hashing import tags_code
from ledgermq.message.hosts import encode_host
from ledgermq.message.properties import PROPERTIES_LENGTH_MAX, TAGS, encode_properties
from ledgermq.message.record import Record
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.wall_clock import wall_clock_ms
from store.log.drafts import QueuedDraft
from store.queues.queue_entries import MULTI_OFFSETS
from store.queues.queue_table import QueueTable

_LIGHT_OFFSETS: Final = MULTI_OFFSETS.decode()


class DraftMaker:
    """Makes drafts that have this broker's address as store host."""

    def __init__(self, queues: QueueTable, store_host: bytes) -> None:
        self._queues = queues
        self._store_host = store_host

    def state(self, body: bytes) -> QueuedDraft:
        """Return a record of the state topic; its born time is the present time in ms."""
        target = SendTarget(self._queues.get(names.STATE_TOPIC, 0))
        born_timestamp = wall_clock_ms()
        return self._draft(target, body, b"", born=(born_timestamp, self._store_host))

    def new(
        self, target: SendTarget, body: bytes, properties: bytes, *, born: tuple[int, bytes], tags: str = ""
    ) -> QueuedDraft:
        """Return a message of the broker's own, `born` (ms) at an encoded host; `tags` are those in `properties`."""
        draft = self._draft(target, body, properties, born=born)
        draft.tags_code = tags_code(tags) if tags else 0
        return draft

    def own(self, target: SendTarget, body: bytes, properties: bytes, *, born_ms: int, tags: str = "") -> QueuedDraft:
        """Return what `new` returns, with this broker as the born host."""
        return self.new(target, body, properties, born=(born_ms, self._store_host), tags=tags)

    def again(
        self, record: Record, target: SendTarget, properties: dict[str, str], *, reconsume_times: int
    ) -> QueuedDraft:
        """Return a draft of a stored message for another queue: body, flags, born time and born host are kept.

        Offsets in light queues are left out: they are those of the stored record.

        Raises:
            Refusal: MESSAGE_ILLEGAL, the properties have become too long.
        """
        if _LIGHT_OFFSETS in properties:
            properties = {name: value for name, value in properties.items() if name != _LIGHT_OFFSETS}
        encoded = encode_properties(properties)
        if len(encoded) > PROPERTIES_LENGTH_MAX:
            size = f"{len(encoded)} bytes, the limit is {PROPERTIES_LENGTH_MAX}"
            raise Refusal(
                Cause.MESSAGE_ILLEGAL, f"the properties of the record at {record.physical_offset} grow to {size}"
            )
        born = (record.born_timestamp, encode_host(record.born_host))
        draft = self._draft(target, record.body, encoded, born=born, sys_flag=record.sys_flag & ~TRANSACTION_MASK)
        draft.flag = record.flag
        draft.reconsume_times = reconsume_times
        draft.tags_code = tags_code(properties[TAGS]) if TAGS in properties else 0
        return draft

    def _draft(
        self, target: SendTarget, body: bytes, properties: bytes, *, born: tuple[int, bytes], sys_flag: int = 0
    ) -> QueuedDraft:
        draft = QueuedDraft()
        draft.messages, draft.tally, draft.queue = 1, None, target.queue
        flags = with_host_bits(sys_flag, born[1], self._store_host)
        return draft.fill(target.topic, target.queue_id, body, properties, born=born, sys_flag=flags)
