"""`ledgermq demo`: arguments, input, cluster and result."""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cli.drill import add_attach_option

if TYPE_CHECKING:
    from cli.demo.result import DemoResult

_LINE_SIZE_MAX_BYTES = 4 << 20
_NODE_COUNT = 3


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `demo` to the parser."""
    demo = commands.add_parser(
        "demo", help="send a file through three brokers, kill the leader meanwhile, verify everything"
    )
    demo.add_argument(
        "--input", type=Path, metavar="FILE", help="each line is one message (default: 20 MB of own text)"
    )
    demo.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    add_attach_option(demo)
    demo.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    import uvloop

    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="ledgermq-demo-") as scratch,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        result = runner.run(_run(arguments, Path(scratch), began_s))
    print(result.table())
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result.figures(), indent=1) + "\n")
    return 0 if result.passed else 1


async def _run(arguments: argparse.Namespace, scratch: Path, began_s: float) -> "DemoResult":
    from cli.demo.drill import run_drill
    from cli.demo.text import read_lines, write_default_text
    from cli.described import attach
    from cli.fabric import local_cluster

    path = arguments.input or scratch / "input.txt"
    if arguments.input is None:
        write_default_text(path)
    lines = read_lines(path, _LINE_SIZE_MAX_BYTES)
    _say(f"{path}: {sum(map(len, lines)) / 1e6:.1f} MB, {len(lines):,} lines, one message each")
    if arguments.attach is not None:
        async with contextlib.aclosing(attach(arguments.attach)) as cluster:
            return await run_drill(cluster, lines, began_s)
    _say(f"starting 1 nameserver and {_NODE_COUNT} brokers")
    async with local_cluster(scratch / "cluster", "--mode", "raft", "--nodes", str(_NODE_COUNT)) as cluster:
        return await run_drill(cluster, lines, began_s)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
