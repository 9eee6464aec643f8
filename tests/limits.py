"""How long tests wait for what must come, and whether all repetitions are asked for.

There is one limit, a generous one, since a wait that is met costs nothing.

On a machine that is several times slower, `TEST_SLOWNESS=3 make test` makes this limit, and pytest's own for a whole
test, three times as long.
"""

import os
from typing import Final

SLOWNESS: Final = max(1.0, float(os.environ.get("TEST_SLOWNESS", "1")))
WAIT_S: Final = 60.0 * SLOWNESS
TEST_S: Final = 180.0 * SLOWNESS
"""For a whole test that sets none of its own: longer than one wait, so that the wait's own message is seen."""

IS_WHOLE: Final = "TESTS_WHOLE" in os.environ
"""`make test-all`: further seeds, rounds and examples of what `make test` proves with few."""
