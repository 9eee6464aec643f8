"""`ledgermq drill NAME`: breaks a cluster under steady traffic, repairs it, and accounts for every message."""

import argparse
import asyncio
import contextlib
import faulthandler
import functools
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from chaos.drills.catalogue import CATALOGUE, Drill
from chaos.drills.workloads import STEADY, WORKLOADS, Workload
from cli.cluster.plan import ClusterMode
from node.errors import CommandError, UsageError

if TYPE_CHECKING:
    from chaos.drills.run import Order
    from chaos.drills.verdict import DrillResult
    from chaos.drills.watchdog import Watchdog
    from cli.described import DescribedFabric
    from cli.fabric import LocalFabric
    from cli.live import LiveDisplay

RATE = 500.0
_START_LIMIT_S = 120.0
_UNDO_LIMIT_S = 20.0
_STOP_LIMIT_S = 60.0
_NODES_END_S = 0.2  # the kernel ends these processes with the one that started them
MODES = [mode.value for mode in ClusterMode]
_DEFAULT_MODE = ClusterMode.RAFT.value
FABRICS = [_PROCESSES, _NAMESPACES, COMPOSE] = ["processes", "namespaces", "compose"]
_COMPOSE_LIMIT_S = 900.0  # images may have to be built
_QUIET_S = 2.0
_SMALL_FILES = "mappedFileSizeCommitLog=16777216"  # each of up to twelve nodes allocates two files at once


class _New(NamedTuple):
    """A cluster to start: with these options of `cluster up`, or, if they are None, of containers."""

    mode: str
    options: Sequence[str] | None


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `drill` to the parser."""
    drill = commands.add_parser("drill", help="break a cluster under load and account for every message")
    kinds = drill.add_subparsers(dest="kind", metavar="DRILL", required=True)
    names = kinds.add_parser("list", help="the names of the drills that a mode allows, one a line")
    names.add_argument("--mode", choices=MODES, default=_DEFAULT_MODE)
    names.set_defaults(run=_list)
    for one in CATALOGUE.values():
        kind = kinds.add_parser(one.name, help=one.summary, description=f"{one.summary}; shows that {one.proves}.")
        kind.add_argument(
            "--hold", type=positive, default=one.hold_s, metavar="S", help="seconds that the fault lasts (%(default)s)"
        )
        add_traffic_options(kind)
        kind.set_defaults(run=_drill)


def add_traffic_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all runs of drills share."""
    parser.add_argument("--mode", choices=MODES, help=f"of a new cluster ({_DEFAULT_MODE})")
    parser.add_argument(
        "--fabric",
        choices=FABRICS,
        help=f"of a new cluster: {_PROCESSES} (default), with Toxiproxy where links are cut; a network of its own for"
        " each node, which iptables cuts (root); or containers of docker-compose.yml (Docker)",
    )
    add_attach_option(parser)
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a property of the brokers of a new cluster",
    )
    parser.add_argument(
        "--workload",
        choices=list(WORKLOADS),
        help="; ".join(f"{one.name}: {one.summary}" for one in WORKLOADS.values()),
    )
    parser.add_argument(
        "--client",
        choices=["python", "java"],
        default="python",
        help="whose producer and consumer: ours (default), or RocketMQ's, for workload steady (a JDK and its jars)",
    )
    parser.add_argument("--rate", type=positive, default=RATE, metavar="N", help="messages a second (%(default)g)")
    add_quiet_option(parser)
    parser.add_argument("--watch", action="store_true", help="show the run on the whole terminal")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--report", type=Path, metavar="FILE.html", help="also write a report for people to this file")
    parser.add_argument(
        "--history", type=Path, metavar="FILE", help="append every operation to this file, as JSON Lines"
    )


def add_quiet_option(parser: argparse.ArgumentParser) -> None:
    """Add the option for the length of the traffic around faults."""
    parser.add_argument(
        "--quiet",
        type=positive,
        default=_QUIET_S,
        metavar="S",
        help="seconds of steady traffic before and after each fault (%(default)g)",
    )


def add_attach_option(parser: argparse.ArgumentParser) -> None:
    """Add the option for a running cluster."""
    parser.add_argument(
        "--attach",
        type=Path,
        metavar="WHICH",
        help="use a running cluster: the folder of a `cluster up`, the JSON object that it printed, or a description"
        " with a command for each verb (docs/chaos.md; - for standard input)",
    )


