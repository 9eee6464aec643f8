"""The state machine of the controllers: groups by broker name, changed by commands in one order.

A command travels with a key, `(who submitted it, number)`. Of a key that was applied already the first outcome is
returned and nothing changes, so that a controller that lost its answer may submit the same again. The last outcomes
are remembered, a fixed number of them; they are part of the state.

Bytes are JSON with a version. What another version wrote is refused: a controller that guessed would differ from the
others.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from ha.controller.core.commands import StateCommand, command_from_json
from ha.controller.core.model import GROUPS_MAX, DamagedStateError, Group
from ha.controller.core.outcome import CommandOutcome
from ledgermq.remoting.refusal import Cause

VERSION: Final = 1
REMEMBERED_MAX: Final = 512

Key = tuple[str, int]
"""The submitter of a command (a name of one run of one controller), and the command's number there."""


def encode_command(key: Key, command: StateCommand) -> bytes:
    """The command as the log holds it."""
    return orjson.dumps({"v": VERSION, "key": key, "kind": command.KIND, "fields": command.to_json()})


def decode_command(data: bytes) -> tuple[Key, StateCommand]:
    """What `encode_command` wrote.

    Raises:
        DamagedStateError: it is damaged, or of another version.
    """
    value = _object(data, "a command")
    try:
        submitter, number = value["key"]
        kind, fields = value["kind"], value["fields"]
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedStateError(f"a command cannot be read: {type(error).__name__} {error}") from error
    return (submitter, number), command_from_json(kind, fields)


class ControllerMachine:
    """Groups, and the last outcomes. One thread changes it; others may read `groups` at any time.

    Attributes:
        groups: by broker name; replaced by each change, never changed in place.
    """

    def __init__(self) -> None:
        self.groups: Mapping[str, Group] = {}
        self._remembered: dict[Key, CommandOutcome] = {}

    def apply(self, data: bytes) -> CommandOutcome:
        """Apply one command.

        Raises:
            DamagedStateError: it cannot be read; then this controller must not go on.
        """
        key, command = decode_command(data)
        known = self._remembered.get(key)
        if known is not None:
            return known
        outcome = self._carry_out(command)
        self._remembered[key] = outcome
        while len(self._remembered) > REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]
        return outcome

    def _carry_out(self, command: StateCommand) -> CommandOutcome:
        before = self.groups.get(command.name)
        after, outcome = command.apply(before)
        if after is before:
            return outcome
        if before is None and len(self.groups) >= GROUPS_MAX:
            return CommandOutcome(
                Cause.SYSTEM_ERROR, f"{len(self.groups)} broker names are registered, no more are taken"
            )
        groups = {name: group for name, group in self.groups.items() if name != command.name}
        if after is not None:
            groups[command.name] = after
        self.groups = groups
        return outcome

    def snapshot(self) -> bytes:
        """The whole state, for `restore`; the same bytes for the same history."""
        return orjson.dumps(
            {
                "v": VERSION,
                "groups": [group.to_json() for _, group in sorted(self.groups.items())],
                "remembered": [[*key, outcome.to_json()] for key, outcome in self._remembered.items()],
            }
        )

    def restore(self, data: bytes) -> None:
        """Replace the state by the one of a snapshot.

        Raises:
            DamagedStateError: it is damaged, or of another version; the state is as before.
        """
        value = _object(data, "a snapshot")
        try:
            groups = {group.name: group for group in map(Group.from_json, value["groups"])}
            remembered = {
                (submitter, number): CommandOutcome.from_json(outcome)
                for submitter, number, outcome in value["remembered"]
            }
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedStateError(f"a snapshot cannot be read: {type(error).__name__} {error}") from error
        self.groups, self._remembered = groups, remembered


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise DamagedStateError(f"{what} is no JSON: {error}") from error
    if not isinstance(value, dict) or value.get("v") != VERSION:
        version = value.get("v") if isinstance(value, dict) else None
        raise DamagedStateError(f"{what} has version {version!r}, this controller knows version {VERSION}")
    return value
