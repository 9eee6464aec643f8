"""Refusals of appends that the store's files cannot take, the same for every log on them.

Remarks of flow control begin like RocketMQ's, since some clients look for those words.
"""

from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import (
    AllocationPendingError,
    DiskFullError,
    InvalidTopicError,
    PoolUnavailableError,
    RecordTooLargeError,
    StoreError,
)


def refusal_of(error: StoreError) -> Refusal:
    """Return the refusal for an error of the files; nothing was placed."""
    match error:
        case DiskFullError():
            return Refusal(Cause.DISK_FULL, str(error), retry_after_ms=1000)
        case AllocationPendingError():
            remark = f"[PC_SYNCHRONIZED]broker busy, start flow control for a while: {error}"
            return Refusal(Cause.BUSY, remark, retry_after_ms=100)
        case PoolUnavailableError():
            remark = f"[REJECTREQUEST]system busy, start flow control for a while: {error}"
            return Refusal(Cause.BUSY, remark, retry_after_ms=100)
        case RecordTooLargeError() | InvalidTopicError():
            return Refusal(Cause.MESSAGE_ILLEGAL, str(error))
        case _:
            return Refusal(Cause.DISK_FAILED, str(error))
