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
    """NO_PERMISSION to read."""

    def __init__(self, reason: Forbidden, remark: str) -> None:
        super().__init__(Cause.NO_PERMISSION, remark)
        self._reason = reason

    @property
    def ext(self) -> dict[str, str]:
        """With `forbiddenType`."""
        return {**super().ext, "forbiddenType": str(int(self._reason))}
