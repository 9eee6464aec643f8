"""The kinds of traffic of drills: how messages are sent, and who reads them."""

from dataclasses import dataclass
from random import Random

_KEYS = 64
_DELAYS_S = (1.0, 2.0, 3.0, 5.0)


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of traffic.

    Attributes:
        summary: one line for people.
        lives_s: for each member of the consumer group, the seconds after which another member replaces it.
        settings: properties of the brokers, `KEY=VALUE`.
        progress_s: seconds without a delivery after which the rest is not waited for.
    """

    name: str
    summary: str
    lives_s: tuple[float, ...] = (float("inf"),)
    settings: tuple[str, ...] = ()
    progress_s: float = 20.0


_EVER = float("inf")
STEADY = Workload("steady", "plain messages, and one consumer")
WORKLOADS = {
    one.name: one
    for one in (
        STEADY,
        Workload("ordered", f"{_KEYS} keys, each in order, and two consumers that lock queues", (_EVER, _EVER)),
        Workload(
            "transactional", "transactions: committed, rolled back, or left to the check", progress_s=75.0,
            settings=("transactionCheckInterval=1000", "transactionTimeOut=1000"),
        ),
        Workload("delayed", "messages that are due in 1 to 5 s", progress_s=30.0),
        Workload("groups", "plain messages, and three consumers that come and go", (5.0, 7.0, 9.0), progress_s=40.0),
        Workload("pop", "plain messages, and two POP consumers that acknowledge each", (_EVER, _EVER), progress_s=75.0),
    )
}  # fmt: skip


def drawn(seed: int) -> Workload:
    """Return the workload of a campaign's seed, drawn from a stream of its own."""
    return Random(f"workload {seed}").choice(list(WORKLOADS.values()))


def key_of(number: int) -> str:
    """Return the order key of a message of `ordered`."""
    return f"key-{number % _KEYS}"


def delay_of(number: int) -> float:
    """Return the seconds after which a message of `delayed` is due."""
    return _DELAYS_S[number % len(_DELAYS_S)]


def is_committed(number: int) -> bool:
    """Return whether a transaction of `transactional` is committed; others are rolled back."""
    return number % 8 not in (5, 7)


def is_left_to_check(number: int) -> bool:
    """Return whether a transaction's producer decides only when the broker asks."""
    return number % 8 in (6, 7)
