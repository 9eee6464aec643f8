"""The store beside RocketMQ's DefaultMessageStore, in one run, turn about: a table with ratios.

    python -m benchmarks.store_table [--rounds N] [--alone] [--directory DIR] [--only append,read]

Each round runs every question's `benchmarks/store_*.py` and the same in `java_store/StoreBench.java`, each in a process
of its own on a fresh directory; the table shows medians. Without Java 17 and Maven, or with --alone, ours stand alone.
Results go to benchmarks/out/store.json as well.
"""

import argparse
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
VERSION = os.environ.get("ROCKETMQ_VERSION", "5.3.3")
JAVA_RUNS = {
    "append": (100_000, 3),
    "read": (100_000, 3),
    "recovery": (400_000, 1),
    "flush": (16_000, 2),
    "topics": (100_000, 1),
}
"""Records and rounds of each question in Java; it runs one round more, for its compiler."""

_OPENS = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: whose figure, what it is called on either side, and what the project aims at."""

    label: str
    benchmark: str
    ours: str
    java: str | None
    aim: str = ""


ROWS = (
    Row(
        "append, batches of 32, MB per CPU second of the thread", "append", "thread_mb_per_s", "thread_mb_per_s", "600"
    ),
    Row("append and dispatch, MB/s by the clock", "append", "wall_mb_per_s", "wall_mb_per_s"),
    Row("read by queue, pulls of 32, MB/s", "read", "get_mb_per_s", "get_mb_per_s", "1000"),
    Row("the same, copied once", "read", "copied_mb_per_s", "copied_mb_per_s", "1000"),
    Row("recovery without a checkpoint, MB/s by the clock", "recovery", "mb_per_s", "mb_per_s", "1000"),
    Row("SYNC_FLUSH, messages/s", "flush", "messages_per_s", "messages_per_s"),
    Row("bare fdatasync times 32, over that", "flush", "over_bare", None, "at most 1.2"),
    Row("append to 1 topic, MB/s (Java: one message a call)", "topics", "topics_1_mb_per_s", "topics_1_mb_per_s"),
    Row("to 100 topics", "topics", "topics_100_mb_per_s", "topics_100_mb_per_s", "within 10 %"),
    Row("to 10,000 topics", "topics", "topics_10000_mb_per_s", "topics_10000_mb_per_s", "within 10 %"),
)

Samples = dict[tuple[str, str, str], list[float]]
"""By system, benchmark and figure: one value a round."""


def prepare_java() -> list[str] | None:
    """The command that runs StoreBench, compiled; None where Java or Maven lack."""
    if any(shutil.which(tool) is None for tool in ("java", "javac", "mvn")):
        return None
    spec = importlib.util.spec_from_file_location("peerlib", HERE / "peers" / "peerlib.py")
    assert spec is not None and spec.loader is not None
    peerlib = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peerlib)
    names = ("namesrv", "broker", "controller", "tools", "client")
    artifacts = [f"org.apache.rocketmq:rocketmq-{name}:{VERSION}" for name in names]
    jars = peerlib.maven_jars("rocketmq", VERSION, artifacts)
    classes = OUT / "java_store"
    classes.mkdir(parents=True, exist_ok=True)
    source = HERE / "java_store" / "StoreBench.java"
    subprocess.run(["javac", "-cp", f"{jars}/*", "-d", classes, source], check=True)
    memory = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=2g")
    return ["java", *memory, *_OPENS, "-cp", f"{jars}/*:{classes}", "StoreBench"]


def run_ours(benchmark: str, scratch: Path) -> dict[str, float]:
    return last_line([sys.executable, "-m", f"benchmarks.store_{benchmark}", "--directory", str(scratch)])


def run_java(command: Sequence[str], benchmark: str, scratch: Path) -> dict[str, float]:
    records, rounds = JAVA_RUNS[benchmark]
    with tempfile.TemporaryDirectory(dir=scratch, prefix="java-bench-") as home:
        places = [command[0], f"-Duser.home={home}", *command[1:], benchmark, f"{home}/store"]
        return last_line([*places, str(records), str(rounds)])


def last_line(argv: Sequence[str]) -> dict[str, float]:
    """Run to the end; the figures of the JSON line printed last."""
    done = subprocess.run(argv, capture_output=True, text=True, cwd=HERE.parent)
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines or not lines[-1].startswith("{"):
        raise SystemExit(f"{argv[0]} ... {' '.join(argv[-4:])} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return {key: value for key, value in json.loads(lines[-1]).items() if not isinstance(value, str)}


def measure(rounds: int, only: Sequence[str], java: Sequence[str] | None, scratch: Path) -> Samples:
    """Every question, turn about; who is first changes with the rounds."""
    samples: Samples = defaultdict(list)
    for number in range(rounds):
        for benchmark in only:
            systems = ["ledgermq", "java"] if java is not None else ["ledgermq"]
            for system in systems if number % 2 == 0 else reversed(systems):
                print(f"round {number + 1}: {benchmark}, {system}", file=sys.stderr)
                ours = system == "ledgermq" or java is None
                figures = run_ours(benchmark, scratch) if ours else run_java(java or (), benchmark, scratch)
                for name, value in figures.items():
                    samples[system, benchmark, name].append(value)
    return samples


def table(samples: Samples) -> str:
    """Markdown: ours, Java's, the ratio, the aim."""
    lines = ["| | LedgerMQ | Java store | ratio | aim |", "|---|---|---|---|---|"]
    for row in ROWS:
        ours = samples.get(("ledgermq", row.benchmark, row.ours))
        java = samples.get(("java", row.benchmark, row.java or ""))
        if ours:
            mine = statistics.median(ours)
            theirs = statistics.median(java) if java else None
            cells = (_number(mine), "–" if theirs is None else _number(theirs))
            ratio = "–" if theirs is None else f"{mine / theirs:.2f}"
            lines.append(f"| {row.label} | {cells[0]} | {cells[1]} | {ratio} | {row.aim} |")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="without the Java store")
    parser.add_argument("--only", default=",".join(JAVA_RUNS), help="questions, divided by commas")
    parser.add_argument("--directory", type=Path, default=OUT, help="where scratch stores are made")
    said = parser.parse_args()
    only = said.only.split(",")
    if unknown := set(only) - set(JAVA_RUNS):
        parser.error(f"no question {', '.join(sorted(unknown))}; there are {', '.join(JAVA_RUNS)}")
    OUT.mkdir(exist_ok=True)
    java = None if said.alone else prepare_java()
    samples = measure(said.rounds, only, java, said.directory)
    machine = {"python": platform.python_version(), "cpus": os.cpu_count(), "load": os.getloadavg()[0]}
    results = [{"system": s, "benchmark": b, "figure": f, "values": v} for (s, b, f), v in samples.items()]
    (OUT / "store.json").write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")
    print(table(samples))


if __name__ == "__main__":
    main()
