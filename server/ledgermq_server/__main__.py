"""`python -m ledgermq_server` is the command `ledgermq`.

A local cluster starts its nodes so, with its own interpreter.
"""

import sys

from ledgermq_server import main

if __name__ == "__main__":
    sys.exit(main())
