"""The server of LedgerMQ as one importable package. In a wheel its rooms (`store`, `broker`, ...) are inside it.

In a checkout they are beside it. They import each other as top-level modules: `main` puts their folder first on the
path, so that a user's own module called `broker` or `cli` neither breaks the server nor is hidden from other programs.
"""

import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_ROOMS = _HERE if (_HERE / "cli").is_dir() else _HERE.parents[1]


def main() -> int:
    """Run the command `ledgermq`; return the exit code."""
    # numpy's OpenBLAS, which nothing here uses, would start a thread for each core, and each would spin for a while.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.path.insert(0, str(_ROOMS))
    from cli.main import main as run

    return run()
