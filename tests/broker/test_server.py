"""The table of requests: each code is served by one function."""

import pytest

from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from tests.broker.conftest import Desk, MemoryClient


async def test_a_request_code_with_two_servers_is_refused_and_nothing_of_its_table_is_served(desk: Desk) -> None:
    handler = desk.parts.handler
    before = handler.codes
    with pytest.raises(ValueError, match=str(int(RequestCode.PULL_MESSAGE))):
        handler.serve({RequestCode.UPDATE_BROKER_CONFIG: print, RequestCode.PULL_MESSAGE: print})
    assert handler.codes == before


async def test_no_two_subsystems_serve_the_same_code(desk: Desk) -> None:
    served = [code for subsystem in desk.parts.subsystems for code in subsystem.requests()]
    assert len(served) == len(set(served)) == len(desk.parts.handler.codes)


async def test_a_code_that_is_served_while_others_are_diverted_is_served_at_once(
    desk: Desk, client: MemoryClient
) -> None:
    asked: list[int] = []

    def serve(connection: Connection, command: Command) -> None:
        asked.append(command.code)
        connection.respond(command, 0)

    desk.parts.handler.divert({RequestCode.HEART_BEAT: serve})
    desk.parts.handler.serve({RequestCode.UPDATE_BROKER_CONFIG: serve})
    for code in (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.HEART_BEAT):
        assert (await client.ask(code)).code == 0
    assert asked == [RequestCode.UPDATE_BROKER_CONFIG, RequestCode.HEART_BEAT]
