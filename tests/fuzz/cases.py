"""What all levels of a fuzzing run have in common: a case is drawn from seed and number, and can be run again alone."""

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that did what no input may do."""

    level: str
    seed: int
    number: int
    what: str

    def __str__(self) -> str:
        again = f"python -m tests.fuzz --level {self.level} --seed {self.seed} --case {self.number}"
        return f"{self.what}\n  again: {again}"


class FuzzError(AssertionError):
    """Raised with every failure of a run."""

    def __init__(self, failures: list[Failure]) -> None:
        super().__init__("\n".join(map(str, failures)))
        self.failures = failures


def kept_bytes(pid: int | str = "self") -> int:
    """A process's memory that is not a file's."""
    found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0
