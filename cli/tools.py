"""Small commands: `ledgermq health URL`, `ledgermq log digest DIR`, `ledgermq config explain KEY`."""

import argparse
import dataclasses
import json
from pathlib import Path


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the three commands to the parser."""
    health = commands.add_parser("health", help="ask a node's health port; exit 1 when the node is not healthy")
    health.add_argument("url", metavar="URL", help="http://HOST:PORT/readyz or /livez")
    health.set_defaults(run=_health)
    _add_digest(commands)
    config = commands.add_parser("config", help="what configuration keys mean")
    explain = config.add_subparsers(metavar="VERB", required=True).add_parser(
        "explain", help="everything about one key"
    )
    explain.add_argument("key", metavar="KEY")
    explain.set_defaults(run=_explain)


def _add_digest(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    log = commands.add_parser("log", help="inspect log files").add_subparsers(metavar="VERB", required=True)
    digest = log.add_parser("digest", help="SHA-256 of a folder's log files up to an offset, as JSON")
    digest.add_argument("directory", metavar="DIR", type=Path, help=".../dledger-n0/data or .../commitlog")
    digest.add_argument("--end", type=int, metavar="OFFSET", help="physical offset after the last byte")
    digest.add_argument("--node", metavar="URL", help="end at the confirm offset of the node with this health port")
    digest.set_defaults(run=_digest)


def _health(arguments: argparse.Namespace) -> int:
    from cli.health import check_health

    print(check_health(arguments.url))
    return 0


def _digest(arguments: argparse.Namespace) -> int:
    from cli.digest import digest_directory

    digest = digest_directory(arguments.directory, end=arguments.end, health_url=arguments.node)
    print(json.dumps(dataclasses.asdict(digest)))
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    from node.explain import explain

    print(explain(arguments.key))
    return 0
