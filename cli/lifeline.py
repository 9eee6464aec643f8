"""Ends this process when its parent ends, for whatever reason.

The kernel sends SIGKILL when the parent dies (`prctl(2)`, PR_SET_PDEATHSIG). It must be SIGKILL, since a process
that is paused by SIGSTOP handles no other signal. A parent that stops in order ends its children in order before.
"""

import ctypes
import os
import signal

from node.errors import CommandError

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Tie this process to the one with `parent_pid`.

    Raises:
        CommandError: that process is already gone, or the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise CommandError(
            f"this process cannot be told when process {parent_pid} ends: {os.strerror(ctypes.get_errno())}"
        )
    if os.getppid() != parent_pid:
        raise CommandError(f"process {parent_pid}, which started this one, is gone")
