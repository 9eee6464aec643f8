"""`ledgermq cluster up|status|kill|stop|start|pause|resume|wipe|transfer|cut|delay|heal`: arguments and output."""

import argparse
import asyncio
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli.cluster.control import ask
from telemetry.collector import without_collections

_VERBS = {
    "kill": "SIGKILL a node",
    "stop": "SIGTERM a node",
    "start": "start a node that is down (or: dead)",
    "pause": "SIGSTOP a node",
    "resume": "SIGCONT a node (or: paused)",
    "wipe": "delete the data of a node that is down",
    "transfer": "hand leadership to a node",
}
_FAULT_VERBS = {
    "cut": ("drop what one broker sends to another", "LINK..."),
    "delay": ("hold what one broker sends to another for so long", "MS LINK..."),
    "fill": ("leave no room on a broker's disk", "NODE"),
    "fail-disk": ("have a broker's disk answer with errors", "NODE"),
    "replace-disk": ("end a broker, and give it an empty disk", "NODE"),
    "cut-power": ("end brokers at one moment, without what they have not synced", "NODE..."),
    "slow": ("have each sync of a broker take so much longer", "MS NODE"),
    "clock": ("have a broker's wall clock so far ahead, or behind where S is negative", "S NODE"),
    "corrupt": ("invert bytes in a full file of a broker's log", "NODE"),
    "heal": ("undo what was done to links and to brokers' disks and clocks (without a word: all)", "LINK|NODE..."),
}
_NODE_HELP = (
    "n0, n1, ..., namesrv, namesrv1, c0, an address, leader, dead, paused, or a machine of --groups: m0, m1, ..."
)
_EXAMPLES = """examples:
  ledgermq cluster up --mode raft --nodes 3
  ledgermq cluster up --mode raft --groups 3
  ledgermq cluster up --mode sync --slaves 1
  ledgermq cluster up --mode controller --slaves 2
  ledgermq cluster kill leader
  ledgermq cluster start dead
"""


