"""Options of the data sources: names, defaults, and clear errors for what is misspelt."""

import difflib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from ledgermq.spark.errors import OptionError


class Options:
    """The options of one source, by name in any case.

    Args:
        given: what the user set; Spark passes names in lower case.
        known: every name the source has.

    Raises:
        OptionError: an option is not known; the text names the nearest one.
    """

    def __init__(self, given: Mapping[str, str], known: Sequence[str]) -> None:
        self._values = {name.lower(): value for name, value in given.items()}
        lower = {name.lower(): name for name in known}
        for name in self._values:
            if name not in lower:
                near = difflib.get_close_matches(name, lower, 1, 0.5)
                hint = f"; did you mean {lower[near[0]]}?" if near else f"; known are {', '.join(known)}"
                raise OptionError(f"unknown option {name!r}{hint}")

    def text(self, name: str, otherwise: str = "") -> str:
        """Return the value as it was given."""
        return self._values.get(name.lower(), otherwise)

    def has(self, name: str) -> bool:
        """Return whether the option was given."""
        return name.lower() in self._values

    def choice(self, name: str, *values: str) -> str:
        """Return one of `values`, the first if the option is not given.

        Raises:
            OptionError: another value.
        """
        value = self.text(name, values[0])
        if value not in values:
            raise OptionError(f"{name}={value!r} must be one of {', '.join(values)}")
        return value

    def flag(self, name: str, otherwise: bool) -> bool:
        """Return true or false.

        Raises:
            OptionError: another value.
        """
        value = self.text(name, str(otherwise)).lower()
        if value not in ("true", "false"):
            raise OptionError(f"{name}={value!r} must be true or false")
        return value == "true"

    def number(self, name: str) -> int | None:
        """Return a whole number of 0 or more; None if the option is not given.

        Raises:
            OptionError: another value.
        """
        if not self.has(name):
            return None
        value = self.text(name)
        if not (value.isascii() and value.isdigit() and len(value) < 19):
            raise OptionError(f"{name}={value!r} must be a whole number of 0 or more")
        return int(value)

    def time_ms(self, name: str) -> int | None:
        """Return a time as ms since 1970, given as such or as ISO 8601 (UTC without a zone); None if not given.

        Raises:
            OptionError: neither.
        """
        if not self.has(name):
            return None
        value = self.text(name)
        if value.isascii() and value.isdigit() and len(value) < 19:
            return int(value)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise OptionError(
                f"{name}={value!r} is neither ms since 1970 nor a time such as 2026-11-21T09:12"
            ) from None
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)

    def names(self, name: str) -> list[str]:
        """Return a list given with commas; empty if the option is not given."""
        return [part.strip() for part in self.text(name).split(",") if part.strip()]

    def numbers(self, name: str) -> list[int]:
        """Return a list of whole numbers given with commas.

        Raises:
            OptionError: an item is none.
        """
        found = self.names(name)
        if any(not (part.isascii() and part.isdigit() and len(part) < 10) for part in found):
            raise OptionError(f"{name}={self.text(name)!r} must be whole numbers with commas between")
        return [int(part) for part in found]
