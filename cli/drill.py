"""`ledgermq drill NAME`: breaks a cluster under steady traffic, repairs it, and accounts for every message."""

import argparse
import asyncio
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.drills.catalogue import CATALOGUE, Drill
from cli.cluster.plan import ClusterMode
from node.errors import UsageError

if TYPE_CHECKING:
    from chaos.drills.run import Order
    from chaos.drills.verdict import DrillResult

_RATE = 500.0
_QUIET_S = 2.0


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `drill` to the parser."""
    drill = commands.add_parser("drill", help="break a cluster under load and account for every message")
    kinds = drill.add_subparsers(dest="kind", metavar="DRILL", required=True)
    for one in CATALOGUE.values():
        kind = kinds.add_parser(one.name, help=one.summary, description=f"{one.summary}; shows that {one.proves}.")
        kind.add_argument("--mode", choices=[mode.value for mode in ClusterMode], default=ClusterMode.RAFT.value)
        kind.add_argument(
            "--hold", type=_positive, default=one.hold_s, metavar="S", help="seconds that the fault lasts (%(default)s)"
        )
        add_traffic_options(kind)
        kind.set_defaults(run=_drill)


def add_traffic_options(parser: argparse.ArgumentParser) -> None:
    """Add what all runs of drills have in common."""
    parser.add_argument("--rate", type=_positive, default=_RATE, metavar="N", help="messages a second (%(default)g)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument(
        "--history", type=Path, metavar="FILE", help="append what the producer was told to this file, as JSON Lines"
    )


def run_order(order: "Order", mode: str, json_path: Path | None) -> int:
    """Carry out an order on a new cluster of this mode, print the table, and return the exit code.

    Raises:
        CommandError: the cluster did not start, or took no traffic.
        OSError: a file cannot be written; found before anything is started.
    """
    import uvloop

    if json_path is not None:
        json_path.open("a").close()
    with (
        tempfile.TemporaryDirectory(prefix="ledgermq-drill-") as scratch,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        result = runner.run(_run(order, mode, Path(scratch) / "cluster"))
    print(result.table())
    if json_path is not None:
        json_path.write_text(json.dumps(result.figures(), indent=1) + "\n")
    return result.verdict.value


def _drill(arguments: argparse.Namespace) -> int:
    from chaos.drills.run import Order

    drill = CATALOGUE[arguments.kind]
    require_mode(drill, arguments.mode)
    order = Order(
        name=drill.name,
        drills=[(drill, arguments.hold)],
        rate=arguments.rate,
        quiet_s=_QUIET_S,
        history=None if arguments.history is None else str(arguments.history),
        repeat=shlex.join(["ledgermq", *sys.argv[1:]]),
    )
    return run_order(order, arguments.mode, arguments.json)


def require_mode(drill: Drill, mode: str) -> None:
    """Check that a drill can be done in a mode.

    Raises:
        UsageError: it cannot; names the modes in which it can.
    """
    if mode not in drill.modes:
        raise UsageError(f"drill {drill.name} is for mode {', '.join(sorted(drill.modes))}, not {mode}")


async def _run(order: "Order", mode: str, directory: Path) -> "DrillResult":
    from chaos.drills.run import run_drills
    from cli.demo.cluster import local_cluster
    from cli.fabric import LocalFabric
    from cli.live import LiveDisplay

    links = ["--links"] if any(drill.needs_links for drill, _ in order.drills) else []
    async with local_cluster(directory, "--mode", mode, *links) as cluster:
        return await run_drills(LocalFabric(cluster, directory), order, LiveDisplay(sys.stderr))


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value
