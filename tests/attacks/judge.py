"""Whether an attack cost no more than it may. Times are shown and not judged: the machine has others."""

from tests.attacks.attacks import MIB, Attack
from tests.attacks.scene import Toll
from tests.fuzz.cost import slowness


def faults(attack: Attack, toll: Toll) -> list[str]:
    """What was too much, each as a sentence."""
    found = list(toll.complaints)
    if toll.seen.errors:
        found.append(f"the innocent had errors: {toll.seen.errors}")
    if toll.elections:
        found.append(f"{toll.elections} elections")
    slower = slowness()
    for what, had, most in (
        ("the leader's CPU seconds", toll.leader_cpu_s, attack.leader_cpu_s * slower),
        ("the leader's MiB", toll.leader_grew_bytes / MIB, attack.leader_mib),
        ("the nameserver's CPU seconds", toll.nameserver_cpu_s, attack.nameserver_cpu_s * slower),
        ("the nameserver's MiB", toll.nameserver_grew_bytes / MIB, attack.nameserver_mib),
    ):
        if had > most:
            found.append(f"{what}: {had:.1f}, at most {most:g}")
    return found
