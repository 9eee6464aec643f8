"""JSON bodies of answers, standard or as Java writes it."""

from collections.abc import Callable
from typing import Any, TypeVar

from ledgermq.client.errors import UndecodableError
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.errors import JsonError

Read = TypeVar("Read")


def read_body(where: str, what: str, body: bytes | memoryview, parse: Callable[[Any], Read]) -> Read:
    """The JSON body of an answer, parsed by `parse`.

    Raises:
        UndecodableError: not JSON, or of another shape; names where it came from and what was expected.
    """
    try:
        return parse(loads(body))
    except (JsonError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UndecodableError(f"{where}: {what}: {error!r}") from error
