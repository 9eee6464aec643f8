"""A record before it is in the log: the sender's fields, and those that the log sets."""


class RecordDraft:
    """One message before it is encoded. Made once per message on the hot path: slots, no validation.

    The maker has checked the limits, cleared the IPv6 bits of `sys_flag` that its hosts do not have (and set those
    they do), and computed `size` by `record_size`. `queue_offset`, `store_timestamp` and `physical_offset` are
    stamped by the store and the log.

    Attributes:
        topic: UTF-8, 1 to 255 bytes.
        queue_id: 0 or more.
        flag: application flag, opaque.
        sys_flag: bits of `ledgermq.message.flags`.
        born_timestamp: ms, client's clock.
        born_host: address bytes (4 or 16) + port as i32: 8 or 20 bytes.
        reconsume_times: 0 or more.
        prepared_transaction_offset: physical offset of the half message, or 0.
        body: 0 to the body limit, as sent.
        properties: encoded properties, at most 32767 bytes.
        tags_code: what the consume-queue unit holds.
        size: bytes of the whole record.
    """

    __slots__ = (
        "body",
        "born_host",
        "born_timestamp",
        "flag",
        "physical_offset",
        "prepared_transaction_offset",
        "properties",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "size",
        "store_timestamp",
        "sys_flag",
        "tags_code",
        "topic",
    )

    topic: bytes
    queue_id: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes | memoryview
    properties: bytes
    tags_code: int
    size: int
    queue_offset: int
    store_timestamp: int
    physical_offset: int
