"""What the programs of this package, `python -m chaos...`, have in common."""

import os
import sys
from collections.abc import Callable
from typing import NoReturn


def run(main: Callable[[], int]) -> NoReturn:
    """End this process with the exit code of `main`; with 1, and quietly, if its output is closed before it ends."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the rest, which is written at the exit
        code = 1
    sys.exit(code)
