"""The record that opens a leader's term: a rolled-back message of a system topic, so that no queue contains it.

Java's DLedger 0.3 has no empty entry. Its broker enters a record of this transaction type into no queue either.
"""

import json

from ledgermq.message.draft import RecordDraft
from ledgermq.message.flags import TRANSACTION_ROLLBACK, with_host_bits
from ledgermq.message.record import needs_v2, record_size

TOPIC = b"rmq_sys_ledgermq_term"


def term_start_draft(term: int, node_id: str, store_host: bytes, now_ms: int) -> RecordDraft:
    """Return the draft of the record; `store_host` is used as both of its hosts."""
    draft = RecordDraft()
    draft.topic = TOPIC
    draft.queue_id = 0
    draft.flag = 0
    draft.sys_flag = with_host_bits(TRANSACTION_ROLLBACK, store_host, store_host)
    draft.born_timestamp = now_ms
    draft.born_host = store_host
    draft.reconsume_times = 0
    draft.prepared_transaction_offset = 0
    draft.body = json.dumps({"term": term, "leader": node_id}).encode()
    draft.properties = b""
    draft.tags_code = 0
    draft.queue_offset = 0
    draft.size = record_size(len(draft.body), len(TOPIC), 0, draft.sys_flag, needs_v2(TOPIC))
    return draft
