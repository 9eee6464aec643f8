"""The record that opens a leader's term: a rolled-back message of a system topic, so that no queue contains it.

Java's DLedger 0.3 has no empty entry. Its broker enters a record of this transaction type into no queue either.
"""

import json

from ledgermq.message.draft import RecordDraft
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.flags import TRANSACTION_ROLLBACK, with_host_bits
from ledgermq.message.record import decode_record

TOPIC = b"rmq_sys_ledgermq_term"


def term_start_draft(term: int, node_id: str, store_host: bytes, now_ms: int) -> RecordDraft:
    """Return the draft of the record; `store_host` is used as both of its hosts."""
    body = json.dumps({"term": term, "leader": node_id}).encode()
    sys_flag = with_host_bits(TRANSACTION_ROLLBACK, store_host, store_host)
    draft = RecordDraft().fill(TOPIC, 0, body, born=(now_ms, store_host), sys_flag=sys_flag)
    draft.queue_offset = 0
    return draft


def opened_term(record: memoryview) -> int | None:
    """Return the term that a sound record opens; None if it opens none."""
    try:
        found = decode_record(record)
        term = json.loads(found.body)["term"] if found.topic == TOPIC.decode() else None
    except (CorruptRecordError, ValueError, KeyError, TypeError):
        return None
    return term if isinstance(term, int) else None
