"""Errors that end a controller, and who has to act.

QuorumError
|- QuorumFileError      a file of the controller's folder is damaged, or does not fit the others
|- QuorumListenError    the port of the controllers cannot be opened
'- QuorumFailedError    the running quorum failed: a full disk, a command of another version
"""

from pathlib import Path


class QuorumError(Exception):
    """Root of these errors."""


class QuorumFileError(QuorumError):
    """A file cannot be used; nothing was changed.

    With a majority of the other controllers running, an empty folder is filled again by them.
    """

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(f"{path} {detail}")
        self.path = path


class QuorumListenError(QuorumError):
    """The port at which the controllers reach each other cannot be opened."""


class QuorumFailedError(QuorumError):
    """The quorum cannot go on in this process; a restart is safe."""
