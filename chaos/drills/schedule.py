"""Schedules: which drills begin when. Read from a file, drawn from a seed, and written for reports.

[[faults]]
drill = "kill-leader"
at_s = 5.0        # seconds after acknowledgements come steadily
hold_s = 2.0      # how long the fault lasts; the drill's own length where this is not given
"""

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from chaos.drills.catalogue import CATALOGUE, Drill

_FAULTS_MAX: Final = 10_000
_SECONDS_MAX: Final = 7 * 86_400.0
_SHORTEST, _LONGEST = 0.5, 1.5


class ScheduleError(ValueError):
    """A text is not a schedule; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A drill whose fault lasts `hold_s` seconds, and which begins at `at_s`; None: after the drill before."""

    drill: Drill
    hold_s: float
    at_s: float | None = None


def draw(seed: int, among: Sequence[Drill]) -> Iterator[Planned]:
    """Yield drills without end; the same seed and drills give the same ones.

    Every drill comes once before any comes again, so that a short campaign is broad.
    """
    rng = Random(seed)
    while True:
        drills = list(among)
        rng.shuffle(drills)
        for drill in drills:
            share = rng.uniform(_SHORTEST, _LONGEST)
            # a stall longer than the drill's own may cause an election
            yield Planned(drill, drill.hold_s * (min(share, 1.0) if drill.keeps_leader else share))


def parse(text: str) -> list[Planned]:
    """Return the drills of a schedule, a TOML or JSON text, in the order of their times.

    Raises:
        ScheduleError: it is neither, has an unknown drill or key, or a time that is not a number from 0 to 7 days.
    """
    try:
        value: Any = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ScheduleError(f"it is neither TOML nor JSON: {error}") from None
    faults = value.get("faults")
    if not isinstance(faults, list) or not faults:
        raise ScheduleError("it has no list `faults`")
    if len(faults) > _FAULTS_MAX:
        raise ScheduleError(f"it has {len(faults):,} faults; {_FAULTS_MAX:,} are allowed")
    planned = [_planned(number, fault) for number, fault in enumerate(faults, start=1)]
    return sorted(planned, key=lambda one: one.at_s or 0.0)


def text_of(planned: Sequence[Planned]) -> str:
    """Return the schedule as TOML."""
    return "\n".join(
        f'[[faults]]\ndrill = "{one.drill.name}"\nat_s = {one.at_s or 0.0:.3f}\nhold_s = {one.hold_s:.3f}\n'
        for one in planned
    )


def _planned(number: int, fault: object) -> Planned:
    if not isinstance(fault, Mapping):
        raise ScheduleError(f"fault {number} is {fault!r}, not a table with drill and at_s")
    if unknown := sorted(set(fault) - {"drill", "at_s", "hold_s"}):
        raise ScheduleError(f"fault {number} has {', '.join(map(str, unknown))}; it may have drill, at_s and hold_s")
    drill = named(str(fault.get("drill")), f"fault {number}")
    hold_s = _seconds(fault.get("hold_s", drill.hold_s), f"hold_s of fault {number}")
    if not hold_s:
        raise ScheduleError(f"hold_s of fault {number} is 0")
    return Planned(drill, hold_s, _seconds(fault.get("at_s"), f"at_s of fault {number}"))


def named(name: str, where: str) -> Drill:
    """Return the drill of this name.

    Raises:
        ScheduleError: there is none; the text has `where` and the nearest name.
    """
    if (drill := CATALOGUE.get(name)) is None:
        nearest = difflib.get_close_matches(name, CATALOGUE, 1, cutoff=0.0)[0]
        raise ScheduleError(f"{where}: there is no drill {name!r}; the nearest is {nearest!r}")
    return drill


def _seconds(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _SECONDS_MAX:
        raise ScheduleError(f"{what} is {value!r}, not a number of seconds from 0 to {_SECONDS_MAX:,.0f}")
    return float(value)
