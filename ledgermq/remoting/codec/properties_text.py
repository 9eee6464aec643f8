"""Settings as a properties text, in the body of requests 25 and 318."""

from ledgermq.message import java_properties
from ledgermq.remoting.refusal import Cause, Refusal


def parse_properties(text: str) -> dict[str, str]:
    """The `key=value` lines; comments and empty lines are left out, the last of equal keys wins.

    Raises:
        Refusal: INVALID_PARAMETER, naming the line that is none.
    """
    try:
        return java_properties.parse_properties(text)
    except ValueError as error:
        raise Refusal(Cause.INVALID_PARAMETER, str(error)) from None
