"""Fields of a send request, and the properties that the broker adds and checks."""

from collections.abc import Mapping

from broker.append.target import SendTarget
from broker.config import BrokerConfig
from broker.identity import BrokerIdentity
from ledgermq.message.flags import INNER_BATCH
from ledgermq.message.pop_handle import POP_CK
from ledgermq.message.properties import INNER_BASE, INNER_NUM, find_property
from ledgermq.remoting.codec.fields import SEND_NAMES
from ledgermq.remoting.refusal import Cause, Refusal
from store.queues.batch_queue import BatchQueue
from store.queues.queue_entries import MULTI_DISPATCH, MULTI_OFFSETS
from store.queues.queue_kinds import LIGHT_PREFIX
from store.queues.queue_table import topic_fault

TELLS_MAX_RECONSUME_TIMES = 121
"""First version of clients (3.4.9) whose `maxReconsumeTimes` counts."""

_SET_BY_BROKERS = frozenset(
    (b"MSG_REGION", b"TRACE_ON", b"CLUSTER", POP_CK.encode(), INNER_BASE.encode(), MULTI_OFFSETS)
)


def stamp(config: BrokerConfig) -> bytes:
    """Return what the broker adds to the properties of every message.

    Java's consumers trace by it, and find the reply topic of a request by its cluster.
    """
    trace, cluster = str(config.trace_on).lower(), BrokerIdentity(config).cluster
    return f"MSG_REGION\x01{config.region_id}\x02TRACE_ON\x01{trace}\x02CLUSTER\x01{cluster}\x02".encode()


def waits(properties: str) -> bool:
    """Return whether the sender of a message waits for the flush and for other nodes, and not only for its place.

    `WAIT` that is not `true` says no, as Java reads it (`Message.isWaitStoreMsgOK`).
    """
    if "WAIT\x01true" in properties or "WAIT\x01" not in properties:
        return True
    value = find_property(properties.encode(), b"WAIT")
    return value is None or value.lower() == b"true"


def needs_new_stamp(properties: bytes) -> bool:
    """Return whether a message has properties that only a broker may set: it was received before and is sent on."""
    return b"CLUSTER\x01" in properties or b"POP_CK\x01" in properties or b"INNER_" in properties


def with_new_stamp(mark: bytes, properties: bytes) -> bytes:
    """Return the properties with this broker's stamp, without an older one, a POP's handle, and offsets in queues.

    RocketMQ keeps the offsets, so that senders can choose theirs in light queues.
    """
    kept = [entry for entry in properties.split(b"\x02") if entry.partition(b"\x01")[0] not in _SET_BY_BROKERS]
    return b"".join(entry + b"\x02" for entry in kept if entry) + mark


def shortened(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the header under its short names. Long names come with code 10 and from clients that mix the codes."""
    given = {short: fields[name] for short, name in SEND_NAMES.items() if name in fields}
    if given.get("d") == "":  # under its long name RocketMQ takes it as missing
        del given["d"]
    return given


def check_inner_batch(sys_flag: int, target: SendTarget, properties: bytes) -> None:
    """Check a record that is marked as several messages.

    Raises:
        Refusal: MESSAGE_ILLEGAL, its topic takes none, or only one of its two marks is set.
    """
    is_batch = bool(sys_flag & INNER_BATCH)
    if is_batch and not isinstance(target.queue, BatchQueue):
        raise Refusal(
            Cause.MESSAGE_ILLEGAL, f"topic {target.topic.decode()} does not take records that hold several messages"
        )
    if not is_batch and find_property(properties, INNER_NUM.encode()) is not None:
        raise Refusal(Cause.MESSAGE_ILLEGAL, f"the message has property {INNER_NUM}, but holds no messages")


def check_light_names(properties: bytes) -> None:
    """Check that a message names only light queues as further queues: otherwise a sender could write to any topic.

    A delayed message enters them only when it is delivered, and could not then if a name is invalid.

    Source: apache/rocketmq `docs/cn/Example_LMQ.md`, which asks for the prefix; its store does not check it.

    Raises:
        Refusal: MESSAGE_ILLEGAL, names the queue.
    """
    prefix = LIGHT_PREFIX.encode()
    for name in (find_property(properties, MULTI_DISPATCH) or b"").split(b","):
        if name and not name.startswith(prefix):
            remark = f"property {MULTI_DISPATCH.decode()} names {name[:100].decode(errors='replace')!r}"
            raise Refusal(Cause.MESSAGE_ILLEGAL, f"{remark}, not a light queue: their names begin with {LIGHT_PREFIX}")
        if name and (fault := topic_fault(name.decode(errors="replace"))) is not None:
            remark = f"property {MULTI_DISPATCH.decode()}: {name[:100].decode(errors='replace')!r} {fault}"
            raise Refusal(Cause.MESSAGE_ILLEGAL, remark)


def check_key(properties: bytes) -> None:
    """Check that a message of a compacted topic has a key.

    Raises:
        Refusal: MESSAGE_ILLEGAL, it has none.
    """
    key = find_property(properties, b"KEYS")
    if key is None or not key.strip():
        raise Refusal(Cause.MESSAGE_ILLEGAL, "Required message key is missing")
