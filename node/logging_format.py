"""The format of a node's log: each message stays on one line, whatever it quotes."""

import logging
from typing import Final

_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
_ESCAPES: Final = {
    number: f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
    for number in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""Control characters, line separators, and those that change the direction of writing."""


class OneLineFormatter(logging.Formatter):
    """Escapes in the message what would begin a new line or move a terminal's cursor; tracebacks keep their lines."""

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the name is logging's)
        record.message = record.message.translate(_ESCAPES)
        return super().formatMessage(record)
