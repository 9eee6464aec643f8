"""What programs give, refused by name when it is not what it should be."""

from datetime import datetime

from ledgermq.client.errors import InvalidArgumentError


def check_positive(**numbers: float | None) -> None:
    """Refuse what is no number, or not above 0; None stands for a default.

    Raises:
        InvalidArgumentError: names it.
    """
    for name, number in numbers.items():
        if number is not None and not (isinstance(number, int | float) and number > 0):
            raise InvalidArgumentError(f"{name} is {number!r}: it must be a number above 0")


def check_text(value: object, what: str) -> None:
    """Refuse what is no text.

    Raises:
        InvalidArgumentError: names it, and its type.
    """
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{what} is {type(value).__name__}, not str: {value!r}")


def unix_ms(when: datetime, what: str) -> int:
    """A time as Unix ms.

    Raises:
        InvalidArgumentError: no datetime, or one without a time zone, which means another time on each machine.
    """
    if not isinstance(when, datetime):
        raise InvalidArgumentError(f"{what} is {type(when).__name__}, not a datetime: {when!r}")
    if when.tzinfo is None:
        raise InvalidArgumentError(f"{what} is {when}, without a time zone: say which")
    return int(when.timestamp() * 1000)
