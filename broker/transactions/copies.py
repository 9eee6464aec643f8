"""Copies of half messages that stay undecided, and the question to their producers, CHECK_TRANSACTION_STATE (39).

A copy goes to the end of the half topic before its producer is asked again, or to TRANS_CHECK_MAX_TIME_TOPIC when it is
given up. The producer does not answer request 39; it sends END_TRANSACTION with `fromTransactionCheck=true`.

Source: apache/rocketmq `broker/.../transaction/queue/TransactionalMessageBridge.java` (renewHalfMessageInner),
`DefaultTransactionalMessageCheckListener.java`, `AbstractTransactionalMessageCheckListener.java` (5.3.3).
"""

import dataclasses
import logging
import random
from collections.abc import Callable

from broker.context import BrokerContext
from broker.groups.clients import ClientTable
from broker.state import names
from broker.transactions.halves import CHECK_TIMES
from ledgermq.message.properties import REAL_QUEUE_ID, REAL_TOPIC, WAIT
from ledgermq.message.record import MAGIC_V1, MAGIC_V2, Record, encode_record, needs_v2, record_size
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.refusal import Refusal
from store.log.drafts import QueuedDraft

log = logging.getLogger(__name__)

MayPublish = Callable[[str | None, str, str], bool]
"""Whether a user may send to a topic from an address."""


class TransactionCopies:
    """Makes the copies, and sends the questions.

    Args:
        may_publish: whether a user (None: unknown) at an address may send to a topic. Only such a client is asked about
            a half message, since the question holds the message.
    """

    def __init__(self, context: BrokerContext, clients: ClientTable, may_publish: MayPublish) -> None:
        self._identity = context.identity
        self._metadata = context.metadata
        self._clients = clients
        self._may_publish = may_publish
        self._targets = context.targets
        self._drafts = context.drafts
        self._random = random.Random()

    def put_back(self, record: Record, check_times: int, first: int) -> QueuedDraft | None:
        """Return a copy for the half topic with `check_times` as its number of checks; None when it would be too long.

        `first`: physical offset of the message's first record, which it names.
        """
        properties = {**record.property_map, CHECK_TIMES: str(check_times), WAIT: "false"}
        draft = self._copy(record, names.HALF_TOPIC, properties)
        if draft is not None:
            draft.prepared_transaction_offset = first
        return draft

    def given_up_copy(self, record: Record) -> QueuedDraft | None:
        """Return a copy for TRANS_CHECK_MAX_TIME_TOPIC that names its origin; None when it would be too long.

        Raises:
            Refusal: its topic cannot be made now.
        """
        self._metadata.topic_for_group(names.CHECKED_OUT_TOPIC, 1)
        draft = self._copy(record, names.CHECKED_OUT_TOPIC, record.property_map)
        if draft is not None:
            draft.prepared_transaction_offset = record.physical_offset
        return draft

    def for_another_master(self, record: Record) -> QueuedDraft | None:
        """Return the half message as its producer sent it, which names its origin; None without its topic here."""
        properties = record.property_map
        topic = self._metadata.topic(properties.get(REAL_TOPIC, ""))
        queue_id = properties.get(REAL_QUEUE_ID, "")
        if topic is None or not queue_id.isascii() or not queue_id.isdigit():
            return None
        dropped = (REAL_TOPIC, REAL_QUEUE_ID, CHECK_TIMES, WAIT)
        kept = {name: value for name, value in properties.items() if name not in dropped}
        draft = self._drafts.again(
            record, self._targets.target_after_waiting(topic, int(queue_id)), kept, reconsume_times=0
        )
        draft.prepared_transaction_offset = record.physical_offset
        return draft

    def ask(self, record: Record, group: str) -> bool:
        """Send request 39 about `record` to a random connected producer of the group; returns False without one."""
        topic = record.property_map.get(REAL_TOPIC, record.topic)
        producers = [
            client
            for client in self._clients.producers(group)
            if not client.connection.is_closed and self._may_publish(client.user, topic, client.connection.peer[0])
        ]
        if not producers:
            log.info(
                "no producer of group %s is connected that could be asked about the half message at %d",
                group,
                record.physical_offset,
            )
            return False
        self._random.choice(producers).connection.oneway(check_command(record, self._identity.name))
        return True

    def _copy(self, record: Record, topic: str, properties: dict[str, str]) -> QueuedDraft | None:
        try:
            target = self._targets.target(topic, 0)
            return self._drafts.again(record, target, properties, reconsume_times=record.reconsume_times)
        except Refusal as refusal:
            log.error("half message at %d cannot be copied to %s: %s", record.physical_offset, topic, refusal.remark)
            return None


def check_command(record: Record, broker_name: str) -> Command:
    """Return the request 39 about the half message in `record`, with the message as its producer sent it as the body.

    The offsets are those of this copy; topic and queue are the message's real ones.
    """
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
