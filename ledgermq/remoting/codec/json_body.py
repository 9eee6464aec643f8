"""JSON bodies of requests. The refusal of a bad one has the place of the fault."""

from collections.abc import Mapping
from typing import Any

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.errors import JsonError
from ledgermq.remoting.refusal import Cause, Refusal

_SHOWN_MAX = 100


def request_json(command: Command) -> Any:
    """Return the body of a request, which must be JSON, standard or as Java writes it.

    Raises:
        Refusal: MALFORMED_FIELD, with the place of the fault.
    """
    try:
        return loads(command.body)
    except JsonError as error:
        raise Refusal(Cause.MALFORMED_FIELD, f"{command.name}: the body is not JSON: {error}") from error


def listed_json(command: Command, name: str) -> list[Any]:
    """Return a list, of at least one element, that is a member of a request's JSON body.

    Raises:
        Refusal: MALFORMED_FIELD, names the member or the place of the fault.
    """
    body = request_json(command)
    found = body.get(name) if isinstance(body, dict) else None
    if not isinstance(found, list) or not found:
        raise Refusal(Cause.MALFORMED_FIELD, f"{command.name}: {name} is {str(found)[:_SHOWN_MAX]!r}, not a list")
    return found


def json_body(body: bytes | memoryview, what: str) -> Mapping[str, Any]:
    """Return a body that must be one JSON object; raises what `json_value` raises."""
    value = json_value(body, what)
    if not isinstance(value, dict):
        raise bad_body(what, value, "a JSON object")
    return value


def json_value(body: bytes | memoryview, what: str) -> Any:
    """Return a body that must be JSON, standard or as Java writes it.

    Raises:
        Refusal: SYSTEM_ERROR, as RocketMQ answers it, with the place of the fault.
    """
    try:
        return loads(body)
    except JsonError as error:
        raise Refusal(Cause.SYSTEM_ERROR, f"{what}: {error}") from error


def bad_body(what: str, value: object, wanted: str) -> Refusal:
    """Return the refusal of a body's member that has a wrong value."""
    return Refusal(Cause.SYSTEM_ERROR, f"{what} is {str(value)[:_SHOWN_MAX]!r}, not {wanted}")
