"""The wire of sending: requests 310 and 320, and what the answer says.

Source: apache/rocketmq `remoting/.../protocol/header/SendMessageRequestHeaderV2.java` (one-letter names),
`SendMessageResponseHeader.java`, `common/.../message/MessageDecoder.java` (encodeMessages).
"""

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ledgermq.client.core.route import MessageQueue
from ledgermq.client.errors import UndecodableError

TEMPLATE_TOPIC = "TBW102"
AUTO_CREATED_QUEUE_COUNT = 4


class SendStatus(enum.Enum):
    """How far the promise of the cluster was kept when the answer came; the value is the response code.

    All of them mean that the message is stored. Only `OK` means that it is as safe as the cluster's mode promises.
    """

    OK = 0
    FLUSH_DISK_TIMEOUT = 10  # stored, not known to be on disk in time
    SLAVE_NOT_AVAILABLE = 11  # stored by the master alone
    FLUSH_SLAVE_TIMEOUT = 12  # stored, not known to be on the replicas in time


STATUS_BY_CODE = {status.value: status for status in SendStatus}
STORED_CODES = frozenset(STATUS_BY_CODE)


class SendResult(NamedTuple):
    """What the broker said of one stored message.

    Attributes:
        message_id: the id that every copy of this message carries (UNIQ_KEY).
        offset_message_id: the id of the stored copy that was acknowledged.
        queue: topic, broker name and queue id.
        queue_offset: its number in that queue.
        status: see `SendStatus`.
        attempts: how many requests it took; with more than one, earlier copies may be stored too.
        term: the leader's Raft term; None from brokers that do not say it.
        copies: replicas that had received it when it was acknowledged; None if not said.
        durable_copies: those of them that had it on disk; None if not said.
        recall_handle: takes a timer message back (`Producer.recall`); None for other messages.
    """

    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    status: SendStatus
    attempts: int
    term: int | None
    copies: int | None
    durable_copies: int | None
    recall_handle: str | None = None

    @property
    def topic(self) -> str:
        return self.queue.topic

    @property
    def broker(self) -> str:
        """Broker name (the group's, not one node's)."""
        return self.queue.broker

    @property
    def queue_id(self) -> int:
        return self.queue.queue_id


def send_ext(group: str, topic: str, born_ms: int, sys_flag: int = 0) -> dict[str, str]:
    """Header fields of a send (310, 320), all but the queue's `e` and `n`, and the properties."""
    return {
        "a": group,
        "b": topic,
        "c": TEMPLATE_TOPIC,
        "d": str(AUTO_CREATED_QUEUE_COUNT),
        "f": str(sys_flag) if sys_flag else "0",
        "g": str(born_ms),
        "h": "0",
        "j": "0",
        "k": "false",
        "m": "false",
    }


def read_results(
    address: str, queue: MessageQueue, code: int, ext: Mapping[str, str], message_ids: Sequence[str], attempts: int
) -> list[SendResult]:
    """The results of one answered request, one for each message of it, in order.

    Raises:
        UndecodableError: the answer lacks queue id, offset or message id, or they are no numbers.
    """
    try:
        queue_id, offset = int(ext["queueId"]), int(ext["queueOffset"])
        offset_ids = ext["msgId"].split(",")
        term, copies, durable = _number(ext, "term"), _number(ext, "copies"), _number(ext, "durableCopies")
    except (KeyError, ValueError) as error:
        raise UndecodableError(f"{address}: answer to a send is {dict(ext)!r}: {error!r}") from error
    if len(offset_ids) != len(message_ids):
        raise UndecodableError(f"{address}: {len(offset_ids)} ids in the answer to {len(message_ids)} messages")
    if queue_id != queue.queue_id:
        queue = queue._replace(queue_id=queue_id)
    status = STATUS_BY_CODE[code]
    handle = ext.get("recallHandle")
    return [
        SendResult(message_id, offset_id, queue, offset + index, status, attempts, term, copies, durable, handle)
        for index, (message_id, offset_id) in enumerate(zip(message_ids, offset_ids, strict=True))
    ]


def _number(ext: Mapping[str, str], name: str) -> int | None:
    text = ext.get(name)
    return None if text is None else int(text)
