"""What shipping code logs in a run as an error fails that run; nothing else is logged."""

import contextlib
import logging
from collections.abc import Callable, Iterator


class _Errors(logging.Handler):
    def __init__(self, found: Callable[[str], None], is_expected: Callable[[logging.LogRecord], bool]) -> None:
        super().__init__(logging.ERROR)
        self._found = found
        self._is_expected = is_expected

    def emit(self, record: logging.LogRecord) -> None:
        if not self._is_expected(record):
            error = record.exc_info[1] if record.exc_info else None
            cause = "" if error is None else f": {type(error).__name__}: {error}"
            self._found(f"logged by {record.name}: {record.getMessage()}{cause}")


@contextlib.contextmanager
def logged_errors(
    found: Callable[[str], None], is_expected: Callable[[logging.LogRecord], bool] = lambda _: False
) -> Iterator[None]:
    """Report what is logged as an error in the block.

    Args:
        found: called with each one.
        is_expected: whether a fault of the run causes this error by right; it knows an error by the text before its
            arguments are put in, `LogRecord.msg`.
    """
    handler, disabled = _Errors(found, is_expected), logging.root.manager.disable
    logging.root.addHandler(handler)
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)
        logging.root.removeHandler(handler)
