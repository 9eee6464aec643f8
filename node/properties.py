r"""Java's properties files, read strictly: every line is a key with a value, and each key stands once.

    # comment, ! comment        key=value  key: value  key value        a \ at the end goes on in the next line

Escapes are Java's (`\t`, `\n`, `\uXXXX`, `\=`). Blanks around a value are cut off at both ends: Java keeps those at the
end, so that `48 ` is no number there. The text is UTF-8.

Source: java.util.Properties.load.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.errors import UsageError

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SEPARATOR = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:\s]\s*(.*)", re.DOTALL)


class ConfigError(UsageError):
    """The configuration is wrong, nothing was started. Each problem is one line that begins with its place."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        tail = f"\n{len(problems)} problems, nothing started" if len(problems) > 1 else ""
        super().__init__("\n".join(problems) + tail)


@dataclass(frozen=True, slots=True)
class Property:
    """One key with its value, and its place: `broker.conf:12` or `--set brokerId`."""

    key: str
    value: str
    place: str


def read_properties(path: Path) -> list[Property]:
    """Return the properties of a file, in its order.

    Raises:
        ConfigError: it cannot be read, is not UTF-8, has a line that is no property, or a key twice.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: not UTF-8 at byte {error.start}"]) from error
    return parse_properties(text, path.name)


def parse_properties(text: str, name: str) -> list[Property]:
    """Return the properties of a file's text; `name` begins every place. Errors as `read_properties`."""
    properties: dict[str, Property] = {}
    problems = []
    for number, line in _logical_lines(text):
        place = f"{name}:{number}"
        match = _SEPARATOR.fullmatch(line)
        if match is None or not match[1]:
            problems.append(f"{place}: not key=value: {line[:100]!r}")
            continue
        key = _unescape(match[1])
        if key in properties:
            problems.append(f"{place}: key {key!r} stands twice, first at {properties[key].place}")
        properties.setdefault(key, Property(key, _unescape(match[2]).strip(), place))
    if problems:
        raise ConfigError(problems)
    return list(properties.values())


def parse_overrides(words: Sequence[str]) -> list[Property]:
    """Return the `KEY=VALUE` words of the command line as properties; the last one of a key wins.

    Raises:
        ConfigError: a word without a key or without `=`.
    """
    properties = {}
    for word in words:
        key, separator, value = word.partition("=")
        key = key.strip()
        if not separator or not key:
            raise ConfigError([f"--set {word!r} is not KEY=VALUE"])
        properties[key] = Property(key, value.strip(), f"--set {key}")
    return list(properties.values())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield numbered lines without comments; a line that ends in an odd number of backslashes goes on in the next."""
    started, begun = 0, ""
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        if not started and (not line.strip() or line.strip()[0] in "#!"):
            continue
        started = started or number
        begun += line.strip()
        if (len(begun) - len(begun.rstrip("\\"))) % 2:
            begun = begun[:-1]
            continue
        yield started, begun
        started, begun = 0, ""
    if started:
        yield started, begun


def _unescape(text: str) -> str:
    def replacement(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _CONTROLS.get(escape, escape)

    return _ESCAPE.sub(replacement, text)
