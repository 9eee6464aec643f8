"""`ledgermq chaos suite`: the drills of the catalogue in the modes that allow them, and one table of their costs.

Each round is `ledgermq drill NAME --mode MODE` on a cluster of its own; as many as the user wants run at the same time.
In modes without failover (sync, async and standalone), the time without acknowledgements includes the seconds until a
killed master is started again.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from chaos.compose import undisturbed
from chaos.drills.catalogue import CATALOGUE
from chaos.drills.verdict import DrillVerdict
from cli.fabric import interrupt_on_sigterm
from node.errors import UsageError

_COLUMNS = (
    "drill", "mode", "rounds", "passed", "failed", "acknowledged", "lost", "stored twice", "RTO producers",
    "RTO consumers",
)  # fmt: skip
_ROUND_LIMIT_S = 900.0
_END_LIMIT_S = 150.0  # a drill ends itself earlier, whatever hangs

Figures = Mapping[str, Any]
Round = tuple[str, str]
"""Name of the drill, and the mode."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Runs each of `pairs` `rounds` times, `jobs` drills at once, on clusters of one fabric.

    Reports and figures go to `out`; `quiet_s` are the seconds of steady traffic before and after each fault.
    """

    pairs: Sequence[Round]
    rounds: int
    rate: float
    quiet_s: float
    out: Path
    fabric: str
    jobs: int


def pairs_of(drills: Sequence[str], modes: Sequence[str], fabric: str = "processes") -> list[Round]:
    """Return each drill with each mode that allows it on the fabric.

    Raises:
        UsageError: there is no such drill, or nothing is left.
    """
    for name in drills:
        if name not in CATALOGUE:
            raise UsageError(f"there is no drill {name!r}; there are {', '.join(CATALOGUE)}")
    pairs = [(name, mode) for mode in modes for name in drills if mode in CATALOGUE[name].modes_on(fabric)]
    if not pairs:
        raise UsageError(f"none of the modes {', '.join(modes)} allows {', '.join(drills)}")
    return pairs


def run(suite: Suite) -> int:
    """Run all rounds, print the table, return the exit code: 1 if any drill failed, else 2 if any is unknown, else 0.

    Raises:
        OSError: the folder for reports cannot be made.
    """
    suite.out.mkdir(parents=True, exist_ok=True)
    results = asyncio.run(_run_all(suite))
    print(table(results))
    verdicts = [figures["verdict"] if figures else "unknown" for found in results.values() for figures in found]
    worst = next(
        (one for one in (DrillVerdict.FAIL, DrillVerdict.UNKNOWN) if one.name.lower() in verdicts), DrillVerdict.PASS
    )
    return worst.value


def table(results: Mapping[Round, Sequence[Figures | None]]) -> str:
    """Return Markdown, one row for each drill and mode; RTOs in ms as median and longest of the rounds."""
    rows = ["| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
    for (drill, mode), rounds in results.items():
        figures = [one for one in rounds if one is not None]
        verdicts = [one["verdict"] for one in figures]
        cells = [drill, mode, str(len(rounds)), str(verdicts.count("pass")), str(verdicts.count("fail"))]
        cells += [f"{sum(one[name] for one in figures):,}" for name in ("acked", "lost", "stored_twice")]
        cells += [_times([one[name] for one in figures]) for name in ("rto_ms", "consumer_rto_ms")]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _times(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.0f}, at most {max(values):,.0f}" if values else ""


async def _run_all(suite: Suite) -> dict[Round, list[Figures | None]]:
    """Run all rounds. After Ctrl-C or SIGTERM the running drills are ended in order, and further signals ignored."""
    interrupt_on_sigterm()
    results: dict[Round, list[Figures | None]] = {pair: [] for pair in suite.pairs}
    total = suite.rounds * len(suite.pairs)
    turns = asyncio.Semaphore(suite.jobs)

    async def run_one(pair: Round, number: int) -> None:
        async with turns:
            began_s = time.monotonic()
            figures = await _drill(suite, pair, suite.out / "-".join((*pair, str(number))))
        results[pair].append(figures)
        verdict = figures["verdict"] if figures else "no figures"
        name, mode = pair
        took_s = time.monotonic() - began_s
        count = sum(map(len, results.values()))
        print(f"{count:3} of {total}  {name}, mode {mode}: {verdict}, {took_s:.0f} s", file=sys.stderr, flush=True)

    numbers = range(1, suite.rounds + 1)
    rounds = [asyncio.ensure_future(run_one(pair, number)) for number in numbers for pair in suite.pairs]
    try:
        await asyncio.wait(rounds)
    finally:
        with undisturbed():
            for one in rounds:
                if not one.cancelling():  # a second cancellation would interrupt the orderly end of its drill
                    one.cancel()
            await asyncio.wait(rounds)
    for one in rounds:
        one.result()
    return results


async def _drill(suite: Suite, pair: Round, path: Path) -> Figures | None:
    """Run one round, and print the drill's output unless it passed; return None if it gave no figures."""
    name, mode = pair
    json_path = path.with_suffix(".json")
    json_path.unlink(missing_ok=True)
    words = [sys.executable, "-P", "-m", "ledgermq_server", "drill", name, "--mode", mode, "--fabric", suite.fabric]
    words += ["--rate", f"{suite.rate:g}", "--quiet", f"{suite.quiet_s:g}"]
    words += ["--json", str(json_path), "--report", str(path.with_suffix(".html"))]
    with (
        tempfile.TemporaryDirectory(prefix="ledgermq-suite-") as scratch,  # removes a killed drill's folder, too
        tempfile.TemporaryFile() as output,
    ):
        code = await _ended(words, output, os.environ | {"TMPDIR": scratch})
        output.seek(0)
        told = output.read().decode(errors="replace")
    if code is None:
        print(f"{name}, mode {mode}: not ended within {_ROUND_LIMIT_S:g} s\n{told}", flush=True)
        return None
    text = json_path.read_text() if json_path.exists() else ""
    if not text:
        print(f"{name}, mode {mode}: ended with {code} and gave no figures\n{told}", flush=True)
        return None
    figures: Figures = json.loads(text)
    if figures["verdict"] != "pass":
        print(told, flush=True)
    return figures


async def _ended(words: Sequence[str], output: IO[bytes], environment: Mapping[str, str]) -> int | None:
    """Return the exit code of a drill, None if it took too long; it is ended in order then, or if this is cancelled.

    The drill has a session of its own, so that Ctrl-C in the terminal reaches it only once, through this process.
    """
    start = asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    started = asyncio.ensure_future(start)
    try:
        drill = await asyncio.shield(started)  # a cancelled start would kill the process
        return await asyncio.wait_for(drill.wait(), _ROUND_LIMIT_S)
    except TimeoutError:
        return None
    finally:
        drill = await started
        if drill.returncode is None:
            drill.terminate()  # like Ctrl-C: the drill undoes its fault and removes its cluster
            try:
                await asyncio.wait_for(drill.wait(), _END_LIMIT_S)
            except TimeoutError:
                drill.kill()  # its processes end with it
                await drill.wait()