def attached(arguments: argparse.Namespace) -> "LocalFabric | DescribedFabric | None":
    """Return the running cluster that the arguments name, if any, and set mode and fabric in them.

    Raises:
        UsageError: its description is wrong, or a mode or fabric was given, too; the Java client is not installed.
        CommandError: it does not run.
    """
    if arguments.client == "java":
        from chaos.drills.java_client import java_command

        java_command()
        if arguments.workload not in (None, STEADY.name):
            raise UsageError(f"--client java and --workload {arguments.workload}: it does {STEADY.name} only")
    if arguments.attach is None:
        arguments.mode, arguments.fabric = arguments.mode or _DEFAULT_MODE, arguments.fabric or _PROCESSES
        if arguments.conf and arguments.fabric == COMPOSE:
            raise UsageError("--conf and --fabric compose: containers have the settings of conf/compose")
        return None
    from cli.described import attach

    if arguments.mode is not None:
        raise UsageError("--attach and --mode: a running cluster has its mode")
    if arguments.fabric is not None:
        raise UsageError("--attach and --fabric: a running cluster has its fabric")
    if arguments.conf:
        raise UsageError("--attach and --conf: a running cluster has its settings")
    fabric = attach(arguments.attach)
    arguments.mode, arguments.fabric = fabric.mode, fabric.kind
    return fabric


def where(arguments: argparse.Namespace) -> str:
    """Return the options that name the cluster, for the command that repeats the run."""
    if arguments.attach is not None:
        return f"--attach {arguments.attach}"
    fabric = "" if arguments.fabric == _PROCESSES else f" --fabric {arguments.fabric}"
    return f"--mode {arguments.mode}{fabric}" + "".join(f" --conf {setting}" for setting in arguments.conf)


def pace(arguments: argparse.Namespace) -> str:
    """Return the options of the traffic, for the same command."""
    quiet = "" if arguments.quiet == _QUIET_S else f" --quiet {arguments.quiet:g}"
    workload = f" --workload {arguments.workload}" if arguments.workload else ""
    client = "" if arguments.client == "python" else f" --client {arguments.client}"
    return f"{quiet} --rate {arguments.rate:g}{workload}{client}"


def run_order(
    order: "Order",
    arguments: argparse.Namespace,
    fabric: "LocalFabric | DescribedFabric | None",
    drills: Sequence[Drill],
) -> int:
    """Carry out an order on a running cluster or a new one of the arguments' mode, and return the exit code.

    `drills` are all drills that the order may draw: a new cluster gets the equipment and settings of each.

    The table is printed; figures and report go to the files of the arguments. A cluster that did not start or accepted
    no traffic, and a run that hung, prove nothing: the error is printed, and the exit code is that of UNKNOWN.

    Raises:
        UsageError: a file cannot be written; nothing was started.
    """
    from chaos.drills.verdict import DrillVerdict
    from chaos.report.page import render

    with _writable(path for path in (arguments.json, arguments.report, arguments.history) if path is not None):
        try:
            is_composed = arguments.fabric == COMPOSE
            new = _New(arguments.mode, None if is_composed else _equipment(drills, order.workload, arguments))
            with contextlib.closing(_display(order, is_watched=arguments.watch)) as display:
                result = _run_watched(order, new, fabric, display)
        except CommandError as error:
            print(f"error: {error}", file=sys.stderr)
            return DrillVerdict.UNKNOWN.value
        with contextlib.suppress(BrokenPipeError):  # the files and the exit code still tell the verdict
            print(result.table(), flush=True)
        if arguments.json is not None:
            _write(arguments.json, json.dumps(result.figures(), indent=1) + "\n")
        if arguments.report is not None:
            _write(arguments.report, render(result))
    return result.verdict.value


@contextlib.contextmanager
def _writable(paths: Iterable[Path]) -> Iterator[None]:
    """Check that these files can be written; created ones that are empty at the end are removed.

    Raises:
        UsageError: one cannot be written.
    """
    made: list[Path] = []
    try:
        for path in paths:
            is_new = not path.exists()
            try:
                path.open("a").close()
            except OSError as error:
                raise UsageError(f"{path}: {error.strerror}") from error
            if is_new:
                made.append(path)
        yield
    finally:
        for path in made:
            if path.exists() and path.stat().st_size == 0:
                path.unlink()


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:  # for example the disk has become full
        raise UsageError(f"{path}: {error.strerror}") from error


def _list(arguments: argparse.Namespace) -> int:
    print("\n".join(name for name, drill in CATALOGUE.items() if arguments.mode in drill.modes))
    return 0