def default_directory() -> Path:
    """Return $XDG_STATE_HOME/ledgermq/cluster, or ./.ledgermq if that is not set."""
    state_home = os.environ.get("XDG_STATE_HOME")
    return Path(state_home) / "ledgermq" / "cluster" if state_home else Path(".ledgermq")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `cluster` with its verbs to the parser."""
    cluster = subparsers.add_parser(
        "cluster",
        help="a cluster of processes on this machine",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = cluster.add_subparsers(dest="verb", metavar="VERB", required=True)
    _add_up(verbs)
    status = _add_verb(verbs, "status", "nodes, pids, states and roles", _status)
    status.add_argument("--addresses", action="store_true", help="only the brokers' addresses, one a line")
    _add_verb(
        verbs,
        "digest",
        "hash every broker's log up to the confirm offset; exit 1 when those of one broker name differ",
        _digest,
    )
    for name, (text, words) in _FAULT_VERBS.items():
        _add_verb(verbs, name, text, _break).add_argument(
            "words",
            metavar=words,
            nargs="*" if name == "heal" else "+",
            help="NODE: n0, n1, ...; LINK: 'n0>n1', what n0 sends to n1; see --links, --disks and --shim of `up`",
        )
    for name, text in _VERBS.items():
        _add_verb(verbs, name, text, _act).add_argument("node", metavar="NODE", help=_NODE_HELP)


def _add_verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text)
    parser.add_argument("--dir", type=Path, default=default_directory(), help="the cluster's folder (%(default)s)")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.set_defaults(run=run)
    return parser


def _add_up(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    up = _add_verb(verbs, "up", "start a cluster; it runs until Ctrl-C or SIGTERM", _up)
    up.add_argument("--mode", choices=["raft", "standalone", "async", "sync", "controller"], default="raft")
    up.add_argument("--nodes", type=int, help="brokers (raft 3, standalone 1)")
    up.add_argument(
        "--groups", type=int, default=1, help="Raft groups over the same machines, one broker name each (1)"
    )
    up.add_argument("--nameservers", type=int, default=1, help="1 to 3 (1)")
    up.add_argument("--slaves", type=int, help="slaves of the master, in modes async and sync (1) and controller (2)")
    up.add_argument(
        "--base-port", type=int, metavar="P", help="first port (default: the last one used, or a free block)"
    )
    up.add_argument("--fresh", action="store_true", help="delete the data of an earlier cluster in the folder")
    up.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a property for every broker")
    up.add_argument(
        "--links",
        choices=["always", "auto", "never"],
        nargs="?",
        const="always",
        default="never",
        help="brokers dial each other through Toxiproxy: see cut, delay, heal (auto: where it is installed)",
    )
    up.add_argument(
        "--fabric",
        choices=["processes", "namespaces"],
        default="processes",
        help="namespaces: each node has a network of its own, which iptables cuts (root)",
    )
    up.add_argument(
        "--disks",
        action="store_true",
        help="each broker stores on a small file system of its own: see fill, fail-disk, cut-power (root)",
    )
    up.add_argument(
        "--shim", action="store_true", help="a library between brokers and libc: see slow, clock (a C compiler)"
    )
    up.add_argument(
        "--wait", type=float, default=60.0, metavar="S", help="seconds to wait until writable (%(default)s)"
    )


def _status(arguments: argparse.Namespace) -> int:
    status = ask(arguments.dir, "status")
    if arguments.json:
        print(json.dumps(status))
    elif arguments.addresses:
        print("\n".join(node["address"] for node in status["nodes"]))
    else:
        _print_rows([*status["nameservers"], *status.get("controllers", ()), *status["nodes"]])
    return 0


def _act(arguments: argparse.Namespace) -> int:
    answer = ask(arguments.dir, arguments.verb, arguments.node)
    if arguments.json:
        print(json.dumps(answer))
    else:
        _print_rows(answer["nodes"])
    return 0


def _break(arguments: argparse.Namespace) -> int:
    answer = ask(arguments.dir, arguments.verb, *arguments.words)
    print(json.dumps(answer) if arguments.json else answer["proof"])
    return 0


def _digest(arguments: argparse.Namespace) -> int:
    from chaos.fabric.contract import are_identical
    from cli.digest import digest_brokers
    from cli.fabric import enter

    digests = digest_brokers(enter(ask(arguments.dir, "status"))["nodes"])
    if arguments.json:
        print(json.dumps({"nodes": [dataclasses.asdict(digest) for digest in digests]}))
    else:
        for digest in digests:
            print(f"{digest.name:8} [{digest.start}, {digest.end}) {digest.sha256}")
    return 0 if are_identical(digests) else 1


def _print_rows(rows: list[dict[str, Any]]) -> None:
    print(f"{'NAME':8} {'ADDRESS':21} {'PID':>8} {'STATE':7} ROLE")
    for row in rows:
        print(f"{row['name']:8} {row['address']:21} {row['pid'] or '-':>8} {row['state']:7} {row['role']}")


def _up(arguments: argparse.Namespace) -> int:
    # imported here: the other verbs do not need it and must be fast
    with without_collections():
        from cli.cluster.template import fork_template
        from cli.cluster.up import Shape, run_cluster
        from cli.main import main

    if arguments.shim:
        from chaos.fabric.shim import find_compiler

        find_compiler()  # before the folder is created
    if arguments.disks:
        from chaos.fabric.disk import own_mounts

        own_mounts()  # before threads and the template
    if arguments.fabric == "namespaces":
        from chaos.fabric.namespaces import own_network

        own_network()
    template = fork_template(main)
    if isinstance(template, int):
        return template  # this process is a node that has ended
    shape = Shape(
        mode=arguments.mode,
        node_count=arguments.nodes,
        slave_count=arguments.slaves,
        directory=arguments.dir.absolute(),
        base_port=arguments.base_port,
        settings=arguments.conf,
        fresh=arguments.fresh,
        links=arguments.links,
        groups=arguments.groups,
        nameservers=arguments.nameservers,
        has_disks=arguments.disks,
        has_shim=arguments.shim,
        has_namespaces=arguments.fabric == "namespaces",
    )
    try:
        return asyncio.run(run_cluster(shape, arguments.wait, template))
    finally:
        template.close()
