"""What a log message quotes of somebody else's stays on its line."""

import logging
import sys

from node.run import OneLineFormatter


def test_control_characters_of_a_message_are_escaped_and_a_traceback_keeps_its_lines() -> None:
    name = "b\n2026-01-01 00:00:00 ERROR root fake\r\x1b[2J\x85\u2028\u202eend"
    try:
        raise ValueError("why")
    except ValueError:
        record = logging.LogRecord("room", logging.INFO, "f.py", 1, "broker %s ä", (name,), sys.exc_info())
    first, *rest = OneLineFormatter().format(record).splitlines()
    assert first.endswith(r"INFO room broker b\x0a2026-01-01 00:00:00 ERROR root fake\x0d\x1b[2J\x85\u2028\u202eend ä")
    assert rest[0].startswith("Traceback") and rest[-1] == "ValueError: why"
