"""What is drawn from a seed before the run: the rules of the group, its network, and how often each fault occurs."""

from dataclasses import dataclass
from random import Random

from chaos.sim.network import Conditions
from ha.core.copies import CopyRules

KINDS = (
    "kill_master", "kill_slave", "die_soon", "power_cut", "pause", "isolate", "cut", "cut_one_way", "reset",
    "slow_link", "slow_disk", "stalled_disk", "promote", "promote_joined", "promote_apart", "wipe", "trim", "heal",
)  # fmt: skip
"""The faults; each but `heal` and `promote` is switched off in a third of the runs."""


@dataclass(frozen=True, slots=True)
class AppointedPlan:
    """The parameters of a group and of its simulated disks and network.

    Attributes:
        names: of the nodes; the first one is the first master.
        rules: which copies count, and how many an acknowledgement waits for.
        limit_s: seconds for which a batch waits for copies.
        syncs: SYNC_FLUSH on all nodes.
        kinds: the faults of this run.
    """

    seed: int
    names: tuple[str, ...]
    rules: CopyRules
    limit_s: float
    syncs: bool
    heartbeat_s: float
    batch_bytes: int
    window_bytes: int
    flush_us: int
    clock_drift: float
    conditions: Conditions
    kinds: tuple[str, ...]

    @property
    def survives_power_cuts(self) -> bool:
        """Whether an acknowledged batch is durable on the master and on every slave that counts."""
        return self.syncs and self.rules.counts_durable


def draw(seed: int) -> AppointedPlan:
    """Return the plan of a seed. One version of this file always draws the same plan."""
    rng = Random(f"appointed {seed}")
    slaves = rng.choice((1, 2, 2, 2))
    wanted = rng.choice((2, slaves + 1))
    is_adaptive = rng.random() < 0.25
    rules = CopyRules(
        wanted=wanted,
        least=rng.choice((1, 1, 2)) if is_adaptive or wanted == 2 else rng.choice((1, wanted)),
        is_adaptive=is_adaptive,
        counts_durable=rng.random() < 0.5,
        gap_max_bytes=rng.choice((2_000, 1 << 20)),
        catch_up_s=rng.choice((0.3, 1.0)),
    )
    return AppointedPlan(
        seed=seed,
        names=tuple(f"n{number}" for number in range(1 + slaves)),
        rules=rules,
        limit_s=rng.choice((0.1, 0.5)),
        syncs=rng.random() < 0.5,
        heartbeat_s=rng.choice((0.1, 0.3)),
        batch_bytes=rng.choice((300, 1_000, 10_000)),
        window_bytes=rng.choice((3_000, 20_000)),
        flush_us=rng.choice((200, 1_000, 8_000)),
        clock_drift=rng.choice((0.0, 0.04)),
        conditions=Conditions(double_rate=rng.choice((0.0, 0.0, 0.002))),
        kinds=(*(kind for kind in KINDS if kind == "promote" or rng.random() < 0.67), "heal", "heal"),
    )
