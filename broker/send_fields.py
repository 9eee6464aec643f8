"""What a send request says, as far as it is rare: long names in the header, kinds that are not served."""

from collections.abc import Mapping
from typing import Final

from broker.fields import SEND_NAMES
from ledgermq.message.properties import find_property
from ledgermq.remoting.refusal import Cause, Refusal

_TIMED: Final = (b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS")


def shortened(fields: Mapping[str, str]) -> dict[str, str]:
    """The header under its short names; long ones come from code 10, and from clients that mix the two."""
    return {short: fields[name] for short, name in SEND_NAMES.items() if name in fields}


def check_kind(properties: bytes) -> None:
    """Refuse what this release does not do, instead of storing it as something else.

    Raises:
        Refusal: NOT_SUPPORTED, naming the property.
    """
    if find_property(properties, b"TRAN_MSG") == b"true":
        raise Refusal(
            Cause.NOT_SUPPORTED, "property TRAN_MSG: transactional messages are not served by this broker yet"
        )
    for name in _TIMED:
        value = find_property(properties, name)
        if value and value != b"0":
            raise Refusal(
                Cause.NOT_SUPPORTED,
                f"property {name.decode()}={value.decode(errors='replace')[:20]}: "
                "this broker does not serve messages delayed to a time yet, only by DELAY levels",
            )
