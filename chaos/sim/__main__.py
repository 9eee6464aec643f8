"""`python -m chaos.sim --seed N [--trace]` replays one seed; `--seeds A:B [--jobs J]` runs the seeds A up to B - 1.

`--shrink N [--trace]` finds the fewest faults with which a seed still fails.
A range prints how many seeds counted (they committed something, met a fault and changed the leader), and which kinds
of faults and messages never occurred: from 1,000 seeds on, that is a failure.

With `--seconds S` each process begins no further seed after so much processor time of its own, so that a busy machine
runs as many; at least one is run.

Exit codes: 0 all clean, 10 safety, 11 liveness, 12 crash (see `chaos.sim.errors`), 13 a gap, 2 bad arguments. The
first failing seed is printed with everything that was drawn for it, and the command that replays it.
"""

import argparse
import contextlib
import itertools
import math
import os
import time
import traceback
from collections.abc import Sequence
from functools import partial

from chaos import command
from chaos.sim.corpus import ALONE, STACK, corpus_seeds, name_of, seed_range
from chaos.sim.coverage import GAP_EXIT_CODE, Coverage
from chaos.sim.errors import Violation
from chaos.sim.plan import draw_plan, draw_stack_plan
from chaos.sim.pool import ended_by_sigterm, run_beside
from chaos.sim.run import RunResult, run_seed, run_stack_seed
from chaos.sim.shrink import RUN_LIMIT, Shrinker

CRASH_EXIT_CODE = 12


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = _parse(arguments)
    with ended_by_sigterm():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    if options.seed is not None:
        return _run_one(options.seed, trace=options.trace, is_stack=options.stack)
    if options.shrink is not None:
        return _shrink(options.shrink, trace=options.trace, is_stack=options.stack)
    seeds = corpus_seeds(STACK if options.stack else ALONE) if options.corpus else options.seeds
    return _run_many(seeds, options.jobs, options.seconds, is_stack=options.stack)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos.sim", description=__doc__, allow_abbrev=False)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="run one seed and print what it did")
    which.add_argument("--seeds", type=seed_range, help="A:B, the seeds A up to B - 1")
    which.add_argument("--shrink", type=int, metavar="SEED", help="the fewest faults with which a seed still fails")
    which.add_argument("--corpus", action="store_true", help="run the seeds that once failed (corpus.txt)")
    parser.add_argument("--stack", action="store_true", help="whole brokers on files, not Raft nodes alone")
    parser.add_argument("--trace", action="store_true", help="but for --seeds: one line per event, one column per node")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per CPU)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="with --seeds: processor time of each process")
    return parser.parse_args(arguments)


def _run_one(seed: int, *, trace: bool, is_stack: bool) -> int:
    try:
        result = (run_stack_seed if is_stack else run_seed)(seed, print if trace else None)
    except Exception as error:  # whatever a run raises is reported with its seed
        print(_report(seed, error, is_stack=is_stack))
        return _exit_code(error)
    print(f"seed {seed}: clean")
    print((draw_stack_plan if is_stack else draw_plan)(seed).describe())
    print(f"  events={result.event_count} committed={result.committed_count} acked={result.acked_count}")
    print(f"  leaders up to term {result.term}; trace {result.trace_hash:x}; {dict(sorted(result.marks.items()))}")
    return 0


def _shrink(seed: int, *, trace: bool, is_stack: bool) -> int:
    shrinker = Shrinker((draw_stack_plan if is_stack else draw_plan)(seed), is_stack=is_stack, tell=print)
    found = shrinker.shrink()
    if found is None:
        print(f"seed {seed}: clean, there is nothing to shrink")
        return 0
    first, last = found
    if trace:
        shrinker.trace(last, print)
    counts = f"{len(last.strikes)} of the {len(first.strikes)} faults"
    print(f"seed {seed} fails with {counts}, found in {shrinker.run_count} runs:")
    for strike in last.strikes:
        print(f"  {strike.at_us / 1000:10.3f} ms  {strike.kind}  {strike.whom}".rstrip())
    if shrinker.run_count >= RUN_LIMIT:
        print(f"  there may be fewer: it ended after {RUN_LIMIT} runs")
    print(_detail(last.error))
    print(last.plan.describe())
    return _exit_code(last.error)


def _run_many(seeds: Sequence[int], jobs: int, budget_s: float, *, is_stack: bool) -> int:
    """Run the seeds until each process has spent `budget_s` of processor time; return the exit code."""
    began = time.monotonic()
    coverage = Coverage(is_stack=is_stack)
    budgets = itertools.chain([math.inf], itertools.repeat(budget_s))  # at least one seed is run
    runs = run_beside(partial(_run_guarded, is_stack=is_stack), jobs, seeds, budgets, chunk=8)
    with contextlib.closing(runs):
        for result, report, exit_code in runs:
            if result is None and not exit_code:
                continue
            if result is None:
                print(report)
                return exit_code
            coverage.add(result)
    seconds = time.monotonic() - began
    print(f"{coverage.seed_count} seeds clean in {seconds:.1f} s, {coverage.counting} of them count")
    print("\n".join(f"  {name}: {count}" for name, count in sorted(coverage.totals.items())))
    print(coverage.campaign())
    print(f"never occurred: {', '.join(coverage.missing()) or 'nothing'}")
    if coverage.has_gap():
        print("a gap: so many seeds must meet each kind, and a quarter of them must count")
        return GAP_EXIT_CODE
    return 0


def _run_guarded(seed: int, budget_s: float, *, is_stack: bool) -> tuple[RunResult | None, str, int]:
    if time.process_time() > budget_s:
        return None, "", 0
    try:
        return (run_stack_seed if is_stack else run_seed)(seed), "", 0
    except Exception as error:  # handed to the parent as a report
        return None, _report(seed, error, is_stack=is_stack), _exit_code(error)


def _report(seed: int, error: Exception, *, is_stack: bool) -> str:
    return "\n".join(
        (
            f"seed {seed}: {type(error).__name__}",
            _detail(error),
            (draw_stack_plan if is_stack else draw_plan)(seed).describe(),
            f"replay: python -m chaos.sim {'--stack ' if is_stack else ''}--seed {seed} --trace",
            f"keep it, in {name_of(STACK if is_stack else ALONE)}: {seed} REASON",
        )
    )


def _detail(error: Exception) -> str:
    return str(error) if isinstance(error, Violation) else "".join(traceback.format_exception(error)).rstrip()


def _exit_code(error: Exception) -> int:
    return error.exit_code if isinstance(error, Violation) else CRASH_EXIT_CODE


if __name__ == "__main__":
    command.run(main)
