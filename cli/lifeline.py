"""Ends this process when its parent ends, for whatever reason.

The kernel sends SIGKILL when the parent ends (`prctl(2)`, PR_SET_PDEATHSIG). It must be SIGKILL, since a process
stopped by SIGSTOP handles no other signal. A parent that ends in order has stopped its children before.
"""

import ctypes
import os
import signal

from node.errors import CommandError

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel kill this process when the process with `parent_pid` ends.

    Raises:
        CommandError: that process has already ended, or the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise CommandError(
            f"this process cannot be told when process {parent_pid} ends: {os.strerror(ctypes.get_errno())}"
        )
    if os.getppid() != parent_pid:
        raise CommandError(f"process {parent_pid}, which started this one, has ended")
