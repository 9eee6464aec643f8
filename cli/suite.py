"""`ledgermq chaos suite`: the drills of the catalogue in the modes that allow them, and one table of what each cost.

Each round is `ledgermq drill NAME --mode MODE` on a cluster of its own. Where nobody takes over (modes sync, async and
standalone), the time without acknowledgements has the seconds after which a killed master is started again.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.drills.catalogue import CATALOGUE
from chaos.drills.verdict import Verdict
from node.errors import UsageError

_COLUMNS = (
    "drill", "mode", "rounds", "passed", "failed", "acknowledged", "lost", "stored twice", "RTO producers",
    "RTO consumers",
)  # fmt: skip
_ROUND_LIMIT_S = 900

Figures = Mapping[str, Any]
Round = tuple[str, str]
"""Name of the drill, and the mode."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Runs each of `pairs` `rounds` times, in turns, on clusters of one fabric; reports and figures go to `out`."""

    pairs: Sequence[Round]
    rounds: int
    rate: float
    out: Path
    fabric: str


def pairs_of(drills: Sequence[str], modes: Sequence[str], fabric: str = "processes") -> list[Round]:
    """Return each drill with each of the modes that allow it on a fabric, as `Drill.modes_on`.

    Raises:
        UsageError: there is no such drill, or nothing is left.
    """
    for name in drills:
        if name not in CATALOGUE:
            raise UsageError(f"there is no drill {name!r}; there are {', '.join(CATALOGUE)}")
    pairs = [(name, mode) for mode in modes for name in drills if mode in CATALOGUE[name].modes_on(fabric)]
    if not pairs:
        raise UsageError(f"none of the modes {', '.join(modes)} allows {', '.join(drills)}")
    return pairs


def run(suite: Suite) -> int:
    """Run all rounds, print the table, and return the exit code: of the worst verdict, 1 before 2 before 0.

    Raises:
        OSError: the folder for reports cannot be made.
    """
    suite.out.mkdir(parents=True, exist_ok=True)
    results: dict[Round, list[Figures | None]] = {pair: [] for pair in suite.pairs}
    for number in range(suite.rounds):
        for pair, found in results.items():
            found.append(_drill(suite, pair, suite.out / "-".join((*pair, str(number + 1)))))
    print(table(results))
    verdicts = [figures["verdict"] if figures else "unknown" for found in results.values() for figures in found]
    worst = next((one for one in (Verdict.FAIL, Verdict.UNKNOWN) if one.name.lower() in verdicts), Verdict.PASS)
    return worst.value


def table(results: Mapping[Round, Sequence[Figures | None]]) -> str:
    """Return Markdown, one row for each drill and mode; RTOs in ms as median and longest of the rounds."""
    rows = ["| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
    for (drill, mode), rounds in results.items():
        figures = [one for one in rounds if one is not None]
        verdicts = [one["verdict"] for one in figures]
        cells = [drill, mode, str(len(rounds)), str(verdicts.count("pass")), str(verdicts.count("fail"))]
        cells += [f"{sum(one[name] for one in figures):,}" for name in ("acked", "lost", "stored_twice")]
        cells += [_times([one[name] for one in figures]) for name in ("rto_ms", "consumer_rto_ms")]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _times(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.0f}, at most {max(values):,.0f}" if values else ""


def _drill(suite: Suite, pair: Round, path: Path) -> Figures | None:
    """Run one round; print the drill's output unless it passed. None: it gave no figures."""
    name, mode = pair
    json_path = path.with_suffix(".json")
    json_path.unlink(missing_ok=True)
    words = [sys.executable, "-P", "-m", "ledgermq_server", "drill", name, "--mode", mode, "--fabric", suite.fabric]
    words += ["--rate", f"{suite.rate:g}", "--json", str(json_path), "--report", str(path.with_suffix(".html"))]
    print(f"{name}, mode {mode}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="ledgermq-suite-") as scratch:  # a killed drill's folder goes with it
        try:
            done = subprocess.run(
                words,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_ROUND_LIMIT_S,
                env=os.environ | {"TMPDIR": scratch},
            )
        except subprocess.TimeoutExpired as late:
            print(f"{name}, mode {mode}: not ended within {_ROUND_LIMIT_S} s\n{(late.output or b'').decode()}")
            return None
    text = json_path.read_text() if json_path.exists() else ""
    if not text:
        print(f"{name}, mode {mode}: ended with {done.returncode} and gave no figures\n{done.stdout}")
        return None
    figures: Figures = json.loads(text)
    if figures["verdict"] != "pass":
        print(done.stdout)
    return figures
