"""What the real broker scored: `real.tsv`, a row a case, a column a cluster and client (`dledger/4.9.8`).

    case          single/5.3.3   single/4.9.8   dledger/5.3.3 ...
    send/sync     ok             ok             ok
    timer/recall  ok             -              ok             -: the suite of that client has no such case

It is written by `scripts/interop record`, which runs the real broker; it is never edited by hand.
"""

from pathlib import Path
from typing import Self

from tests.interop.scoring.outcomes import Outcome, Results

FILE = Path(__file__).resolve().parent.parent / "real.tsv"
_ABSENT = "-"


class Reference:
    """The table; `columns[column][case]`."""

    def __init__(self, columns: dict[str, dict[str, Outcome]]) -> None:
        self.columns = columns

    @classmethod
    def load(cls, path: Path = FILE) -> Self:
        """Read the file; an absent one has no columns."""
        if not path.exists():
            return cls({})
        header, *rows = (line.split("\t") for line in path.read_text().splitlines())
        columns: dict[str, dict[str, Outcome]] = {name: {} for name in header[1:]}
        for case, *outcomes in rows:
            for name, outcome in zip(header[1:], outcomes, strict=True):
                if outcome != _ABSENT:
                    columns[name][case] = Outcome(outcome)
        return cls(columns)

    def put(self, column: str, results: Results) -> None:
        """Replace what is known of these cases in the column."""
        self.columns.setdefault(column, {}).update({case: result.outcome for case, result in results.items()})

    def save(self, path: Path = FILE) -> None:
        """Write the file, cases and columns in order."""
        names = sorted(self.columns)
        cases = sorted({case for column in self.columns.values() for case in column})
        rows = [["case", *names]]
        rows += [[case, *(self.columns[name].get(case, _ABSENT) for name in names)] for case in cases]
        path.write_text("".join("\t".join(row) + "\n" for row in rows))
