"""The garbage collector while a server serves: looked at in a process of its own, where no other server ever was."""

import subprocess
import sys

from tests.limits import WAIT_S

TWO_SERVERS = """
import gc
from telemetry.collector import QuietCollector

before = gc.get_threshold()
first, second = QuietCollector(), QuietCollector()
first.begin()
second.begin()
second.skip_present()
assert gc.get_threshold() != before
assert gc.get_freeze_count() > 0
first.end()
first.end()
assert gc.get_threshold() != before
second.end()
assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
"""


def test_what_was_there_is_left_alone_until_the_last_server_ends() -> None:
    done = subprocess.run([sys.executable, "-c", TWO_SERVERS], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
