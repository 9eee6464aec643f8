"""Changes that came a moment ago: tools ask every member of a group for the same one, and the first makes it for all.

Source: apache/rocketmq `tools/.../command/auth/*SubCommand.java`: with `-c` they go through masters and slaves, each of
which has tables of its own there.
"""

from collections.abc import Callable
from typing import Final

from ledgermq.remoting.codec.command import Command

WITHIN_S: Final = 10.0

_NAMES: Final = ("username", "subject", "policyType", "resource")


class RepeatedChanges:
    """Remembers what has been carried out.

    Args:
        clock: seconds that only go forward.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._done: dict[tuple[object, ...], float] = {}

    def note(self, command: Command) -> None:
        """This change is carried out."""
        now = self._clock()
        self._done = {key: until for key, until in self._done.items() if until > now}
        self._done[_key(command)] = now + WITHIN_S

    def has(self, command: Command) -> bool:
        """Whether the same change was carried out within the last ten seconds."""
        return self._done.get(_key(command), 0.0) > self._clock()


def _key(command: Command) -> tuple[object, ...]:
    return command.code, bytes(command.body), *(command.ext.get(name) for name in _NAMES)
