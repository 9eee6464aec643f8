"""`python -m chaos.drills.every_mode`: SIGKILL of the master under load in every mode, and one table of what it cost.

Each round is `ledgermq drill kill-leader --mode MODE --json FILE` on a cluster of its own. In the modes sync and async
nobody takes over: the time without acknowledgements has the 2 s after which the master is started again. Ends with 1 if
a round did not keep its promises; what an asynchronous slave lacks is no promise, but the killed master has its disk.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MODES = ("sync", "async", "controller", "raft")
_COLUMNS = "| mode | rounds | passed | acknowledged | lost | stored twice | RTO producers | RTO consumers |"
_ROUND_LIMIT_S = 90

Figures = Mapping[str, Any]


def table(rounds: Mapping[str, Sequence[Figures]]) -> str:
    """Markdown, one row a mode; RTOs in ms as median and longest of the rounds."""
    rows = [_COLUMNS, "|" + "---|" * 8]
    for mode, figures in rounds.items():
        if not figures:
            rows.append(f"| {mode} | 0 | | | | | | |")
            continue
        sums = [f"{sum(one[name] for one in figures):,}" for name in ("acked", "lost", "stored_twice")]
        times = [
            f"{statistics.median(values):,.0f}, at most {max(values):,.0f}"
            for name in ("rto_ms", "consumer_rto_ms")
            if (values := [one[name] for one in figures])
        ]
        passed = sum(one["passed"] for one in figures)
        rows.append(f"| {mode} | {len(figures)} | {passed} | {' | '.join([*sums, *times])} |")
    return "\n".join(rows)


def drill(mode: str, json_path: Path, rate: float) -> Figures | None:
    """One round; prints the drill's output unless it passed. None: it gave no figures."""
    words = [sys.executable, "-P", "-m", "ledgermq_server", "drill", "kill-leader", "--mode", mode]
    words += ["--rate", f"{rate:g}", "--json", str(json_path)]
    scratch = os.environ | {"TMPDIR": str(json_path.parent)}  # what a killed drill leaves behind is removed with it
    try:
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_ROUND_LIMIT_S, env=scratch
        )
    except subprocess.TimeoutExpired as late:
        print(f"{mode}: the drill has not ended within {_ROUND_LIMIT_S} s\n{(late.output or b'').decode()}")
        return None
    text = json_path.read_text() if json_path.exists() else ""
    if not text:
        print(f"{mode}: the drill ended with {done.returncode} and gave no figures\n{done.stdout}")
        return None
    figures: Figures = json.loads(text)
    if not figures["passed"]:
        print(done.stdout)
    return figures


def main() -> int:
    """Run the rounds that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m chaos.drills.every_mode", description=__doc__)
    parser.add_argument("--modes", default=",".join(MODES), help="divided by commas (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of each mode (%(default)s)")
    parser.add_argument("--rate", type=float, default=500.0, help="messages a second (%(default)g)")
    options = parser.parse_args()
    rounds: dict[str, list[Figures]] = {mode: [] for mode in options.modes.split(",")}
    with tempfile.TemporaryDirectory(prefix="ledgermq-kills-") as scratch:
        for number in range(options.rounds):
            for mode, figures in rounds.items():
                found = drill(mode, Path(scratch) / f"{mode}-{number}.json", options.rate)
                figures += [] if found is None else [found]
    print(table(rounds))
    passed = sum(one["passed"] for figures in rounds.values() for one in figures)
    return int(not passed or passed < options.rounds * len(rounds))


if __name__ == "__main__":
    sys.exit(main())
