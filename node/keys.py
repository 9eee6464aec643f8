"""Every configuration key there is: RocketMQ's and ours, with type, default, meaning, and the effect it has here.

The facts are in `node.key_tables`. A key is looked up for one kind of file, `broker.conf` or `namesrv.conf`;
some belong to both.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from node.key_tables import broker, others, ours, store

OURS = "LedgerMQ"

_TAGS = {
    "*": "in effect",
    "j": "no effect: it tunes Java's threads, queues and buffers",
    "d": "no effect: done differently here",
    "f": "no effect: belongs to a feature that this version does not have",
}


@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    Attributes:
        origin: upstream's configuration class, or `OURS`.
        kind: `bool`, `int`, `long`, `double`, `text`, `port or off`, or the allowed words divided by `/`.
        default: as upstream has it; in words between `<` and `>` when it is computed.
        tag: see `node.key_tables`.
        meaning: one sentence.
    """

    name: str
    origin: str
    kind: str
    default: str
    tag: str
    meaning: str

    @property
    def has_effect(self) -> bool:
        return self.tag == "*"

    @property
    def effect(self) -> str:
        """What it does here."""
        extra = ours.EFFECTS.get(self.name)
        return _TAGS[self.tag] + (f". {extra}" if extra else ".")

    @property
    def default_here(self) -> str:
        """The default of LedgerMQ."""
        return ours.DEFAULTS_HERE.get(self.name, self.default)

    @property
    def shown_default(self) -> str:
        """The value in force when nothing is said, for tools that ask; empty when it is computed.

        A feature that is not here is off, whatever upstream's default.
        """
        if self.tag == "f" and self.kind == "bool":
            return "false"
        return "" if self.default_here.startswith("<") else self.default_here


def _parse(origin: str, table: str) -> Iterator[Key]:
    for line in table.strip().splitlines():
        name, kind, default, tag, meaning = line.split("|")
        yield Key(name, origin, kind, default, tag, meaning)


def _gather(*tables: tuple[str, str]) -> Mapping[str, Key]:
    """First come, first served: a key that two classes have is described once."""
    keys: dict[str, Key] = {}
    for origin, table in tables:
        for key in _parse(origin, table):
            keys.setdefault(key.name, key)
    return keys


_METRICS = "\n".join(line.replace("|*|", "|f|") for line in broker.TABLE.splitlines() if line.startswith("metric"))
"""A controller has them, too."""

BROKER_KEYS = _gather(
    (OURS, ours.BROKER_TABLE),
    ("BrokerConfig", broker.TABLE),
    ("MessageStoreConfig", store.TABLE),
    ("NettyServerConfig and NettyClientConfig", others.NETTY_TABLE),
    ("AuthConfig", others.AUTH_TABLE),
)
NAMESRV_KEYS = _gather(
    (OURS, ours.NAMESRV_TABLE),
    ("NamesrvConfig", others.NAMESRV_TABLE),
    ("NettyServerConfig and NettyClientConfig", others.NETTY_TABLE),
    ("ControllerConfig", others.CONTROLLER_TABLE),
    ("ControllerConfig", _METRICS),
)


def nearest_key(name: str, keys: Mapping[str, Key]) -> str:
    """The known key most like `name`: letters first, upper and lower case second."""
    folded = {known.lower(): known for known in keys}
    matches = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.0)
    return folded[matches[0]]
