"""`python -m ledgermq_server` is `ledgermq`: how a local cluster starts its nodes with the interpreter that runs it."""

import sys

from ledgermq_server import main

if __name__ == "__main__":
    sys.exit(main())
