"""The `members` file: the ids of `dLegerPeers` with which this directory was last opened, as one line `n0;n1;n2`.

Two majorities of different memberships need not share a member: after a change, entries that the old group acknowledged
may be only on members that the new majority does not include. So a node whose membership changed is recovering (see
`HardState`): the new group elects its first leader only when every member answers, and takes the longest log of all.
Java has no such file.
"""

from collections.abc import Iterable
from pathlib import Path

from dledger.log.hard_state import make_recovering
from dledger.log.small_file import write_durably

FILE_NAME = "members"


def members_text(node_ids: Iterable[str]) -> str:
    """Return the membership as text: equal for equal sets of members, whatever their order."""
    return ";".join(sorted(node_ids))


def note_members(directory: Path, node_ids: Iterable[str]) -> str | None:
    """Save the membership; durable on return. If it has changed, the hard state is made recovering before that.

    Returns:
        Why this node may have forgotten what it acknowledged: the membership has changed, or the file is damaged, which
            counts as a change. None otherwise, and in a directory that has no such file yet.

    Raises:
        StoreFormatError: the hard state cannot be read.
        DiskFullError, DiskFailedError: as `write_durably`.
    """
    path, members = directory / FILE_NAME, members_text(node_ids)
    before = path.read_bytes().decode("utf-8", "replace").strip() if path.exists() else None
    if before == members:
        return None
    if before is not None:
        make_recovering(directory)
    write_durably(path, f"{members}\n".encode())
    return None if before is None else f"dLegerPeers was {before} when this directory was last opened, and is {members}"
