"""Reads settings in the body of requests 25 and 318."""

from ledgermq.message import java_properties
from ledgermq.remoting.refusal import Cause, Refusal


def parse_properties(text: str) -> dict[str, str]:
    """Return the `key=value` lines; comments and empty lines are left out, the last of equal keys counts.

    Raises:
        Refusal: INVALID_PARAMETER, names the line that has another form.
    """
    try:
        return java_properties.parse_properties(text)
    except ValueError as error:
        raise Refusal(Cause.INVALID_PARAMETER, str(error)) from None
