"""Leaders die while messages wait: those that wait fire once and in time, open transactions are asked about."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from ledgermq.client import Admin
from ledgermq.message.record import Record, decode_record
from ledgermq.remoting.codec.codes import RequestCode
from tests.cluster.raw_desk import QUEUES, Desk, now_ms
from tests.limits import SLOWNESS, WAIT_S

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
Start = Callable[..., Any]
EXACT_MS = 10_000 * SLOWNESS
"""What a timer may be late by itself on a machine that is busy with a failover: far less than the next look at all."""


async def reached(desk: Desk, count: int) -> list[Record]:
    """The topic's messages, when there are so many."""
    async with asyncio.timeout(WAIT_S):
        while sum(await desk.ends()) < count:
            await asyncio.sleep(0.05)
    return await desk.records()


async def test_what_waits_fires_once_though_leaders_die_meanwhile(group: Any, eventually: Callable[..., None]) -> None:
    cluster = group
    desk = Desk(cluster, "waiting")
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic("waiting", queue_count=QUEUES)
    begin = now_ms() + 1500
    timers, levels = 300, 60
    for number in range(timers):
        due = begin + number * 30
        await desk.send(b"timer %d" % number, number % QUEUES, {"UNIQ_KEY": f"T{number}", "TIMER_DELIVER_MS": due})
        if number % 5 == 0:
            level = 1 if number % 2 else 2
            await desk.send(b"level %d" % number, number % QUEUES, {"UNIQ_KEY": f"L{number}", "DELAY": level})
    outages = []
    for part in (timers // 3, timers * 2 // 3):
        await reached(desk, part)
        outage_from = now_ms()
        await asyncio.to_thread(cluster.act, "kill", "leader")
        await desk.send(b"probe", 0, {"UNIQ_KEY": f"P{part}"})
        outages.append(now_ms() - outage_from)
        await asyncio.to_thread(cluster.act, "start", "dead")
        await asyncio.to_thread(eventually, lambda: cluster.has_roles(masters=1, slaves=2), "the node is back")
    records = await reached(desk, timers + levels + len(outages))
    found = Counter(record.body for record in records)
    wanted = [b"timer %d" % number for number in range(timers)] + [b"probe"] * len(outages)
    wanted += [b"level %d" % number for number in range(0, timers, 5)]
    assert found == Counter(wanted)
    digests = await asyncio.to_thread(cluster.cluster, "digest")
    assert len({node["sha256"] for node in digests["nodes"]}) == 1
    assert Counter(record.body for record in await desk.records()) == found
    fired = [record for record in records if record.body.startswith(b"timer")]
    late_ms = [record.store_timestamp - begin - 30 * int(record.body.split()[1]) for record in fired]
    assert min(late_ms) >= 0
    assert max(late_ms) <= max(outages) + EXACT_MS
    await desk.close()


async def test_a_new_leader_asks_about_open_transactions_and_repeats_none_that_is_decided(start: Start) -> None:
    quick = ("transactionCheckInterval=500", "transactionTimeOut=100", "transactionOpBatchInterval=60000")
    words = [word for setting in quick for word in ("--conf", setting)]
    cluster = await asyncio.to_thread(start, "--mode", "raft", *words)
    desk = Desk(cluster, "halves")
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic("halves", queue_count=QUEUES)
    for name in (b"decided", b"open"):
        properties = {"UNIQ_KEY": name.decode(), "TRAN_MSG": "true", "PGROUP": "g"}
        sent = await desk.send(name, 0, properties)
        if name == b"decided":
            fields = {"producerGroup": "g", "commitOrRollback": "8", "msgId": "decided"}
            fields["tranStateTableOffset"] = sent.ext["queueOffset"]
            fields["commitLogOffset"] = str(int(sent.ext["msgId"][-16:], 16))
            await desk.ask(RequestCode.END_TRANSACTION, fields)
    await asyncio.to_thread(cluster.act, "kill", "leader")
    beat = orjson.dumps({"clientID": "c", "producerDataSet": [{"groupName": "g"}], "consumerDataSet": []})
    await desk.ask(RequestCode.HEART_BEAT, {}, beat)
    async with asyncio.timeout(WAIT_S):
        while not desk.questions.asked:
            await asyncio.sleep(0.02)
    question = desk.questions.asked[-1]
    assert decode_record(bytes(question.body)).body == b"open"
    fields = {"producerGroup": "g", "commitOrRollback": "8", "msgId": "open", "fromTransactionCheck": "true"}
    fields |= {name: question.ext[name] for name in ("tranStateTableOffset", "commitLogOffset")}
    await desk.ask(RequestCode.END_TRANSACTION, fields)
    assert sorted(record.body for record in await reached(desk, 2)) == [b"decided", b"open"]
    assert {one.ext["msgId"] for one in desk.questions.asked} == {"open"}
    await desk.close()
