"""`python -m cli` is `ledgermq`: how the local cluster starts its nodes with the interpreter that runs it."""

import sys

from cli.main import main

if __name__ == "__main__":
    sys.exit(main())
