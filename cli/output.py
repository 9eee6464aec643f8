"""Standard output and error whose reader is gone, as before `| head`."""

import os
from typing import TextIO


def drop(stream: TextIO) -> None:
    """Discard the stream's buffer, and everything written to it from now on.

    Otherwise the interpreter would fail to write the rest when it ends.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
