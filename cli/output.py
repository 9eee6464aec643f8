"""Standard output and error whose reader has gone, as behind `| head`."""

import os
from typing import TextIO


def drop(stream: TextIO) -> None:
    """Discard what the stream still buffers, and all that is written to it from now on.

    Without this the interpreter would fail to write the rest at its end.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
