"""Reads the simple form of Java's `Properties`: `key=value` lines, as in small files and in bodies of requests."""

_SHOWN_MAX = 100


def parse_properties(text: str) -> dict[str, str]:
    """Return the `key=value` lines; comments and empty lines are left out, the last of equal keys counts.

    Raises:
        ValueError: names the line that has another form.
    """
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        key, separator, value = stripped.partition("=")
        if not separator:
            raise ValueError(f"line {number} is not key=value: {stripped[:_SHOWN_MAX]!r}")
        found[key.rstrip()] = value.lstrip().replace("\\:", ":").replace("\\=", "=").replace("\\\\", "\\")
    return found
