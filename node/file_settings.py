"""The settings of one file and of the command line: values by key, the place of each, and the problems."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ledgermq.remoting.config_key import Key, unknown_key
from node.addresses import HostChoice, choose_host
from node.properties import ConfigError, Property, parse_overrides, read_properties

_HEALTH_PORT_ABOVE = 5


class FileSettings:
    """Gathers problems instead of raising at the first one; `raise_problems` raises them together.

    Args:
        keys: that may stand in this kind of file.
        files: keys by kind of file, to name the one in which a wrong key belongs.

    Attributes:
        values: by key, of what was given and is not empty.

    Raises:
        ConfigError: the file cannot be read as properties at all.
    """

    def __init__(
        self,
        path: Path | None,
        overrides: Sequence[str],
        keys: Mapping[str, Key],
        files: Mapping[str, Mapping[str, Key]],
    ) -> None:
        given = [*(read_properties(path) if path is not None else ()), *parse_overrides(overrides)]
        self.keys = keys
        self.properties: dict[str, Property] = {item.key: item for item in given}  # what comes later wins
        self.values: dict[str, Any] = {}
        self._problems: list[str] = []
        for item in self.properties.values():
            self._parse(item, files)

    def _parse(self, item: Property, files: Mapping[str, Mapping[str, Key]]) -> None:
        key = self.keys.get(item.key)
        if key is None:
            others = [file for file, keys in files.items() if item.key in keys]
            belongs = f"is unknown; it belongs to {' and '.join(others)}"
            self.refuse(item.key, belongs if others else unknown_key(item.key, self.keys))
            return
        if not item.value and key.kind.name == "text":
            return
        try:
            self.values[item.key] = key.kind.read(item.value)
        except ValueError as error:
            self.refuse(item.key, str(error))

    def place(self, key: str) -> str:
        """File and line of the key; empty when it was not given."""
        return self.properties[key].place if key in self.properties else ""

    def refuse(self, key: str, detail: str) -> None:
        """Note a problem; `detail` continues a sentence that names the key."""
        place = self.place(key)
        self._problems.append(f"{place}: key {key!r} {detail}" if place else f"key {key!r} {detail}")

    def choose_host(self, key: str, towards: Sequence[str] = (), default: HostChoice | None = None) -> HostChoice:
        """Set a key that names this node's host, unless it was given: to `default`, or to what `choose_host` finds."""
        names = [name for name in (key, self.keys[key].alias) if name in self.values]
        if len(names) > 1:
            self.refuse(names[1], f"is another name of {names[0]!r}, which stands at {self.place(names[0])}")
        if names:
            choice = HostChoice(str(self.values[names[0]]), f"{names[0]} at {self.place(names[0])}")
        else:
            choice = default or choose_host(self.values["bindAddress"], towards)
        self.values[key] = choice.host
        return choice

    def choose_listeners(self, listen_port: int) -> None:
        """Set where clients, and questions about health, are answered: beside each other unless that was given.

        Args:
            listen_port: the default; of 0, any free port, health gets any free one, too.
        """
        self.values.setdefault("bindAddress", "0.0.0.0")
        port = self.values.setdefault("listenPort", listen_port)
        self.values.setdefault("healthHost", self.values["bindAddress"])
        self.values.setdefault("healthPort", port and port + _HEALTH_PORT_ABOVE)

    def raise_problems(self) -> None:
        """Raise all noted problems together.

        Raises:
            ConfigError: there is a problem.
        """
        if self._problems:
            raise ConfigError(self._problems)
