"""Refusals of pulls without permission: they carry RocketMQ's number of the reason, which proxies read.

Source: apache/rocketmq `remoting/.../protocol/ForbiddenType.java`.
"""

import enum

from ledgermq.remoting.refusal import Cause, Refusal


class Forbidden(enum.IntEnum):
    """`forbiddenType` of a pull's answer."""

    BROKER = 1
    GROUP = 2
    TOPIC = 3
    BROADCASTING = 4
    SUBSCRIPTION = 5


class ForbiddenRefusal(Refusal):
    """A refusal to read, NO_PERMISSION, with the number of its reason."""

    def __init__(self, reason: Forbidden, remark: str) -> None:
        super().__init__(Cause.NO_PERMISSION, remark)
        self._reason = reason

    @property
    def ext(self) -> dict[str, str]:
        """Return the fields of the answer, with `forbiddenType`."""
        return {**super().ext, "forbiddenType": str(int(self._reason))}
