"""The `members` file: the ids of `dLegerPeers` under which this directory was last opened, one line `n0;n1;n2`.

Two majorities of different memberships need not have a member in common: after a change, what the old group
acknowledged may lie on members that the new one does not ask. So a node whose membership changed is recovering (see
`HardState`): the new group elects its first leader only when every member answers, and takes the longest log of all.
Java has no such file.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from dledger.log.hard_state import read_hard_state, write_hard_state
from dledger.log.small_file import write_durably

FILE_NAME = "members"


def members_text(node_ids: Iterable[str]) -> str:
    """The membership as text: equal for equal sets of members, in whatever order they are given."""
    return ";".join(sorted(node_ids))


def note_members(directory: Path, node_ids: Iterable[str]) -> str | None:
    """Note the membership; durable on return. A node whose membership changed is recovering before that is noted.

    Returns:
        Why this node may not trust what it knows: the membership has changed, or the file is damaged, which counts as
        a change; None otherwise, and in a directory that has no such file yet.

    Raises:
        StoreFormatError: the hard state cannot be read.
        DiskFullError, DiskFailedError: as `write_durably`.
    """
    path, members = directory / FILE_NAME, members_text(node_ids)
    before = path.read_bytes().decode("utf-8", "replace").strip() if path.exists() else None
    if before == members:
        return None
    state = read_hard_state(directory)
    if before is not None and state is not None:
        write_hard_state(directory, replace(state, recovering=True))
    write_durably(path, f"{members}\n".encode())
    return None if before is None else f"dLegerPeers was {before} when this directory was last opened, and is {members}"
