"""The header of a send request under long names."""

from collections.abc import Mapping

from broker.fields import SEND_NAMES
from ledgermq.message.properties import find_property
from ledgermq.remoting.refusal import Cause, Refusal


def shortened(fields: Mapping[str, str]) -> dict[str, str]:
    """The header under its short names; long ones come from code 10, and from clients that mix the two."""
    return {short: fields[name] for short, name in SEND_NAMES.items() if name in fields}


def check_key(properties: bytes) -> None:
    """A message of a topic that is compacted by key.

    Raises:
        Refusal: MESSAGE_ILLEGAL, it has none.
    """
    key = find_property(properties, b"KEYS")
    if key is None or not key.strip():
        raise Refusal(Cause.MESSAGE_ILLEGAL, "Required message key is missing")
