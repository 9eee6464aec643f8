"""What the suite says about a case, read from its JSON file."""

import dataclasses
import json
from enum import StrEnum
from pathlib import Path
from typing import Self


class Outcome(StrEnum):
    """As the suite writes it; KNOWN is a failure that the original is known for (only with `--upstream`)."""

    OK = "ok"
    FAIL = "FAIL"
    SKIP = "skip"
    KNOWN = "known"


# A case that ran several times counts as its worst round.
_WORST_FIRST = (Outcome.FAIL, Outcome.KNOWN, Outcome.SKIP, Outcome.OK)


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """One case: what became of it, and why when it did not pass.

    Attributes:
        first: why it failed before, when this is what came of it the second time, alone; else empty.
    """

    outcome: Outcome
    text: str = ""
    first: str = ""

    def worse_of(self, other: Self) -> Self:
        """The one that says less good of the case."""
        return min(self, other, key=lambda result: _WORST_FIRST.index(result.outcome))


Results = dict[str, Result]


def read_results(path: Path) -> Results:
    """Case to result, from what `tests/interop/run --json` wrote.

    Raises:
        ValueError, KeyError: it is no such file.
    """
    results: Results = {}
    for case in json.loads(path.read_text())["cases"]:
        result = Result(Outcome(case["outcome"]), case["text"])
        earlier = results.get(case["id"])
        results[case["id"]] = result if earlier is None else earlier.worse_of(result)
    return results


def group_of(case: str) -> str:
    """`send` of `send/sync`."""
    return case.partition("/")[0]
