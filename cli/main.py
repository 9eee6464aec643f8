"""`ledgermq`: parses a command and runs it. Every error reaches the user as one line and an exit code.

Sub-commands import their modules when they run, so that `ledgermq cluster kill leader` starts fast.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from cli.acl.command import add_parser as add_acl
from cli.chaos import add_parser as add_chaos
from cli.cluster.command import add_parser as add_cluster
from cli.demo.command import add_parser as add_demo
from cli.drill import add_parser as add_drill
from cli.lifeline import die_with_parent
from cli.pipeline import add_parser as add_pipeline
from cli.tools import add_parsers as add_tools
from doctor.command import add_parser as add_store
from node.errors import CommandError

_EXAMPLES = """examples:
  ledgermq demo                               the demonstration, with a leader killed meanwhile
  ledgermq cluster up --mode raft --nodes 3   a cluster on this machine
  ledgermq broker -c broker.conf              one node
  ledgermq store check DIR                    is this store directory whole? RocketMQ's, too
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code. Raises only for bugs."""
    arguments = build_parser().parse_args(words)
    try:
        if arguments.die_with_parent:
            die_with_parent(arguments.die_with_parent)
        code: int = arguments.run(arguments)
        return code
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        # for example a folder that cannot be written
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1


class _PrintVersion(argparse.Action):
    """Prints the version and exits; looked up only then, since each node's start would pay for it."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib import metadata

        print(f"ledgermq {metadata.version('ledgermq')}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands and options."""
    parser = argparse.ArgumentParser(
        prog="ledgermq",
        description="A replicated message log that speaks RocketMQ's protocol.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_PrintVersion)
    parser.add_argument("--die-with-parent", type=int, metavar="PID", help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, run in (("nameserver", _nameserver), ("broker", _broker), ("controller", _controller)):
        node = commands.add_parser(name, help=f"run one {name} in the foreground")
        node.add_argument("-c", dest="conf", metavar="FILE", help="configuration file with RocketMQ's property names")
        node.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="a property that replaces its value in FILE"
        )
        node.set_defaults(run=run)
    add_cluster(commands)
    add_acl(commands)
    add_demo(commands)
    add_drill(commands)
    add_chaos(commands)
    add_tools(commands)
    add_store(commands)
    add_pipeline(commands)
    return parser


def _nameserver(arguments: argparse.Namespace) -> int:
    from node.run import run_nameserver

    return run_nameserver(arguments.conf, arguments.set)


def _broker(arguments: argparse.Namespace) -> int:
    from node.run import run_broker

    return run_broker(arguments.conf, arguments.set)


def _controller(arguments: argparse.Namespace) -> int:
    from node.run import run_controller

    return run_controller(arguments.conf, arguments.set)
