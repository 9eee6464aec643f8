"""`ledgermq drill kill-leader`: the demo's stream through a cluster of any mode whose leader or master is killed."""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cli.cluster.plan import ClusterMode

if TYPE_CHECKING:
    from cli.demo.result import DemoResult

_MODES = (ClusterMode.RAFT, ClusterMode.SYNC, ClusterMode.ASYNC, ClusterMode.CONTROLLER)
_LINE_SIZE_MAX_BYTES = 4 << 20


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `drill` to the parser."""
    drill = commands.add_parser("drill", help="break a cluster under load and account for every message")
    kinds = drill.add_subparsers(dest="kind", metavar="DRILL", required=True)
    kill = kinds.add_parser("kill-leader", help="SIGKILL the leader or master, and start it again")
    kill.add_argument("--mode", choices=[mode.value for mode in _MODES], default=ClusterMode.RAFT.value)
    kill.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    kill.set_defaults(run=_kill_leader)


def _kill_leader(arguments: argparse.Namespace) -> int:
    import uvloop

    with (
        tempfile.TemporaryDirectory(prefix="ledgermq-drill-") as scratch,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        result = runner.run(_run(arguments.mode, Path(scratch)))
    print(result.table())
    if arguments.json is not None:
        figures = {"drill": "kill-leader", "mode": arguments.mode, **result.figures()}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if result.passed else 1


async def _run(mode: str, scratch: Path) -> "DemoResult":
    from cli.demo.cluster import local_cluster
    from cli.demo.drill import run_drill
    from cli.demo.text import read_lines, write_default_text

    began_s = time.monotonic()
    path = scratch / "input.txt"
    write_default_text(path)
    async with local_cluster(scratch / "cluster", "--mode", mode) as cluster:
        return await run_drill(cluster, read_lines(path, _LINE_SIZE_MAX_BYTES), began_s)
