"""How long is a cluster without an acknowledgement when its leader dies? Many kills, one line of JSON.

    python -m benchmarks.failover --kills 30 [--fault kill|pause] [--rate 1000]

Each round sends at a fixed rate (open loop, the load generator of benchmarks/peers), breaks the leader, and afterwards
reads everything back; the broken node is mended before the next round.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.node_process import LEDGERMQ, cluster

HERE = Path(__file__).resolve().parent
# what is under way to a paused leader is given up after seconds: acknowledgements must still flow then
SECONDS = {"kill": 6.0, "pause": 12.0}
MEND = {"kill": ("start", "dead"), "pause": ("resume", "paused")}
REST_S = 2.0


def build_generator(folder: Path) -> Path:
    """The load generator's binary."""
    out = folder / "load"
    subprocess.run(["go", "build", "-o", str(out), "."], cwd=HERE / "peers" / "load", check=True)
    return out


def run_round(load: Path, namesrv: str, directory: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One fault under load; what the generator found."""
    fault = " ".join([*LEDGERMQ, "cluster", arguments.fault, "leader", "--dir", directory])
    words = [str(load), "failover", "--namesrv", namesrv, "--rate", str(arguments.rate), "--settle", "30"]
    words += ["--seconds", str(arguments.seconds), "--fault", fault, "--fault-at", str(arguments.seconds / 3)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"failover: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    subprocess.run(
        [*LEDGERMQ, "cluster", *MEND[arguments.fault], "--dir", directory], check=True, stdout=subprocess.DEVNULL
    )
    time.sleep(REST_S)  # the node catches up before it may be the next one's only follower
    return found


def summary(rounds: list[dict[str, Any]], arguments: argparse.Namespace) -> dict[str, Any]:
    """The line that is printed."""
    gaps = sorted(float(found["longest_gap_ms"]) for found in rounds)
    return {
        "fault": arguments.fault,
        "rounds": len(rounds),
        "rate": arguments.rate,
        "conf": arguments.conf,
        "gap_ms": {
            "p50": statistics.median(gaps),
            "p99": gaps[max(0, -(-len(gaps) * 99 // 100) - 1)],
            "min": gaps[0],
            "max": gaps[-1],
        },
        "acked": sum(found["acked"] for found in rounds),
        "lost_acked": sum(found["lost_acked"] for found in rounds),
        "duplicates": sum(found["duplicates"] for found in rounds),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "load_average": os.getloadavg()},
    }


def main() -> int:
    """Run the rounds; 1 if anything acknowledged was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, metavar="N", help="rounds (%(default)s)")
    parser.add_argument("--fault", choices=sorted(MEND), default="kill")
    parser.add_argument("--rate", type=int, default=1000, help="messages a second (%(default)s)")
    parser.add_argument("--seconds", type=float, help="of load in each round (6, with pauses 12)")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    arguments.seconds = arguments.seconds or SECONDS[arguments.fault]
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch, cluster("raft", *arguments.conf) as found:
        load = build_generator(Path(scratch))
        for number in range(arguments.kills):
            rounds.append(run_round(load, found["namesrv"], found["dir"], arguments))
            gap = rounds[-1]["longest_gap_ms"]
            print(f"round {number + 1}: {gap:.0f} ms, lost {rounds[-1]['lost_acked']}", file=sys.stderr, flush=True)
    result = summary(rounds, arguments)
    print(json.dumps(result))
    return 1 if result["lost_acked"] else 0


if __name__ == "__main__":
    sys.exit(main())
