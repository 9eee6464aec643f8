"""Tells one boot of the machine from another: what was written but not synced survives a process, not the machine."""

from pathlib import Path
from typing import Final
from uuid import uuid4

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the kernel's id of this boot, 36 ASCII characters.

    Where the system does not tell, each call returns another id: every start then counts as one after a power cut.
    """
    try:
        return _BOOT_ID.read_text("ascii").strip()[:36]
    except OSError:
        return str(uuid4())
