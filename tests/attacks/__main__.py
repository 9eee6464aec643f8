"""Runs attacks and prints the table of docs/security.md: `python -m tests.attacks [NAME...]`; all without a name.

The table is also in build/attacks.md, for the page. What went wrong, and times above the goal, are told behind it.
"""

import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.attacks.attacks import ATTACKS, MIB, Attack
from tests.attacks.judge import faults
from tests.attacks.scene import Toll, scene

_TABLE: Final = Path("build/attacks.md")
_GOAL_MS: Final = 250.0
_HEAD: Final = """\
| name | attack | bound | p50 | p99 | errors | elections | leader CPU | leader memory | nameserver CPU, memory |
|---|---|---|---|---|---|---|---|---|---|"""


def main(names: list[str]) -> int:
    if unknown := set(names) - set(ATTACKS):
        print(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(ATTACKS)}", file=sys.stderr)
        return 2
    rows, failed, slow = [_HEAD], [], []
    print(_HEAD, flush=True)
    _TABLE.parent.mkdir(exist_ok=True)
    for name in names or ATTACKS:
        attack = ATTACKS[name]
        with tempfile.TemporaryDirectory() as folder, scene(Path(folder), attack.descriptors, attack.topics) as made:
            toll = made.suffer(attack.run)
        rows.append(_row(name, attack, toll))
        print(rows[-1], flush=True)
        _TABLE.write_text("\n".join(rows) + "\n")
        failed += [f"{name}: {fault}" for fault in faults(attack, toll)]
        if toll.seen.p99_ms > _GOAL_MS:
            slow.append(f"{name}: the p99 of {toll.seen.p99_ms:.0f} ms is above the goal of {_GOAL_MS:g} ms")
    print("\n".join(failed + slow), file=sys.stderr)
    return bool(failed)


def _row(name: str, attack: Attack, toll: Toll) -> str:
    seen = toll.seen
    return (
        f"| `{name}` | {attack.what} | {attack.bound} | {seen.p50_ms:.1f} ms | {seen.p99_ms:.0f} ms |"
        f" {sum(seen.errors.values())} of {seen.sent} | {toll.elections} | {toll.leader_cpu_s:.1f} s |"
        f" +{toll.leader_grew_bytes // MIB} MiB | {toll.nameserver_cpu_s:.1f} s,"
        f" +{toll.nameserver_grew_bytes // MIB} MiB |"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
