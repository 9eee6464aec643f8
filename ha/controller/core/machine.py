"""The state machine of the controllers: groups by broker name, changed by commands in one order.

A command travels with a key, `(who submitted it, number)`. If a command with the same key was applied already, its
outcome is returned again and nothing changes, so that a controller that lost an answer may submit the command again. A
fixed number of the last outcomes is kept, as part of the state.

The bytes of a command are JSON with the version of the rules by which it is applied. A release that applies any command
in another way than the release before has a new version, `RULES`, and knows the older rules as well. The leading
controller submits commands with new rules only when all controllers have said that they know them; from the first such
command on the new rules are part of the state. A controller that does not know the rules of a command ends, since its
state would differ from that of the others.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from ha.controller.core.commands import FIRST_RULES, StateCommand, command_from_json
from ha.controller.core.model import GROUPS_MAX, DamagedStateError, Group
from ha.controller.core.outcome import CommandOutcome
from ledgermq.remoting.refusal import Cause

RULES: Final = FIRST_RULES
"""The newest rules that this release knows. Raise it when `StateCommand.apply` changes for any command, which must then
look at `rules`."""

REMEMBERED_MAX: Final = 512

Key = tuple[str, int]
"""Key of a command: its submitter (a name for one run of one controller), and its number there."""


def encode_command(key: Key, command: StateCommand) -> bytes:
    """Return the command's bytes in the log."""
    return orjson.dumps({"v": command.rules, "key": key, "kind": command.KIND, "fields": command.to_json()})


def decode_command(data: bytes, known_rules: int = RULES) -> tuple[Key, StateCommand]:
    """Decode a command that `encode_command` wrote.

    Raises:
        DamagedStateError: it is damaged, or of newer rules than those known.
    """
    value = _object(data, "a command", known_rules)
    try:
        submitter, number = value["key"]
        kind, fields = value["kind"], value["fields"]
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedStateError(f"a command cannot be read: {type(error).__name__} {error}") from error
    return (submitter, number), command_from_json(kind, fields, value["v"])


class ControllerMachine:
    """Groups, and the last outcomes. One thread changes it; others may read `groups` at any time.

    Args:
        known_rules: newest version of the rules that this controller knows.

    Attributes:
        groups: by broker name; replaced by each change, never changed in place.
        rules: newest version of the rules in use; it never falls.
    """

    def __init__(self, known_rules: int = RULES) -> None:
        self.groups: Mapping[str, Group] = {}
        self.known_rules = known_rules
        self.rules = FIRST_RULES
        self._remembered: dict[Key, CommandOutcome] = {}

    def apply(self, data: bytes) -> CommandOutcome:
        """Apply one command.

        Raises:
            DamagedStateError: it cannot be read; this controller must stop.
        """
        key, command = decode_command(data, self.known_rules)
        self.rules = max(self.rules, command.rules)
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
        """Return the whole state, for `restore`; equal histories give equal bytes."""
        return orjson.dumps(
            {
                "v": self.rules,
                "groups": [group.to_json() for _, group in sorted(self.groups.items())],
                "remembered": [[*key, outcome.to_json()] for key, outcome in self._remembered.items()],
            }
        )

    def restore(self, data: bytes) -> None:
        """Replace the state by the one of a snapshot.

        Raises:
            DamagedStateError: it is damaged, or of newer rules than those known; the state is as before.
        """
        value = _object(data, "a snapshot", self.known_rules)
        try:
            groups = {group.name: group for group in map(Group.from_json, value["groups"])}
            remembered = {
                (submitter, number): CommandOutcome.from_json(outcome)
                for submitter, number, outcome in value["remembered"]
            }
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedStateError(f"a snapshot cannot be read: {type(error).__name__} {error}") from error
        self.groups, self._remembered, self.rules = groups, remembered, value["v"]


def _object(data: bytes, what: str, known_rules: int) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise DamagedStateError(f"{what} is no JSON: {error}") from error
    rules = value.get("v") if isinstance(value, dict) else None
    if type(rules) is not int or not FIRST_RULES <= rules <= known_rules:
        text = f"{what} has version {rules!r}, this controller knows versions up to {known_rules}"
        raise DamagedStateError(f"{text}: is it an older release than the other controllers?")
    return dict(value)
