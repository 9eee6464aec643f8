"""One request to one address, and the JSON body of its answer, standard or as Java writes it."""

from collections.abc import Callable, Container
from typing import Any, TypeVar

from ledgermq.client.errors import UndecodableError, refusal_from, unreachable_from
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.errors import JsonError, RemotingError

SUCCESS = frozenset({0})

Read = TypeVar("Read")


async def ask(
    remoting: RemotingClient, address: str, command: Command, timeout_s: float, accepted: Container[int] = SUCCESS
) -> Command:
    """Return the answer of the server at `address`, if its code is one of `accepted`.

    Raises:
        UnreachableError: it did not answer.
        RefusedError: it answered with another code.
    """
    try:
        answer = await remoting.request(address, command, timeout_s)
    except RemotingError as error:
        raise unreachable_from(address, error) from error
    if answer.code not in accepted:
        raise refusal_from(address, answer.code, answer.remark, answer.ext)
    return answer


def read_body(where: str, what: str, body: bytes | memoryview, parse: Callable[[Any], Read]) -> Read:
    """Return the JSON body of an answer, parsed by `parse`.

    Raises:
        UndecodableError: not JSON, or of another shape; names where it came from and what was expected.
    """
    try:
        return parse(loads(body))
    except (JsonError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UndecodableError(f"{where}: {what}: {error!r}") from error
