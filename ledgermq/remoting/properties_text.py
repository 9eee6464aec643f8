"""Settings as a properties text, in the body of requests 25 and 318."""

from ledgermq.remoting.refusal import Cause, Refusal


def parse_properties(text: str) -> dict[str, str]:
    """The `key=value` lines; comments and empty lines are left out, the last of equal keys wins.

    Raises:
        Refusal: INVALID_PARAMETER, naming the line that is none.
    """
    properties = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        key, separator, value = stripped.partition("=")
        if not separator:
            raise Refusal(Cause.INVALID_PARAMETER, f"line {number} is not key=value: {stripped[:100]!r}")
        properties[key.rstrip()] = value.lstrip().replace("\\:", ":").replace("\\=", "=").replace("\\\\", "\\")
    return properties
