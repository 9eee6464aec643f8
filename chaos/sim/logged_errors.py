"""What shipping code logs in a run as an error fails that run; nothing else is logged."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence


class _Errors(logging.Handler):
    def __init__(self, found: Callable[[str], None], expected: Sequence[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found
        self._expected = expected

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg not in self._expected:
            error = record.exc_info[1] if record.exc_info else None
            cause = "" if error is None else f": {type(error).__name__}: {error}"
            self._found(f"logged by {record.name}: {record.getMessage()}{cause}")


@contextlib.contextmanager
def logged_errors(found: Callable[[str], None], expected: Sequence[str] = ()) -> Iterator[None]:
    """Report what is logged as an error in the block.

    Args:
        found: called with each one.
        expected: texts, before their arguments are put in, of errors that a fault of the run causes by right.
    """
    handler, disabled = _Errors(found, expected), logging.root.manager.disable
    logging.root.addHandler(handler)
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)
        logging.root.removeHandler(handler)