def _drill(arguments: argparse.Namespace) -> int:
    from chaos.drills.run import Order
    from chaos.drills.schedule import Planned

    drill, fabric = CATALOGUE[arguments.kind], attached(arguments)
    modes = drill.modes_on(arguments.fabric)
    if not modes and arguments.fabric == _NAMESPACES:
        raise UsageError(f"drill {drill.name} delays messages, which namespaces cannot: run it on processes")
    if not modes:
        raise UsageError(f"drill {drill.name} cannot run on {arguments.fabric}")
    if arguments.mode not in modes:
        hint = f" (it is with --fabric {_NAMESPACES})" if arguments.mode in drill.modes_on(_NAMESPACES) else ""
        raise UsageError(f"drill {drill.name} is for mode {', '.join(sorted(modes))}, not {arguments.mode}{hint}")
    order = Order(
        name=drill.name,
        drills=[Planned(drill, arguments.hold)],
        limit_s=float("inf"),
        rate=arguments.rate,
        quiet_s=arguments.quiet,
        history=arguments.history and str(arguments.history),
        repeat=f"ledgermq drill {drill.name} {where(arguments)} --hold {arguments.hold:g}{pace(arguments)}",
        expected_s=2 * arguments.quiet + arguments.hold + 1.0,
        workload=WORKLOADS[arguments.workload or STEADY.name],
        client=arguments.client,
    )
    return run_order(order, arguments, fabric, [drill])


def _equipment(drills: Sequence[Drill], workload: Workload, arguments: argparse.Namespace) -> list[str]:
    """Return the options of `cluster up` for what these drills, this workload and the arguments need on the fabric."""
    fabric = arguments.fabric
    settings = sorted({setting for drill in drills for setting in drill.settings} | set(workload.settings))
    settings = [_SMALL_FILES, *settings, *arguments.conf]  # the last value of a key counts
    options = sorted({option for drill in drills for option in drill.equipment})
    if fabric == _NAMESPACES:
        options = ["--fabric", fabric, *(option for option in options if option != "--links")]
    return [*options, *(word for setting in settings for word in ("--conf", setting))]


def _run_watched(
    order: "Order", new: _New, fabric: "LocalFabric | DescribedFabric | None", display: "LiveDisplay"
) -> "DrillResult":
    """Run an order under a watchdog. Raises CommandError: a stage exceeded its limit."""
    import uvloop

    from chaos.drills.watchdog import Watchdog

    result: DrillResult | None = None
    with (
        tempfile.TemporaryDirectory(prefix="ledgermq-drill-") as scratch,
        Watchdog(functools.partial(_leave, Path(scratch), display)) as watchdog,
    ):
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                if fabric is None:
                    directory = Path(scratch) / "cluster"
                    result = runner.run(_run_on_new(order, new, directory, watchdog, display))
                else:
                    result = runner.run(_run_on(fabric, order, watchdog, display))
        except (KeyboardInterrupt, CommandError):
            if not watchdog.overdue:
                raise
    if watchdog.overdue or result is None:
        raise CommandError(f"unknown: {watchdog.overdue}")
    return result


async def _run_on_new(
    order: "Order", new: _New, directory: Path, watchdog: "Watchdog", display: "LiveDisplay"
) -> "DrillResult":
    from cli.composed import compose_cluster
    from cli.fabric import local_cluster

    watchdog.stage("the start of the cluster", _COMPOSE_LIMIT_S if new.options is None else _START_LIMIT_S)
    starts = (
        compose_cluster(new.mode) if new.options is None else local_cluster(directory, "--mode", new.mode, *new.options)
    )
    async with starts as fabric:
        result = await _run_on(fabric, order, watchdog, display)
        watchdog.stage("the end of the cluster", _STOP_LIMIT_S)
    return result


async def _run_on(
    fabric: "LocalFabric | DescribedFabric", order: "Order", watchdog: "Watchdog", display: "LiveDisplay"
) -> "DrillResult":
    """Run an order on a fabric; Ctrl-C undoes the fault before the cluster is left."""
    from chaos.drills.run import run_drills

    run = asyncio.ensure_future(run_drills(fabric, order, display, watchdog))
    try:
        await asyncio.wait({run})
    except asyncio.CancelledError:
        watchdog.stage("the end of the run after Ctrl-C", _UNDO_LIMIT_S + _STOP_LIMIT_S)
        run.cancel()
        await asyncio.wait({run}, timeout=_UNDO_LIMIT_S)
        raise
    finally:
        await fabric.aclose()
    return run.result()


def _display(order: "Order", *, is_watched: bool) -> "LiveDisplay":
    """Return the display of a run. Raises UsageError: there is no terminal for `--watch`."""
    from cli.live import LineDisplay, ScreenDisplay

    if not is_watched:
        return LineDisplay(sys.stderr, order.expected_s)
    if not sys.stderr.isatty():
        raise UsageError("--watch needs a terminal; without it there is one line a second")
    return ScreenDisplay(sys.stderr, order.name, order.expected_s)


def _leave(directory: Path, display: "LiveDisplay", hangs: str) -> None:
    """End this process and the cluster at once with code 2, remove the folder, and print where each thread was."""
    try:
        for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        time.sleep(_NODES_END_S)
        shutil.rmtree(directory, ignore_errors=True)
        display.close()  # restores the terminal; the error stays visible
        print(f"error: unknown: {hangs}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback()
    finally:
        os._exit(2)


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value
