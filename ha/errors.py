"""Errors between a master and its slaves, and who has to act.

HaError
|- HaProtocolError    the other end's: bytes that are no frame, or a report or an offset that cannot be
|- WrongGroupError    another cluster, broker name, file size or version, or no proof of the cluster's secret
|- MasterRefusedError the master will not serve this slave; carries the reason that it gave
|- DivergedLogError   the two logs differ: this slave's bytes are not the master's
'- EpochFileError     the file of epochs, or of this broker's id, is damaged
"""


class HaError(Exception):
    """Root of this room's errors."""


class HaProtocolError(HaError):
    """The other end broke the protocol; the connection is closed."""


class WrongGroupError(HaError):
    """The other end does not belong to this group.

    Args:
        field: what differs; the other end is told no more than this.
    """

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field} differs: {detail}")
        self.field = field


class NoProofError(WrongGroupError):
    """The other end does not prove that it has the secret."""

    def __init__(self, detail: str) -> None:
        super().__init__("haPeerSecretFile", detail)


class MasterRefusedError(HaError):
    """The master refused this slave, or told it that their logs differ.

    Args:
        field: as the master gave it.
    """

    def __init__(self, field: str) -> None:
        super().__init__(f"the master refuses this slave: {field}")
        self.field = field


class DivergedLogError(HaError):
    """The slave's log is no beginning of the master's: it is longer, or has other bytes.

    Args:
        what: `longer` or `other bytes`.
        detail: the offsets.
    """

    def __init__(self, what: str, detail: str) -> None:
        super().__init__(f"{what}: {detail}")
        self.what = what


class EpochFileError(HaError):
    """The file that says which master wrote which part of the log, or which id this broker has, is damaged."""
