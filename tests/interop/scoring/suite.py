"""`tests/interop/run` on a cluster that is up, and what came of it."""

import asyncio
import dataclasses
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

from ledgermq.client.admin import Admin
from ledgermq.client.errors import LedgerMQError
from tests.interop.scoring.outcomes import Outcome, Results, read_results
from tests.limits import STRANGER_WAIT_S

PROJECT = Path(__file__).resolve().parents[3]
RUN = PROJECT / "tests" / "interop" / "run"

# What the suite asks of a broker, and RocketMQ's defaults leave off.
SETTINGS = {"enablePropertyFilter": "true", "recallMessageEnable": "true", "traceTopicEnable": "true"}
AGAIN_MAX = 20  # so many time-outs are no accident of a busy machine
_TIMED_OUT = re.compile(r"within [\d.]+ s\b|time-?d? ?-?out|SendRequestException: send request to", re.IGNORECASE)
_MEASURED = re.compile(r"(?:milliseconds|slow sends)\b[^:]*: expected -?\d+ to (\d+), got (\d+)")
USER, SECRET = "interop", "interop-secret"


def is_late(reason: str) -> bool:
    """Whether a case failed because it waited in vain or something took too long.

    A loss, wrong content or what came too early is never asked for twice. Java's client closes the connection on which
    a request timed out; what others send on it then fails to be sent.
    """
    measured = _MEASURED.search(reason)
    return _TIMED_OUT.search(reason) is not None or (measured is not None and int(measured[2]) > int(measured[1]))


class NotRunError(Exception):
    """A cluster did not come up, or the suite did not run to its end; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """Where the suite connects to, and the options that this cluster wants of it."""

    namesrv: str
    options: tuple[str, ...] = ()


def fault_options(nodes: str, kill: str, restart: str) -> tuple[str, ...]:
    """Options for a cluster whose nodes may be killed; `{address}` stands in the commands."""
    return ("--nodes-command", nodes, "--kill-command", kill, "--restart-command", restart)


def run_suite(target: Target, client: str, options: list[str], lines: TextIO = sys.stdout) -> Results:
    """Run it, its lines to `lines`, a real file; further options as `tests/interop/run` takes them.

    Raises:
        NotRunError: it did not finish, whatever its cases did.
    """
    with tempfile.TemporaryDirectory(prefix="ledgermq-scores.") as folder:
        file = Path(folder) / "results.json"
        words = [str(RUN), "--namesrv", target.namesrv, "--client", client, "--json", str(file), *target.options]
        lines.flush()
        status = subprocess.run([*words, *options], cwd=PROJECT, stdout=lines).returncode
        if status not in (0, 1) or not file.exists():
            raise NotRunError(f"the suite ended with status {status}")
        return read_results(file)


def run_fairly(target: Target, client: str, cases: str, options: list[str], lines: TextIO = sys.stdout) -> Results:
    """As `run_suite`, but a case that was late is run once more, alone, on the same cluster, and that counts.

    A busy machine is not the broker's fault; a case that passes only then carries the first reason. A run with
    `--repeat` is strict.

    Raises:
        NotRunError: as `run_suite`.
    """
    results = run_suite(target, client, ["--cases", cases, *options], lines)
    failed = [case for case, result in results.items() if result.outcome is Outcome.FAIL]
    late = [case for case in failed if is_late(results[case].text)]
    if late and len(failed) <= AGAIN_MAX and "--repeat" not in options:
        print(f"again, alone: {', '.join(late)}", file=lines, flush=True)
        second = run_suite(target, client, ["--cases", ",".join(late), "--jobs", "1"], lines)
        results |= {case: dataclasses.replace(result, first=results[case].text) for case, result in second.items()}
    return results


def await_brokers(namesrv: str, count: int) -> None:
    """Wait until so many broker names have a master that takes part.

    Raises:
        NotRunError: they have not registered in time.
    """
    deadline = time.monotonic() + STRANGER_WAIT_S
    while asyncio.run(_leaders(namesrv)) < count:
        if time.monotonic() > deadline:
            raise NotRunError(f"{count} brokers have not registered at {namesrv} in {STRANGER_WAIT_S:g} s")
        time.sleep(0.2)


async def _leaders(namesrv: str) -> int:
    try:
        async with Admin(namesrv) as admin:
            return len((await admin.cluster()).leaders())
    except LedgerMQError:
        return 0
