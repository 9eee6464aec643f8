"""Leaders die while messages wait: delayed messages and timers fire once, open transactions are asked about."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest

from ledgermq.client import Admin
from ledgermq.message.record import decode_record, decode_records
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.command import Command
from ledgermq.remoting.errors import RemotingError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
Start = Callable[..., Any]
LIMIT_S = 60.0
TOPIC = "waiting"
QUEUES = 2


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Questions:
    """A producer's end: keeps the half messages that it is asked about."""

    def __init__(self) -> None:
        self.asked: list[Command] = []

    def on_connected(self, connection: object) -> None: ...

    def on_request(self, connection: object, command: Command) -> None:
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self.asked.append(command)

    def on_closed(self, connection: object) -> None: ...


class Desk:
    """Raw requests to whoever leads."""

    def __init__(self, cluster: Any) -> None:
        self.questions = Questions()
        self._cluster = cluster
        self._client = RemotingClient(self.questions)
        self._address = ""

    async def close(self) -> None:
        await self._client.close()

    async def leader(self) -> str:
        """Where the leader listens, once there is one."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                if masters := await asyncio.to_thread(self._cluster.nodes, "master"):
                    return str(masters[0]["address"])

    async def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
        """Ask until a leader answers with success."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                address = self._address or await self.leader()
                try:
                    answer = await self._client.request(address, Command(code, ext=ext, body=body))
                except RemotingError:
                    self._address = ""
                    continue
                if answer.code == 0:
                    self._address = address
                    return answer
                self._address = ""

    async def send(self, body: bytes, queue_id: int, properties: Mapping[str, object]) -> Command:
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        ext = {"a": "g", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": str(now_ms())}
        return await self.ask(RequestCode.SEND_MESSAGE_V2, ext | {"h": "0", "i": text, "j": "0", "k": "false"}, body)

    async def bodies(self) -> list[bytes]:
        """Bodies of all messages in the topic."""
        found: list[bytes] = []
        for queue_id in range(QUEUES):
            fields = {"topic": TOPIC, "queueId": str(queue_id)}
            answer = await self.ask(RequestCode.GET_MAX_OFFSET, fields)
            offset, end = 0, int(answer.ext["offset"])
            while offset < end:
                pulled = await self._pull(queue_id, offset)
                found += [record.body for record in decode_records(bytes(pulled.body))]
                offset = int(pulled.ext["nextBeginOffset"])
        return found

    async def _pull(self, queue_id: int, offset: int) -> Command:
        fields = {"consumerGroup": "TOOLS_CONSUMER", "topic": TOPIC, "queueId": str(queue_id)}
        fields |= {"queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0"}
        fields |= {"suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG"}
        return await self.ask(RequestCode.PULL_MESSAGE, fields)


async def reached(desk: Desk, count: int) -> list[bytes]:
    """The topic's messages, when there are so many."""
    async with asyncio.timeout(LIMIT_S):
        while len(found := await desk.bodies()) < count:
            await asyncio.sleep(0.05)
    return found


async def test_what_waits_fires_once_though_leaders_die_meanwhile(
    start: Start, eventually: Callable[..., None]
) -> None:
    cluster = await asyncio.to_thread(start, "--mode", "raft")
    desk = Desk(cluster)
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(TOPIC, queue_count=QUEUES)
    begin = now_ms() + 1500
    timers, levels = 300, 60
    for number in range(timers):
        due = begin + number * 30
        await desk.send(b"timer %d" % number, number % QUEUES, {"UNIQ_KEY": f"T{number}", "TIMER_DELIVER_MS": due})
        if number % 5 == 0:
            level = 1 if number % 2 else 2
            await desk.send(b"level %d" % number, number % QUEUES, {"UNIQ_KEY": f"L{number}", "DELAY": level})
    for part in (timers // 3, timers * 2 // 3):
        await reached(desk, part)
        await asyncio.to_thread(cluster.cluster, "kill", "leader")
        await desk.leader()
        await asyncio.to_thread(cluster.cluster, "start", "dead")
        await asyncio.to_thread(eventually, lambda: cluster.has_roles(masters=1, slaves=2), "the node is back")
    found = Counter(await reached(desk, timers + levels))
    wanted = [b"timer %d" % number for number in range(timers)]
    wanted += [b"level %d" % number for number in range(0, timers, 5)]
    assert found == Counter(wanted)
    digests = await asyncio.to_thread(cluster.cluster, "digest")
    assert len({node["sha256"] for node in digests["nodes"]}) == 1
    assert Counter(await desk.bodies()) == found
    await desk.close()


async def test_a_new_leader_asks_about_open_transactions_and_repeats_none_that_is_decided(start: Start) -> None:
    quick = ("transactionCheckInterval=500", "transactionTimeOut=100", "transactionOpBatchInterval=60000")
    words = [word for setting in quick for word in ("--conf", setting)]
    cluster = await asyncio.to_thread(start, "--mode", "raft", *words)
    desk = Desk(cluster)
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(TOPIC, queue_count=QUEUES)
    for name in (b"decided", b"open"):
        properties = {"UNIQ_KEY": name.decode(), "TRAN_MSG": "true", "PGROUP": "g"}
        sent = await desk.send(name, 0, properties)
        if name == b"decided":
            fields = {"producerGroup": "g", "commitOrRollback": "8", "msgId": "decided"}
            fields["tranStateTableOffset"] = sent.ext["queueOffset"]
            fields["commitLogOffset"] = str(int(sent.ext["msgId"][-16:], 16))
            await desk.ask(RequestCode.END_TRANSACTION, fields)
    await asyncio.to_thread(cluster.cluster, "kill", "leader")
    beat = orjson.dumps({"clientID": "c", "producerDataSet": [{"groupName": "g"}], "consumerDataSet": []})
    await desk.ask(RequestCode.HEART_BEAT, {}, beat)
    async with asyncio.timeout(LIMIT_S):
        while not desk.questions.asked:
            await asyncio.sleep(0.02)
    question = desk.questions.asked[-1]
    assert decode_record(bytes(question.body)).body == b"open"
    fields = {"producerGroup": "g", "commitOrRollback": "8", "msgId": "open", "fromTransactionCheck": "true"}
    fields |= {name: question.ext[name] for name in ("tranStateTableOffset", "commitLogOffset")}
    await desk.ask(RequestCode.END_TRANSACTION, fields)
    assert sorted(await reached(desk, 2)) == [b"decided", b"open"]
    assert {one.ext["msgId"] for one in desk.questions.asked} == {"open"}
    await desk.close()
