"""`python -m tests.fuzz [--level L] [--seed N] [--case K] [--minutes M] [--cases C] [--conf KEY=VALUE]`

Without `--seed` a fresh one is drawn and printed. `--case` runs that case alone; the whole run with the same seed draws
the same cases in the same order. Exit codes: 0 nothing found, 1 something was, with the words that run it again.
"""

import argparse
import contextlib
import secrets
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz import decoders, peers
from tests.fuzz.campaign import Campaign
from tests.fuzz.cases import Failure
from tests.fuzz.groups import GroupCampaign
from tests.fuzz.long import CONF as LONG_CONF
from tests.fuzz.long import LongCampaign
from tests.fuzz.nodes import Group, NodePair, TlsPair
from tests.fuzz.rights import RightsCampaign, RightsPair
from tests.fuzz.tls import TlsCampaign

LEVELS = ("decoders", "nodes", "tls", "peers", "group", "rights", "long")
_FOREVER_S = 1e9


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__, allow_abbrev=False)
    parser.add_argument("--level", choices=LEVELS, help="one of them only")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--case", type=int, help="this case alone")
    parser.add_argument("--minutes", type=float, help="of all levels together (default 1 without --cases)")
    parser.add_argument("--cases", type=int, help="at most, of each level")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="setting of the broker")
    options = parser.parse_args(arguments)
    levels = [options.level] if options.level else LEVELS
    minutes = options.minutes if options.minutes else 1.0
    seconds = _FOREVER_S if options.cases and not options.minutes else minutes * 60 / len(levels)
    failures: list[Failure] = []
    for level in levels:
        failures += _run(level, options, seconds)
    print(f"seed {options.seed}: {len(failures)} failures")
    for failure in failures:
        print(failure)
    return 1 if failures else 0


def _run(level: str, options: argparse.Namespace, seconds: float) -> list[Failure]:
    if level == "decoders":
        if options.case is not None:
            failure = decoders.run_case(options.seed, options.case)
            return [failure] if failure else []
        count, failures = decoders.run(options.seed, options.cases, seconds)
    elif level == "peers":
        with tempfile.TemporaryDirectory() as folder:
            count, failures = peers.run(Path(folder), options.seed, options.cases, seconds, options.case)
    else:
        conf = dict(item.split("=", 1) for item in options.conf)
        with tempfile.TemporaryDirectory() as folder, _campaign(level, Path(folder), conf, options.seed) as campaign:
            if options.case is not None:
                return campaign.run_alone(options.case)
            count, failures = campaign.run(options.cases, seconds)
            print(f"{level}: {campaign.answers} answers")
    print(f"{level}: {count} cases")
    return failures


@contextlib.contextmanager
def _campaign(level: str, folder: Path, conf: dict[str, str], seed: int) -> Iterator[Campaign]:
    if level == "tls":
        with TlsPair(folder, conf) as pair:
            yield TlsCampaign(pair, seed)
    elif level == "group":
        with Group(folder, conf) as group:
            yield GroupCampaign(group, seed)
    elif level == "rights":
        with RightsPair(folder, conf) as pair:
            yield RightsCampaign(pair, seed)
    elif level == "long":
        with RightsPair(folder, LONG_CONF | conf) as pair:
            yield LongCampaign(pair, seed)
    else:
        with NodePair(folder, conf) as nodes:
            yield Campaign(nodes, seed)


if __name__ == "__main__":
    sys.exit(main())
