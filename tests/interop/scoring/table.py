"""Our scores beside the real broker's: a row a group, and the cases that are owed.

A case is owed when the real broker passes it, or fails it in a way it is known for, and ours does not pass it; and
when ours fails it while the real one skips it or was never asked.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from tests.interop.scoring.outcomes import Outcome, Result, Results, group_of
from tests.interop.scoring.runs import selects

Row = tuple[str, Results, Mapping[str, Outcome], float]  # title, ours, the real broker's, seconds

_EXPECTED = (Outcome.OK, Outcome.KNOWN)
_SHOWN = (Outcome.OK, Outcome.FAIL, Outcome.SKIP)
_HEADER = f"{'group':<14}{'cases':>6}   {'ours: passed':>12} {'failed':>7} {'skipped':>8}   "
_HEADER += f"{'real: passed':>12} {'failed':>7} {'known':>6} {'skipped':>8}"


def with_missing(ours: Results, real: Mapping[str, Outcome], patterns: str) -> Results:
    """Ours, and as failed each case that the patterns select, the real broker was asked for, and ours did not run."""
    missing = {case for case in real if case not in ours and selects(patterns, case)}
    return ours | {case: Result(Outcome.FAIL, "did not run") for case in sorted(missing)}


def owed(ours: Results, real: Mapping[str, Outcome]) -> Results:
    """The cases of ours that must pass and do not."""
    return {case: result for case, result in ours.items() if _is_owed(result, real.get(case))}


def _is_owed(result: Result, real: Outcome | None) -> bool:
    if result.outcome is Outcome.OK:
        return False
    return real in _EXPECTED or (result.outcome is not Outcome.SKIP and real is not Outcome.FAIL)


def side_by_side(title: str, ours: Results, real: Mapping[str, Outcome]) -> list[str]:
    """Lines: the table by group, then what ours did not pass, with the reasons."""
    lines = [f"---- {title}", _HEADER]
    lines += [_row(group, *_of_group(group, ours, real)) for group in dict.fromkeys(map(group_of, ours))]
    lines.append(_row("all", ours, {case: outcome for case, outcome in real.items() if case in ours}))
    missing = owed(ours, real)
    for case, result in sorted(ours.items()):
        if result.outcome is not Outcome.OK:
            mark = "OWED" if case in missing else "    "
            lines.append(f"{mark} {result.outcome:<5} {case:<40} real: {real.get(case, '-'):<6} {result.text}")
    return lines


def _of_group(group: str, ours: Results, real: Mapping[str, Outcome]) -> tuple[Results, dict[str, Outcome]]:
    mine = {case: result for case, result in ours.items() if group_of(case) == group}
    return mine, {case: real[case] for case in mine if case in real}


def _row(name: str, ours: Results, real: Mapping[str, Outcome]) -> str:
    mine, theirs = Counter(result.outcome for result in ours.values()), Counter(real.values())
    line = f"{name:<14}{len(ours):>6}   {mine[Outcome.OK]:>12} {mine[Outcome.FAIL] + mine[Outcome.KNOWN]:>7}"
    line += f" {mine[Outcome.SKIP]:>8}   {theirs[Outcome.OK]:>12} {theirs[Outcome.FAIL]:>7}"
    return line + f" {theirs[Outcome.KNOWN]:>6} {theirs[Outcome.SKIP]:>8}"


def summary(rows: Iterable[Row]) -> list[str]:
    """A line a run: ours, the real broker's on the same cases, what is owed, seconds."""
    lines = [f"{'run':<34}{'ours passed/failed/skipped':>28}{'real passed/failed/skipped':>28}{'owed':>6}{'time':>8}"]
    for title, ours, real, seconds in rows:
        mine = Counter(result.outcome for result in ours.values())
        theirs = Counter(real[case] for case in ours if case in real)
        theirs[Outcome.FAIL] += theirs.pop(Outcome.KNOWN, 0)
        scores = ("/".join(str(count[outcome]) for outcome in _SHOWN) for count in (mine, theirs))
        left, right = scores
        lines.append(f"{title:<34}{left:>28}{right:>28}{len(owed(ours, real)):>6}{seconds:>6.0f} s")
    return lines


def again(rows: Iterable[Row]) -> list[str]:
    """A line for each case that passed only when it was run again, alone."""
    return [
        f"passed when run again: {title}: {case}, first: {result.first}"
        for title, ours, _, _ in rows
        for case, result in sorted(ours.items())
        if result.first and result.outcome is Outcome.OK
    ]
