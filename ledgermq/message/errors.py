"""Errors in bytes or text of the message formats; they come from senders or from the disk.

MessageFormatError
|- CorruptRecordError      a commit-log record that cannot be read      (position, detail)
|- MalformedBatchError     a batch body that cannot be split            (position, detail)
|- InvalidHostError        not an IP address, or not 8 or 20 bytes      (value)
|- InvalidMessageIdError   not 32 or 56 hex digits                      (value)
'- InvalidPropertyError    a name or value that the encoding cannot carry (name, detail)
"""


class MessageFormatError(ValueError):
    """Base class of the errors of this package."""


class CorruptRecordError(MessageFormatError):
    """No valid record starts at `position` of the buffer given.

    Args:
        position: index into that buffer; a caller that knows the physical offset adds its base.
        detail: what was found and what was expected.
    """

    def __init__(self, position: int, detail: str) -> None:
        super().__init__(f"no valid record at position {position}: {detail}")
        self.position = position
        self.detail = detail


class MalformedBatchError(MessageFormatError):
    """A batch body breaks off or contradicts its lengths at `position`."""

    def __init__(self, position: int, detail: str) -> None:
        super().__init__(f"malformed batch at position {position}: {detail}")
        self.position = position
        self.detail = detail


class InvalidHostError(MessageFormatError):
    """`value` is neither an IP address with a port nor its encoding."""

    def __init__(self, value: object, detail: str) -> None:
        super().__init__(f"not a host: {value!r} ({detail})")
        self.value = value


class InvalidMessageIdError(MessageFormatError):
    """`value` is not the hex text of a message id."""

    def __init__(self, value: str, detail: str) -> None:
        super().__init__(f"not a message id: {value!r} ({detail})")
        self.value = value


class InvalidPropertyError(MessageFormatError):
    """Property `name`, or its value, holds a separator character."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"property {name!r} cannot be encoded: {detail}")
        self.name = name
