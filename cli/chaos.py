"""`ledgermq chaos run|suite|simulate`: drills by a seed, all drills, and seeded simulation of whole clusters."""

import argparse
import os
from pathlib import Path

from chaos.drills.catalogue import CATALOGUE
from chaos.drills.workloads import STEADY, WORKLOADS, drawn
from cli.drill import (
    COMPOSE,
    FABRICS,
    MODES,
    RATE,
    add_quiet_option,
    add_traffic_options,
    attached,
    pace,
    positive,
    run_order,
    where,
)
from ledgermq.history import HistoryError, Operation, parse_operation
from node.errors import UsageError

_LINEAR_MAX = 5000
"""Most operations of a history that is searched for a linearizable order."""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `chaos` to the parser."""
    verbs = commands.add_parser(
        "chaos", help="all drills, or random faults by a seed: on real processes, or simulated; histories judged"
    ).add_subparsers(dest="verb", metavar="VERB", required=True)
    run = verbs.add_parser("run", help="drills of the catalogue, drawn from a seed, on one cluster under traffic")
    which = run.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, metavar="N", help="draws the drills and their lengths")
    which.add_argument(
        "--schedule", type=Path, metavar="FILE", help="TOML or JSON: which drills begin when (docs/chaos.md)"
    )
    run.add_argument("--minutes", type=positive, default=1.0, metavar="M", help="no drill begins later (%(default)g)")
    usual = ",".join(name for name, drill in CATALOGUE.items() if drill.equipment <= {"--links"} and not drill.settings)
    run.add_argument(
        "--drills", default=usual, metavar="DRILL,...", help="drawn from (all but those with disks and clocks)"
    )
    add_traffic_options(run)
    run.set_defaults(run=_run)
    suite = verbs.add_parser("suite", help="drills, each in every mode that allows it, and one table")
    suite.add_argument("--modes", default=",".join(MODES), metavar="MODE,...", help="(%(default)s)")
    suite.add_argument("--fabric", choices=FABRICS, default=FABRICS[0], help="of the clusters (%(default)s)")
    suite.add_argument("--drills", default=",".join(CATALOGUE), metavar="DRILL,...", help="(all)")
    suite.add_argument("--rounds", type=_count, default=1, metavar="N", help="of each (%(default)s)")
    suite.add_argument("--rate", type=positive, default=RATE, metavar="N", help="messages a second (%(default)g)")
    add_quiet_option(suite)
    suite.add_argument("--jobs", type=_count, default=1, metavar="N", help="drills side by side (%(default)s)")
    suite.add_argument(
        "--out", type=Path, default=Path("drills"), metavar="DIR", help="for figures and reports (%(default)s)"
    )
    suite.set_defaults(run=_suite)
    check = verbs.add_parser("check", help="judge the history that a drill wrote, of any length, in little memory")
    check.add_argument("file", type=Path, metavar="FILE", help="written by --history")
    check.set_defaults(run=_check)
    simulate = verbs.add_parser(
        "simulate", help="whole clusters in one process, on a clock, network and disk of a seed"
    )
    which = simulate.add_mutually_exclusive_group(required=True)
    which.add_argument("--seeds", type=_seeds, metavar="A..B", help="run the seeds A to B, both included")
    which.add_argument("--replay", type=int, metavar="SEED", help="run one seed, with one line for each event")
    which.add_argument("--shrink", type=int, metavar="SEED", help="the fewest faults with which a seed still fails")
    which.add_argument("--corpus", action="store_true", help="run the seeds that once failed")
    simulate.add_argument("--stack", action="store_true", help="whole brokers on files, not Raft nodes alone")
    simulate.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (%(default)s)")
    simulate.set_defaults(run=_simulate)


def _check(arguments: argparse.Namespace) -> int:
    """Judge a history; return 0 if every promise was kept, 1 if one was broken.

    Raises:
        UsageError: the file cannot be read, or is no history of one drill.
    """
    from contextlib import closing

    from chaos.checkers.linear import Linearity, check_queues
    from chaos.checkers.operations import PROMISES, Judge

    small: list[Operation] = []
    try:
        with closing(Judge()) as judge, arguments.file.open("rb") as file:
            for line in file:
                if (operation := parse_operation(line)) is not None:
                    judge.feed(operation)
                    if len(small) <= _LINEAR_MAX:
                        small.append(operation)
            findings = judge.findings()
    except (OSError, HistoryError) as error:
        raise UsageError(f"{arguments.file}: {error}") from error
    if not findings.sent:
        raise UsageError(f"{arguments.file}: it has no operations of a drill")
    print(f"{findings.sent:,} sent, {findings.acked:,} acknowledged, {findings.delivered:,} delivered")
    for code, name, what in PROMISES:
        count = getattr(findings, name)
        lines = [f"{'FAIL' if count else 'ok  '} {code:4} {what}: {count:,}", *findings.examples.get(name, ())]
        print("\n          ".join(lines))
    if len(small) > _LINEAR_MAX:
        return 0 if findings.is_sound else 1
    answers = list(check_queues(small).values())
    word = "FAIL" if Linearity.NO in answers else "ok  " if Linearity.UNKNOWN not in answers else "?   "
    yes = answers.count(Linearity.YES)
    print(f"{word} LIN  appends and reads of each queue are linearizable: {yes} of {len(answers)} queues")
    return 0 if findings.is_sound and Linearity.NO not in answers else 1


def _run(arguments: argparse.Namespace) -> int:
    return _scheduled(arguments) if arguments.schedule is not None else _campaign(arguments)


def _scheduled(arguments: argparse.Namespace) -> int:
    """Run the drills of a schedule. Raises UsageError: it is no schedule, or the mode does not allow a drill."""
    from chaos.drills.run import Order
    from chaos.drills.schedule import ScheduleError, parse
    from cli.suite import pairs_of

    try:
        planned = parse(arguments.schedule.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ScheduleError) as error:
        raise UsageError(f"{arguments.schedule}: {error}") from error
    fabric = attached(arguments)
    names = list(dict.fromkeys(one.drill.name for one in planned))
    for name in names:
        pairs_of([name], [arguments.mode], arguments.fabric)
    last_s = max(one.at_s or 0.0 for one in planned)
    order = Order(
        name=f"schedule {arguments.schedule.name}",
        drills=planned,
        limit_s=float("inf"),
        rate=arguments.rate,
        quiet_s=arguments.quiet,
        expected_s=last_s + arguments.quiet + planned[-1].hold_s,
        history=arguments.history and str(arguments.history),
        workload=WORKLOADS[arguments.workload or STEADY.name],
        client=arguments.client,
        repeat=f"ledgermq chaos run --schedule {arguments.schedule} {where(arguments)}{pace(arguments)}",
    )
    return run_order(order, arguments, fabric, [CATALOGUE[name] for name in names])


def _campaign(arguments: argparse.Namespace) -> int:
    from chaos.drills.run import Order
    from chaos.drills.schedule import draw
    from cli.suite import pairs_of

    fabric = attached(arguments)
    # foreign brokers may lack settings that a workload needs
    if arguments.workload is None and fabric is None and arguments.client == "python":
        arguments.workload = drawn(arguments.seed).name
    drills = [CATALOGUE[name] for name, _ in pairs_of(arguments.drills.split(","), [arguments.mode], arguments.fabric)]
    order = Order(
        name=f"campaign {arguments.seed}",
        drills=draw(arguments.seed, drills),
        limit_s=60 * arguments.minutes,
        rate=arguments.rate,
        quiet_s=arguments.quiet,
        expected_s=60 * arguments.minutes,
        history=arguments.history and str(arguments.history),
        workload=WORKLOADS[arguments.workload or STEADY.name],
        client=arguments.client,
        repeat=f"ledgermq chaos run --seed {arguments.seed} --minutes {arguments.minutes:g} {where(arguments)}"
        f" --drills {','.join(drill.name for drill in drills)}{pace(arguments)}",
    )
    return run_order(order, arguments, fabric, drills)


def _suite(arguments: argparse.Namespace) -> int:
    from cli.suite import Suite, pairs_of, run

    pairs = pairs_of(arguments.drills.split(","), arguments.modes.split(","), arguments.fabric)
    if arguments.fabric == COMPOSE and arguments.jobs > 1:
        raise UsageError("--jobs is not for --fabric compose: its containers have the ports of docker-compose.yml")
    rounds, rate, quiet_s, jobs = arguments.rounds, arguments.rate, arguments.quiet, arguments.jobs
    return run(Suite(pairs, rounds, rate, quiet_s, arguments.out, arguments.fabric, jobs))


def _simulate(arguments: argparse.Namespace) -> int:
    """Run simulations; return 0 if every seed is clean, else 1, and print how to repeat or shrink the failing seed."""
    from chaos.sim.__main__ import main

    words = ["--stack"] if arguments.stack else []
    if arguments.replay is not None:
        return min(main([*words, "--seed", str(arguments.replay), "--trace"]), 1)
    if arguments.shrink is not None:
        return min(main([*words, "--shrink", str(arguments.shrink)]), 1)
    first, last = arguments.seeds or (0, 0)
    which = ["--corpus"] if arguments.corpus else ["--seeds", f"{first}:{last + 1}"]
    return min(main([*words, *which, "--jobs", str(arguments.jobs)]), 1)


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _seeds(text: str) -> tuple[int, int]:
    first, separator, last = text.partition("..")
    if not (separator and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"{text!r} is not A..B with two whole numbers, the smaller first")
    return int(first), int(last)
