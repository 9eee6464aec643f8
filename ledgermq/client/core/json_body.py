"""Bodies as JSON, by orjson."""

from typing import Any

import orjson

from ledgermq.client.errors import InvalidArgumentError, UndecodableError


def encode_json(value: Any) -> bytes:
    """A body that says `value`.

    Raises:
        InvalidArgumentError: JSON cannot say it.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:  # orjson's JSONEncodeError is one
        raise InvalidArgumentError(f"{type(value).__name__} as JSON: {error}") from error


def decode_json(body: bytes) -> Any:
    """What a body says.

    Raises:
        UndecodableError: it is not JSON.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UndecodableError(f"body of {len(body)} bytes is not JSON: {error}") from error
