"""Errors of SQL92 filters."""


class SqlSyntaxError(ValueError):
    """The text is no valid expression; the message names the position (characters from 0) and what was expected."""

    def __init__(self, detail: str, position: int) -> None:
        super().__init__(f"{detail} at character {position}")
        self.position = position


class IncomparableError(Exception):
    """A message's value cannot be compared as the expression demands; the message does not match."""
