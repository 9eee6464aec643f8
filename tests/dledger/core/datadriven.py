"""Transcripts: files of commands and of exactly what they print, after etcd's `datadriven`.

    # One sentence of intent.
    command argument key=value
    ----
    what it prints

A blank line ends an output; the next command follows. `pytest --rewrite` writes what was printed back to the file, and
the reviewer reads the difference.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SEPARATOR = "----"


@dataclass(frozen=True)
class Step:
    """One command: the comment above it, its words, and the output that is expected."""

    comment: str
    command: str
    expected: str


def parse(text: str) -> list[Step]:
    """Split a transcript into its steps."""
    steps, lines, position = [], text.splitlines(), 0
    while position < len(lines):
        start = position
        while position < len(lines) and (not lines[position] or lines[position].startswith("#")):
            position += 1
        if position == len(lines):
            break
        comment, command = "\n".join(lines[start:position]).strip("\n"), lines[position]
        assert lines[position + 1] == SEPARATOR, f"line {position + 2}: expected {SEPARATOR!r} after {command!r}"
        position += 2
        start = position
        while position < len(lines) and lines[position]:
            position += 1
        steps.append(Step(comment, command, "\n".join(lines[start:position])))
    return steps


def render(steps: list[Step]) -> str:
    """The text that `parse` takes apart."""
    parts = []
    for step in steps:
        comment = f"{step.comment}\n" if step.comment else ""
        expected = f"{step.expected}\n" if step.expected else ""
        parts.append(f"{comment}{step.command}\n{SEPARATOR}\n{expected}")
    return "\n".join(parts)


def replay(path: Path, execute: Callable[[str, list[str], dict[str, str]], str], *, rewrite: bool) -> None:
    """Run every command of a transcript and compare, or rewrite the file."""
    steps, seen = parse(path.read_text()), []
    for step in steps:
        name, *words = step.command.split()
        plain = [word for word in words if "=" not in word]
        keyed = dict(word.split("=", 1) for word in words if "=" in word)
        seen.append(Step(step.comment, step.command, execute(name, plain, keyed).strip("\n")))
    if rewrite:
        path.write_text(render(seen))
    else:
        for expected, actual in zip(steps, seen, strict=True):
            assert actual.expected == expected.expected, f"{path.name}: {expected.command}"
