"""Run the conformance suite on clusters of LedgerMQ, and show its scores beside the real broker's.

    scripts/interop CLUSTER [--client VERSION] [--cases P,..] [options of tests/interop/run]
    scripts/interop usual | slaves | whole               what `make interop`, `interop-slaves` and `interop-all` run
    scripts/interop record [COLUMN...] [--cases P,..]    run the real RocketMQ 5.3.3, and keep its scores in real.tsv

CLUSTER is standalone, raft, standalone-acl, raft-acl, standalone-tls, raft-tls, standalone-tls-enforcing, sync, async,
controller or two-brokers. A case that times out is run once more, alone (not with --repeat).
Exit status: 0 nothing is owed, 1 a case is not passed that the real broker passes, or was not run, 2 a cluster or the
suite did not run.
"""

import argparse
import concurrent.futures
import dataclasses
import shutil
import signal
import sys
import tempfile
import time

from tests.interop.scoring import ours, real
from tests.interop.scoring.outcomes import Results
from tests.interop.scoring.reference import Reference
from tests.interop.scoring.runs import CLIENTS, COUNTERPARTS, Run, cases_for, recorded, usual, whole, with_slaves
from tests.interop.scoring.suite import NotRunError, run_fairly
from tests.interop.scoring.table import Row, again, owed, side_by_side, summary, with_missing

JOBS = "8"
AT_ONCE = 2
"""Runs side by side, each on a cluster of its own: the suite mostly waits."""


def main(words: list[str]) -> int:
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing:
        print(f"interop: {missing[0]} is not on the PATH; Java 17 and Maven are needed", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # clusters are stopped on the way out
    parser = argparse.ArgumentParser(
        prog="scripts/interop", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=[*COUNTERPARTS, "usual", "slaves", "whole", "record"], metavar="WHAT")
    parser.add_argument("--client", choices=CLIENTS, default=CLIENTS[0])
    parser.add_argument("--cases", help="patterns of cases, as tests/interop/run takes them")
    args, rest = parser.parse_known_args(words)
    try:
        if args.what == "record":
            return record(rest, args.cases)
        plans = {"usual": usual, "slaves": with_slaves, "whole": whole}
        one = [Run(args.what, args.client, args.cases or cases_for(args.what))] if args.what in COUNTERPARTS else []
        return judge(one or plans[args.what](), rest)
    except NotRunError as error:
        print(f"interop: {error}", file=sys.stderr)
        return 2


def judge(runs: list[Run], options: list[str]) -> int:
    """Run all of them, show the scores; 1 when anything is owed."""
    reference = Reference.load()
    rows: list[Row] = []
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for run, (results, text, seconds) in zip(runs, pool.map(lambda run: _run(run, options), runs), strict=True):
            scores = reference.columns.get(run.column, {})
            results = with_missing(results, scores, run.cases)
            rows.append((run.title, results, scores, seconds))
            print(f"==== {run.title}: {run.cases}", text, sep="\n")
            print(*side_by_side(f"{run.title}; the real broker: {run.column}", results, scores), sep="\n", flush=True)
    print(*summary(rows), *again(rows), sep="\n", flush=True)
    return int(any(owed(results, scores) for _, results, scores, _ in rows))


def _run(run: Run, options: list[str]) -> tuple[Results, str, float]:
    """Results, what the suite printed, and seconds."""
    began = time.monotonic()
    with ours.up(run.cluster) as target, tempfile.TemporaryFile("w+") as lines:
        results = run_fairly(target, run.client, run.cases, options, lines)
        lines.seek(0)
        return results, lines.read(), time.monotonic() - began


def record(columns: list[str], cases: str | None) -> int:
    """Run the real broker for these columns, or all, and keep what it scores; other cases keep their score."""
    unknown = set(columns) - {run.column for run in recorded()}
    if unknown:
        raise NotRunError(f"no column {', '.join(sorted(unknown))}")
    for run in recorded():
        if columns and run.column not in columns:
            continue
        run = dataclasses.replace(run, cases=cases or run.cases)
        print(f"==== the real broker, {run.column}: {run.cases}", flush=True)
        with real.up(COUNTERPARTS[run.cluster]) as target:
            results = run_fairly(target, run.client, run.cases, ["--jobs", JOBS])
        reference = Reference.load()
        reference.put(run.column, results)
        reference.save()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
