"""Every request code by a stranger and by a user without any right: refused before anything is done."""

from broker.passing.member_requests import GREETING
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.signature import Credentials
from tests.broker.auth.test_requests import ALICE, checking, make_alice, rooted
from tests.broker.conftest import Desk, MemoryClient


async def answers(desk: Desk, client: MemoryClient, who: Credentials | None) -> dict[int, int]:
    names = ("topic", "a", "b", "group", "groupName", "consumerGroup", "producerGroup")
    codes = {}
    for code in sorted(desk.parts.handler.codes - {GREETING}):
        command = Command(code, ext=dict.fromkeys(names, "T"))
        if who is not None:
            who.sign(command)
        codes[code] = (await client.ask(code, command.ext)).code
    return codes


@checking
async def test_no_request_of_a_stranger_or_of_a_user_without_rights_is_served(desk: Desk) -> None:
    client = await rooted(desk)
    await make_alice(client)
    before = desk.store.log.max_offset
    by_nobody = await answers(desk, desk.client(), None)
    assert len(by_nobody) > 80
    assert set(by_nobody.values()) == {ResponseCode.NO_PERMISSION}
    by_alice = await answers(desk, desk.client(), ALICE)
    assert desk.store.log.max_offset == before
    assert by_alice.pop(RequestCode.CHECK_CLIENT_CONFIG) == 0, "there is nothing to check"
    assert set(by_alice.values()) == {ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR}, "the latter: no body"
