"""What a program gets into its process by importing the client."""

import json
import subprocess
import sys
from pathlib import Path

CODE = """
import json, sys
import ledgermq.client
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
SERVERS_ONLY = {"aiohttp", "numpy", "uvloop"}
ROOMS = {path.parent.name for path in Path(__file__).parents[2].glob("*/__init__.py")} - {"ledgermq"}


def test_importing_the_client_imports_nothing_of_the_servers() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    imported = set(json.loads(done.stdout))
    assert {"ledgermq", "orjson"} <= imported
    assert not imported & (SERVERS_ONLY | ROOMS)
