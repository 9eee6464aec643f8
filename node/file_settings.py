"""What the user said in one file and on the command line: by key, parsed, with the place of each, and what is wrong."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from node import values
from node.addresses import HostChoice, choose_host
from node.bindings import Binding
from node.keys import Key, nearest_key
from node.properties import ConfigError, Property, parse_overrides, read_properties

_HEALTH_PORT_ABOVE = 5


class Said:
    """Gathers problems instead of raising at the first one; `raise_problems` raises them together.

    Args:
        keys: that may stand in this kind of file.
        elsewhere: keys of the other kind of file, whose name is `other_file`.

    Raises:
        ConfigError: the file cannot be read as properties at all.
    """

    def __init__(
        self,
        path: Path | None,
        overrides: Sequence[str],
        keys: Mapping[str, Key],
        elsewhere: Mapping[str, Key],
        other_file: str,
    ) -> None:
        said = [*(read_properties(path) if path is not None else ()), *parse_overrides(overrides)]
        self.keys = keys
        self.properties: dict[str, Property] = {item.key: item for item in said}  # what comes later wins
        self.problems: list[str] = []
        self._values: dict[str, values.Value] = {}
        for item in self.properties.values():
            self._parse(item, elsewhere, other_file)

    def _parse(self, item: Property, elsewhere: Mapping[str, Key], other_file: str) -> None:
        key = self.keys.get(item.key)
        if key is None:
            hint = f"it belongs to {other_file}" if item.key in elsewhere else self._nearest(item.key)
            self.refuse(item.key, f"is unknown; {hint}")
            return
        try:
            self._values[item.key] = values.parse_value(key, item.value)
        except values.ValueRefusedError as error:
            self.refuse(item.key, str(error))

    def _nearest(self, name: str) -> str:
        return f"nearest known key is {nearest_key(name, self.keys)!r}"

    def value(self, key: str) -> values.Value | None:
        """The parsed value; None when it was not said, was refused, or is an empty text."""
        value = self._values.get(key)
        return None if value == "" else value

    def place(self, key: str) -> str:
        """Where the key was said; empty when it was not."""
        return self.properties[key].place if key in self.properties else ""

    def refuse(self, key: str, detail: str) -> None:
        """Note a problem; `detail` continues a sentence that names the key."""
        place = self.place(key)
        self.problems.append(f"{place}: key {key!r} {detail}" if place else f"key {key!r} {detail}")

    def converted(self, key: str, convert: Callable[[Any], Any]) -> Any:
        """The value converted; None when there is none, or when it is refused."""
        value = self.value(key)
        if value is None:
            return None
        try:
            return convert(value)
        except values.ValueRefusedError as error:
            self.refuse(key, str(error))
            return None

    def fields(self, bindings: Mapping[str, Binding]) -> dict[str, Any]:
        """The configuration's fields that were said."""
        found = {binding.field: self.converted(key, binding.convert) for key, binding in bindings.items()}
        return {field: value for field, value in found.items() if value is not None}

    def host(
        self, names: Sequence[str], listen_host: str, towards: Sequence[str], default: HostChoice | None = None
    ) -> HostChoice:
        """A host that was said under one of its names, or `default`, or one chosen by `choose_host`."""
        said = [name for name in names if self.value(name) is not None]
        if len(said) > 1:
            self.refuse(said[1], f"is another name of {said[0]!r}, which stands at {self.place(said[0])}")
        if said:
            return HostChoice(str(self.value(said[0])), f"{said[0]} at {self.place(said[0])}")
        return default or choose_host(listen_host, towards)

    def health(self, listen_host: str, listen_port: int) -> dict[str, Any]:
        """Where health is served: beside the listener unless said; any free port if the listener takes one."""
        port = self.value("healthPort")
        if port is None:
            port = listen_port and listen_port + _HEALTH_PORT_ABOVE
        host = self.value("healthHost") or listen_host
        return {"health_port": None if port == "off" else port, "health_host": host}

    def raise_problems(self) -> None:
        """Raise what was found.

        Raises:
            ConfigError: there is a problem.
        """
        if self.problems:
            raise ConfigError(self.problems)
