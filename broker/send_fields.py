"""The header of a send request under long names."""

from collections.abc import Mapping

from broker.fields import SEND_NAMES


def shortened(fields: Mapping[str, str]) -> dict[str, str]:
    """The header under its short names; long ones come from code 10, and from clients that mix the two."""
    return {short: fields[name] for short, name in SEND_NAMES.items() if name in fields}
