"""Slow syncs and a wrong wall clock for one process, by a library between it and libc (`shim.c`, built by cc)."""

import mmap
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

from node.errors import CommandError

INSTALL = "apt install gcc libc6-dev"
_SIZE_BYTES = 32
_DELAY, _AHEAD, _SLOW_SYNCS, _WRONG_TIMES = range(4)  # 64-bit members of `struct control`
_BUILD_LIMIT_S = 60.0
_EFFECT_LIMIT_S = 15.0
_POLL_S = 0.01


def find_compiler() -> str:
    """Return the path of a C compiler.

    Raises:
        CommandError: none is installed; the text has the command that installs one.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise CommandError(f"slow disks and wrong clocks need a C compiler: {INSTALL}")
    return compiler


def build_shim(directory: Path) -> Path:
    """Build the library in a folder; return its path.

    Raises:
        CommandError: there is no C compiler, or it fails; the text has the command that installs it.
    """
    compiler = find_compiler()
    library = directory / "shim.so"
    source = Path(__file__).with_name("shim.c")
    words = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_BUILD_LIMIT_S)
    if done.returncode != 0:
        raise CommandError(f"{compiler} does not build shim.c ({INSTALL}): {done.stderr.strip()}")
    return library


class Shim:
    """The control file of one node's library.

    Args:
        path: path of the file, which is created anew.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_bytes(bytes(_SIZE_BYTES))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), _SIZE_BYTES)

    def environment(self, library: Path) -> dict[str, str]:
        """Return the variables that load the library into a new process."""
        return os.environ | {"LD_PRELOAD": str(library), "LEDGERMQ_SHIM": str(self._path)}

    def slow_syncs(self, delay_ms: int) -> str:
        """Let each sync of a running node take `delay_ms` longer; block until one has; return the proof.

        Raises:
            CommandError: the node has not synced within 15 s.
        """
        self._set(_DELAY, delay_ms * 1_000_000)
        count = self._grown(_SLOW_SYNCS, f"it has synced nothing that took {delay_ms} ms longer")
        return f"{count} syncs took {delay_ms} ms longer"

    def set_clock(self, ahead_s: int) -> str:
        """Set a running node's wall clock `ahead_s` ahead; block until the node has read it; return the proof.

        Raises:
            CommandError: the node has not read its clock within 15 s.
        """
        self._set(_AHEAD, ahead_s * 1_000_000_000)
        count = self._grown(_WRONG_TIMES, "it has not looked at its clock")
        return f"its clock was {ahead_s:+} s off {count} times"

    def heal(self) -> None:
        """End the delay of syncs, and show the true clock again."""
        self._set(_DELAY, 0)
        self._set(_AHEAD, 0)

    def _set(self, member: int, value: int) -> None:
        struct.pack_into("q", self._shared, 8 * member, value)

    def _get(self, member: int) -> int:
        value: int = struct.unpack_from("q", self._shared, 8 * member)[0]
        return value

    def _grown(self, member: int, complaint: str) -> int:
        before, deadline = self._get(member), time.monotonic() + _EFFECT_LIMIT_S
        while (grown := self._get(member) - before) <= 0:
            if time.monotonic() > deadline:
                raise CommandError(f"{complaint} within {_EFFECT_LIMIT_S:g} s")
            time.sleep(_POLL_S)
        return grown
