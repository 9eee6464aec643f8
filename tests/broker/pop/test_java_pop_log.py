"""A log that RocketMQ's broker has written: what it gave by POP comes again, unless it was acknowledged."""

import json
import time
from typing import Any

import pytest

from tests.broker.conftest import Desk, MemoryClient, eventually, log_state, make_topic, send
from tests.broker.pop.support import CODE
from tests.broker.pop.test_pop_revive import revived

LOG = "rmq_sys_REVIVE_LOG_DefaultCluster"
GROUP = "CID_RMQ_SYS_REVIVE_GROUP"


@pytest.fixture(autouse=True)
async def taken(desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> int:
    """Four messages of which RocketMQ's broker gave three, a second ago, for half a second."""
    monkeypatch.setattr("broker.pop.java_log._ACKS_MS", 300)
    await make_topic(client, "T", 1)
    for body in (b"m0", b"m1", b"m2", b"m3"):
        await send(client, body)
    assert (await client.ask(CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g"}')).code == 0
    desk.parts.context.metadata.topic_for_group(LOG, 1)
    return time.time_ns() // 1_000_000 - 1000


async def write(client: MemoryClient, tags: str, pop_ms: int, **fields: Any) -> None:
    body = {"bn": "b", "c": "g", "t": "T", "q": 0, "so": 0, "pt": pop_ms, **fields}
    answer = await send(client, json.dumps(body).encode(), topic=LOG, i=f"UNIQ_KEY\x01k\x02TAGS\x01{tags}\x02")
    assert answer.code == 0, answer


def checkpoint(offsets: list[int], acked: int = 0) -> dict[str, Any]:
    return {"it": 500, "bm": acked, "n": len(offsets), "d": offsets, "ro": 0}


def lead(desk: Desk) -> None:
    desk.parts.on_role_change(log_state(writable=False, generation=8))
    desk.parts.on_role_change(log_state(writable=True, generation=9))


async def test_what_is_not_acknowledged_is_delivered_again_once(desk: Desk, client: MemoryClient, taken: int) -> None:
    await write(client, "ck", taken, **checkpoint([0, 1, 2]))
    await write(client, "ack", taken, ao=1)
    lead(desk)
    await eventually(lambda: len(revived(desk)) == 2)
    assert revived(desk) == [b"m0", b"m2"]
    assert desk.parts.context.offsets.get(LOG, GROUP, 0) == 1, "RocketMQ's position: of the last record read"
    lead(desk)
    await write(client, "ck", taken, **checkpoint([3]))
    await eventually(lambda: len(revived(desk)) == 3)
    assert revived(desk) == [b"m0", b"m2", b"m3"]


async def test_acknowledgements_of_many_messages_and_those_in_the_checkpoint_count(
    desk: Desk, client: MemoryClient, taken: int
) -> None:
    await write(client, "ck", taken, **checkpoint([0, 1, 2, 3], acked=0b1000))
    await write(client, "bAck", taken, aol=[0, 2])
    lead(desk)
    await eventually(lambda: bool(revived(desk)))
    assert revived(desk) == [b"m1"]


async def test_what_is_no_checkpoint_or_about_another_broker_is_passed_over(
    desk: Desk, client: MemoryClient, taken: int, caplog: pytest.LogCaptureFixture
) -> None:
    await write(client, "ck", taken, bn="other", **checkpoint([0]))
    await write(client, "ck", taken, it="?", n=1)
    await write(client, "ck", taken, it=1, n=1, d=list(range(2000)))
    await send(client, b"{", topic=LOG, i="UNIQ_KEY\x01k\x02TAGS\x01ck\x02")
    await write(client, "ck", taken, **checkpoint([3]))
    lead(desk)
    await eventually(lambda: bool(revived(desk)))
    assert revived(desk) == [b"m3"]
    assert sum("is ignored" in record.message for record in caplog.records) == 4
