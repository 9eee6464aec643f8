"""CHECK_TRANSACTION_STATE (39): what a producer is asked, over its own connection, without an answer to the question.

It decides by END_TRANSACTION with `fromTransactionCheck=true`. The body is the half message as its producer sent it:
real topic and queue, but the offsets of the copy that is asked about.

Source: apache/rocketmq `broker/.../transaction/AbstractTransactionalMessageCheckListener.java` (5.3.3).
"""

import dataclasses

from broker.state import names
from ledgermq.message.properties import REAL_QUEUE_ID, REAL_TOPIC
from ledgermq.message.record import MAGIC_V1, MAGIC_V2, Record, encode_record, needs_v2, record_size
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command


def check_command(record: Record, broker_name: str) -> Command:
    """The question about the half message in `record`."""
    key = record.unique_id or ""
    fields = {
        "bname": broker_name,
        "commitLogOffset": str(record.physical_offset),
        "msgId": key,
        "offsetMsgId": record.offset_message_id,
        "topic": names.HALF_TOPIC,
        "tranStateTableOffset": str(record.queue_offset),
        "transactionId": key,
    }
    return Command(RequestCode.CHECK_TRANSACTION_STATE, ext=fields, body=encode_record(_as_sent(record)))


def _as_sent(record: Record) -> Record:
    properties = record.property_map
    topic, queue_id = properties.get(REAL_TOPIC, record.topic), properties.get(REAL_QUEUE_ID, "")
    v2 = needs_v2(topic.encode())
    return dataclasses.replace(
        record,
        topic=topic,
        queue_id=int(queue_id) if queue_id.isascii() and queue_id.isdigit() else 0,
        magic=MAGIC_V2 if v2 else MAGIC_V1,
        size=record_size(len(record.body), len(topic.encode()), len(record.properties), record.sys_flag, v2),
    )
