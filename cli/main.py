"""`ledgermq`: parses a command and runs it. Every error reaches the user as one line and an exit code.

Only the requested command is imported, and its modules only when it runs, since each node of a cluster starts this way.
"""

import argparse
import difflib
import errno
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from cli.lifeline import die_with_parent
from cli.output import drop
from node.errors import CommandError

_MODULES: Final = {
    "cluster": "cli.cluster.command",
    "acl": "cli.acl.command",
    "demo": "cli.demo.command",
    "drill": "cli.drill",
    "chaos": "cli.chaos",
    "health": "cli.tools",
    "log": "cli.tools",
    "config": "cli.tools",
    "store": "doctor.command",
    "pipeline": "cli.pipeline",
}
"""The module whose `add_parser` adds a command that runs no node, in the order of the help text."""

_EXAMPLES = """examples:
  ledgermq demo                               the demonstration, with a leader killed meanwhile
  ledgermq cluster up --mode raft --nodes 3   a cluster on this machine
  ledgermq broker -c broker.conf              one node
  ledgermq store check DIR                    is this store directory whole? RocketMQ's, too
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code. It raises only because of bugs."""
    words = sys.argv[1:] if words is None else words
    arguments = build_parser(_command_in(words)).parse_args(words)
    try:
        if arguments.die_with_parent:
            die_with_parent(arguments.die_with_parent)
        code: int = arguments.run(arguments)
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # the command is done, though nobody reads the rest of its output
            drop(sys.stdout)
        return code
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        drop(sys.stdout)
        return 1
    except OSError as error:
        if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # for example a folder that cannot be written, or a full disk below the standard output
        print(f"error: {error.filename or 'what was to be written'}: {error.strerror}", file=sys.stderr)
        if error.filename is None:
            drop(sys.stdout)
        return 1


class _Parser(argparse.ArgumentParser):
    """A parser whose errors name the nearest known option; so do the parsers of its commands."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the known arguments, and leave those after a command to that command's parser."""
        known = [option for option in self._option_string_actions if option.startswith("--")]
        for word in sys.argv[1:] if args is None else args:
            if word == "--" or (self._subparsers is not None and not word.startswith("-")):
                break
            name = word.partition("=")[0]
            if word.startswith("--") and " " not in word and not any(option.startswith(name) for option in known):
                near = difflib.get_close_matches(name, known, 1, 0.5)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
                self.error(f"unknown option {name}; {hint}")
        return super().parse_known_args(args, namespace)


class _PrintVersion(argparse.Action):
    """Prints the version and exits; it is looked up only then, to keep the starts of nodes fast."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib import metadata

        print(f"ledgermq {metadata.version('ledgermq')}")
        parser.exit()


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of this command, or of all commands when there is none of that name."""
    parser = _Parser(
        prog="ledgermq",
        description="A replicated message log that speaks RocketMQ's protocol.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_PrintVersion)
    parser.add_argument("--die-with-parent", type=int, metavar="PID", help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, run in _NODES.items():
        node = commands.add_parser(name, help=f"run one {name} in the foreground")
        node.add_argument("-c", dest="conf", metavar="FILE", help="configuration file with RocketMQ's property names")
        node.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="a property that replaces its value in FILE"
        )
        node.set_defaults(run=run)
    modules = [] if command in _NODES else [_MODULES[command]] if command in _MODULES else _MODULES.values()
    for module in dict.fromkeys(modules):
        import_module(module).add_parser(commands)
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


_NODES: Final = {"nameserver": _nameserver, "broker": _broker, "controller": _controller}


def _command_in(words: Sequence[str]) -> str | None:
    """Return the first word that is neither an option nor the number that `--die-with-parent` takes."""
    return next((word for word in words if not word.startswith("-") and not word.isdecimal()), None)
