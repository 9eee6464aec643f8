"""Messages with property WAIT=false are answered when they are placed: before they are flushed or replicated."""

import pytest

from ledgermq.message.batch import encode_batch
from ledgermq.remoting.codec.codes import RequestCode
from tests.broker.conftest import Desk, MemoryClient, eventually, make_topic, send_fields
from tests.broker.state.test_topic_lives import nothing_commits

KEY = "UNIQ_KEY\x010A0B0C\x02"


@pytest.mark.parametrize("delay", ["", "DELAY\x013\x02"], ids=["at once", "delayed"])
@pytest.mark.parametrize("value", ["false", "False", "no"])
async def test_who_does_not_wait_is_answered_before_anything_is_confirmed(
    desk: Desk, client: MemoryClient, value: str, delay: str
) -> None:
    await make_topic(client, "T")
    with nothing_commits(desk):
        properties = f"{KEY}WAIT\x01{value}\x02{delay}"
        answer = await client.ask(RequestCode.SEND_MESSAGE_V2, send_fields(i=properties), b"now")
        assert (answer.code, answer.ext["transactionId"]) == (0, "0A0B0C")
        waiting = client.start(RequestCode.SEND_MESSAGE_V2, send_fields(i=f"{KEY}WAIT\x01true\x02"), b"later")
        batch = encode_batch([(0, b"a", b""), (0, b"b", b"")])
        answer = await client.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields(i=f"WAIT\x01{value}\x02"), batch)
        assert answer.code == 0
        assert desk.store.log.confirm_offset < desk.store.log.max_offset
        assert waiting not in client.answers
    assert (await client.answer_to(waiting)).code == 0
    await eventually(lambda: desk.store.log.confirm_offset == desk.store.log.max_offset)
    assert len([record for record in desk.records() if record.body in (b"now", b"later", b"a", b"b")]) == 4


async def test_who_does_not_wait_hears_when_nothing_is_placed(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "T")
    desk.store.disk_full = "no room"
    desk.parts.context.targets.forget()
    answer = await client.ask(RequestCode.SEND_MESSAGE_V2, send_fields(i=f"{KEY}WAIT\x01false\x02"), b"now")
    assert answer.code == 14
