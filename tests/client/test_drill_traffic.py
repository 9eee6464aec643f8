"""What drills look for in the log of a real broker after the traffic."""

import pytest

from chaos.checkers.operations import Delivery
from chaos.drills import traffic
from chaos.drills.record import DrillRecord
from chaos.drills.traffic import body_of, gone_from_log, still_in_log
from ledgermq.client import Admin, Producer
from node.errors import CommandError


async def sent(namesrv: str, topic: str, queues: int, count: int) -> DrillRecord:
    """The record of a drill whose `count` messages were all acknowledged, and none delivered."""
    record = DrillRecord(0.0)
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic(topic, queue_count=queues)
        for number in range(count):
            send = record.invoked(0.0)
            result = await producer.send(topic, body_of(number))
            queue = f"{result.queue.broker}/{result.queue.queue_id}"
            record.acknowledged(send, 1.0, queue, result.queue_offset, 1)
    return record


async def test_messages_are_found_where_they_were_acknowledged_and_missed_where_they_are_not(
    namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = await sent(namesrv, "drill", 1, 3)
    record.sends[0].offset += 10  # a message that lies nowhere
    assert await still_in_log(namesrv, "drill", record) == {1, 2}
    assert record.troubles == []
    with monkeypatch.context() as patch:
        patch.setattr(traffic, "READ_LIMIT_S", -1.0)
        assert await still_in_log(namesrv, "drill", record) == {0, 1, 2}, "none of them is known to be lost"
    assert record.unread_count == 3
    assert "3 undelivered messages could not be looked for" in record.troubles[0]
    for send in record.sends[1:]:
        record.delivered(Delivery(send.number, 2.0, send.queue, send.offset))
    record.sends[0].offset -= 10
    assert await gone_from_log(namesrv, "drill", record) == frozenset()
    record.sends[2].offset += 10
    assert await gone_from_log(namesrv, "drill", record) == {2}
    record.sends[2].queue = "elsewhere/0"
    with pytest.raises(CommandError, match="could not be read at the end: 'elsewhere/0'"):
        await gone_from_log(namesrv, "drill", record)
    record.sends[2].queue = record.sends[1].queue
    record.deliveries.clear()
    assert await gone_from_log(namesrv, "drill", record) == frozenset(), "it counts as lost already"


async def test_every_undelivered_message_is_looked_for_however_many_they_are(namesrv: str) -> None:
    record = await sent(namesrv, "many", 2, 300)
    record.sends[7].offset, record.sends[250].queue = 900, "elsewhere/0"
    record.sends[260].offset = record.sends[258].offset  # another message lies there
    assert await still_in_log(namesrv, "many", record) == set(range(300)) - {7, 260}
    assert record.unread_count == 1 and "'elsewhere/0'" in record.troubles[0]
