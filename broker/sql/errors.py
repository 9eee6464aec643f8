"""What is wrong with an expression, and with a message's values."""


class SqlSyntaxError(ValueError):
    """The expression is none: `position` (characters from 0) and what was expected there are in the text."""

    def __init__(self, detail: str, position: int) -> None:
        super().__init__(f"{detail} at character {position}")
        self.position = position


class IncomparableError(Exception):
    """A message's value cannot be compared as the expression wants it; such a message is not matched."""
