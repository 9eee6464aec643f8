"""The violations that end a run; each kind has its own exit code of `python -m chaos.sim`.

    0    nothing
    10   SafetyViolation     an invariant is broken: R1 to R11, R13, R15 to R37 of `observer`
    11   LivenessViolation   after all faults are repaired no leader, no commit or no equal logs in time (R14)
    12   anything else       the product or the simulator raised
    13   no exception        in many seeds a kind of fault or message never occurred, or few seeds count

Checks raise, so the first broken invariant ends a run.
"""


class Violation(Exception):
    """A broken invariant: its code, and the observation that broke it."""

    exit_code = 12

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class SafetyViolation(Violation):
    """Something happened that must never happen."""

    exit_code = 10


class LivenessViolation(Violation):
    """Something did not happen in time."""

    exit_code = 11
