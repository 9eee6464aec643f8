"""The table of requests: each code is served by one function."""

import pytest

from ledgermq.remoting.codec.codes import RequestCode
from tests.broker.conftest import Desk


async def test_a_request_code_with_two_servers_is_refused_and_nothing_of_its_table_is_served(desk: Desk) -> None:
    handler = desk.parts.handler
    before = handler.codes
    with pytest.raises(ValueError, match=str(int(RequestCode.PULL_MESSAGE))):
        handler.serve({RequestCode.UPDATE_BROKER_CONFIG: print, RequestCode.PULL_MESSAGE: print})
    assert handler.codes == before


async def test_no_two_subsystems_serve_the_same_code(desk: Desk) -> None:
    served = [code for subsystem in desk.parts.subsystems for code in subsystem.requests()]
    assert len(served) == len(set(served)) == len(desk.parts.handler.codes)
