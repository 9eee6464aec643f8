"""Runs attacks and prints the table of docs/security.md: `python -m tests.attacks [NAME...]`; all without a name."""

import sys
import tempfile
from pathlib import Path

from tests.attacks.attacks import ATTACKS, MIB
from tests.attacks.judge import faults
from tests.attacks.scene import scene


def main(names: list[str]) -> int:
    print("| attack | bound | p50 | p99 | errors | elections | leader CPU | leader memory | nameserver CPU, memory |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    failed = []
    for name in names or ATTACKS:
        attack = ATTACKS[name]
        with tempfile.TemporaryDirectory() as folder, scene(Path(folder), attack.descriptors, attack.topics) as made:
            toll = made.suffer(attack.run)
        seen = toll.seen
        print(
            f"| {attack.what} | {attack.bound} | {seen.p50_ms:.1f} ms | {seen.p99_ms:.0f} ms |"
            f" {sum(seen.errors.values())} of {seen.sent} | {toll.elections} | {toll.leader_cpu_s:.1f} s |"
            f" +{toll.leader_grew_bytes // MIB} MiB | {toll.nameserver_cpu_s:.1f} s,"
            f" +{toll.nameserver_grew_bytes // MIB} MiB |",
            flush=True,
        )
        failed += [f"{name}: {fault}" for fault in faults(attack, toll)]
    print("\n".join(failed), file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
