"""The time limits of waits in tests, and whether all repetitions are run.

There is one limit, a generous one, since a wait that is met costs nothing; a longer one where programs of others run.

On a machine that is several times slower, `TEST_SLOWNESS=3 make test` makes this limit, and pytest's own for a whole
test, three times as long.
"""

import os
from typing import Final

SLOWNESS: Final = max(1.0, float(os.environ.get("TEST_SLOWNESS", "1")))
WAIT_S: Final = 60.0 * SLOWNESS
TEST_S: Final = 180.0 * SLOWNESS
"""For a whole test that sets none of its own: longer than one wait, so that the wait's own message is seen."""
STRANGER_WAIT_S: Final = 400.0 * SLOWNESS
"""For programs of others (Java, Go): a JVM starts in 3 s here, and took 60 s on a machine with much else to do."""
STRANGER_TEST_S: Final = 2400.0 * SLOWNESS
"""For a whole test with such programs."""
COMPILE_LITTLE: Final = "-XX:TieredStopAtLevel=1"
"""For Java programs that run for seconds: code that would have been faster later is not compiled a second time."""

IS_WHOLE: Final = "TESTS_WHOLE" in os.environ
"""`make test-all`: further seeds, rounds and examples of what `make test` proves with few."""
