"""RocketMQ's master is away, and our slave is not: readers go on, and what waited at the master comes once."""

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ledgermq.client import MessageQueue, Producer
from ledgermq.message.record import decode_records
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError
from store.timer.checkpoint import TimerCheck
from tests.broker.conftest import send_fields
from tests.broker.pop.support import handle_fields, handles, pop_fields
from tests.limits import STRANGER_WAIT_S, WAIT_S
from tests.mixed.nodes import Node, Street, changed
from tests.mixed.test_java_brokers_here import copied, has_topic, registered
from tests.mixed.test_masters_and_slaves import log_of
from tests.mixed.traffic import brokers, consume, create_topic

pytestmark = pytest.mark.long

Eventually = Callable[[Callable[[], Awaitable[bool]], str], Awaitable[None]]

NAME = "broker-m"
ACTING = {"enableSlaveActingMaster": "true", "enableRemoteEscape": "true", "brokerHeartbeatInterval": 500}
FIRST = {"timerStopDequeue": "true", "transactionCheckInterval": 3_600_000}
"""However slow this machine is, the master delivers no timer and checks no half message before it is away."""
LATER = {"timerStopDequeue": "false", "transactionCheckInterval": 10_000}
TIMER_S = 5.0
TAKEN = {b"taken 0", b"taken 1", b"taken 2"}


class Pair:
    """RocketMQ's master, our slave, the master of another name, and our nameserver."""

    def __init__(self, street: Street, eventually: Eventually, client: RemotingClient) -> None:
        self._eventually = eventually
        self._client = client
        self.namesrv = street.our_nameserver({"supportActingMaster": "true", "notifyMinBrokerIdChanged": "true"})
        asks_slaves = {"brokerRole": "ASYNC_MASTER", "totalReplicas": 2}  # when it is back, with two or more only
        asks_slaves |= {"transactionTimeOut": 1000}
        self.master = street.java_broker(NAME, self.namesrv, {**ACTING, **FIRST, **asks_slaves})
        ours = {"brokerRole": "SLAVE", "brokerId": 1, "haMasterProtocol": "rocketmq", "slaveReadEnable": "true"}
        ours |= {"transactionTimeOut": 1000, "transactionCheckInterval": 500}
        ours |= {"haMasterAddress": f"127.0.0.1:{self.master.port + 1}"}
        self.slave = street.our_broker(NAME, self.namesrv, {**ACTING, **ours})
        self.other = street.our_broker("broker-o", self.namesrv)
        self.serving = self.master

    async def ask(self, node: Node, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        return await self._client.request(node.address, Command(code, ext=fields, body=body), WAIT_S)

    async def is_whole(self) -> bool:
        members = {NAME: {0: self.master.address, 1: self.slave.address}, "broker-o": {0: self.other.address}}
        return await brokers(self.namesrv) == members

    async def send(self, topic: str, body: bytes, properties: str = "", **fields: str) -> None:
        header = send_fields(topic, g=str(now_ms()), i=f"UNIQ_KEY\x01{body.hex()}\x02{properties}", **fields)
        answer = await self.ask(self.master, RequestCode.SEND_MESSAGE_V2, header, body)
        assert answer.code == 0, answer

    async def send_half(self, body: bytes) -> None:
        await self.send("Waits", body, "TRAN_MSG\x01true\x02PGROUP\x01producers\x02", f="4")

    async def slave_has_all(self) -> None:
        await self._eventually(lambda: copied(self.master, self.slave), "the slave has all messages")

    async def pop(self) -> Command:
        return await self.ask(self.serving, RequestCode.POP_MESSAGE, self._pop_fields)

    @property
    def _pop_fields(self) -> dict[str, str]:
        return pop_fields(consumerGroup="poppers", topic="Taken", queueId=0, invisibleTime=10_000, bornTime=now_ms())

    async def offset(self, node: Node, group: str, topic: str, queue: int = 0) -> int:
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}
        with contextlib.suppress(RemotingError):
            answer = await self.ask(node, RequestCode.QUERY_CONSUMER_OFFSET, fields)
            return int(answer.ext.get("offset", -1))
        return -1

    def has_saved(self, progress: str) -> bool:
        """Whether the master's file of consumer offsets has it."""
        path = self.master.home / "store" / "config" / "consumerOffset.json"
        return path.exists() and progress in "".join(path.read_text().split())

    async def timers_read_ms(self, node: Node) -> int:
        with contextlib.suppress(RemotingError):
            answer = await self.ask(node, RequestCode.GET_TIMER_CHECK_POINT, {})
            return TimerCheck.decode(bytes(answer.body)).read_ms
        return 0

    async def lose_master(self) -> None:
        await self.slave_has_all()
        self.master.kill()

    async def return_master(self) -> None:
        changed(self.master, LATER)
        self.master.start()
        await self._eventually(lambda: registered(self.namesrv, NAME, self.master), "the master is back")

    async def promote_slave(self) -> None:
        """By its configuration, as an operator does who gives the master up."""
        self.slave.stop()
        changed(self.slave, {"brokerRole": "ASYNC_MASTER", "brokerId": 0})
        self.slave.start()
        self.serving = self.slave
        await self._eventually(lambda: registered(self.namesrv, NAME, self.slave), "our slave is master")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
async def pair(street: Street, eventually: Eventually) -> AsyncIterator[Pair]:
    client = RemotingClient()
    pair = Pair(street, eventually, client)
    await eventually(pair.is_whole, "both replicas and the other master are registered")
    await create_topic(pair.namesrv, "Waits")
    await create_topic(pair.namesrv, "Taken")
    await eventually(lambda: has_topic(pair.slave, b'"Waits"'), "the slave has a topic")
    await eventually(lambda: has_topic(pair.slave, b'"Taken"'), "the slave has the other one")
    yield pair
    await client.close()


async def test_readers_go_on_at_our_slave(pair: Pair, eventually: Eventually) -> None:
    bodies = [b"%d" % number for number in range(20)]
    async with Producer(pair.namesrv.address, deadline_s=STRANGER_WAIT_S) as producer:
        queue = MessageQueue("Waits", NAME, 0)
        for body in bodies[:10]:
            await producer.send("Waits", body, queue=queue)
        assert await consume(pair.namesrv, "Waits", "readers", 10) == set(bodies[:10])

        async def slave_knows() -> bool:
            return await pair.offset(pair.slave, "readers", "Waits") == 10

        await eventually(slave_knows, "the slave has the group's progress")
        for body in bodies[10:]:
            await producer.send("Waits", body, queue=queue)
    await pair.lose_master()
    assert await consume(pair.namesrv, "Waits", "readers", 10) == set(bodies[10:])
    await pair.return_master()

    async def master_knows() -> bool:
        return await pair.offset(pair.master, "readers", "Waits") == 20

    await eventually(master_knows, "the master has the progress that was made at the slave")


@pytest.mark.parametrize("heir", ["the master", "our slave"])
async def test_messages_taken_by_pop_come_again_unless_they_were_acknowledged(
    pair: Pair, eventually: Eventually, heir: str
) -> None:
    for body in sorted(TAKEN):
        await pair.send("Taken", body)
    answer = await pair.pop()
    taken = decode_records(answer.body)
    assert {record.body for record in taken} == TAKEN
    handle = handles(answer)[0].replace(" b ", f" {NAME} ")
    first = handle_fields(handle, consumerGroup="poppers", topic="Taken")
    assert (await pair.ask(pair.master, RequestCode.ACK_MESSAGE, first)).code == 0

    async def progress_is_kept() -> bool:
        return pair.has_saved('"Taken@poppers":{0:3}') and await pair.offset(pair.slave, "poppers", "Taken") == 3

    await eventually(progress_is_kept, "the master has saved the group's progress, and the slave has it")
    await pair.lose_master()
    await (pair.promote_slave() if heir == "our slave" else pair.return_master())
    found: set[bytes] = set()

    async def came_again() -> bool:
        found.update(record.body for record in decode_records((await pair.pop()).body))
        return len(found) >= 2

    await eventually(came_again, "what was not acknowledged is delivered again")
    assert found == TAKEN - {taken[0].body}


async def test_timers_and_half_messages_that_our_slave_handed_on_do_not_come_twice(
    pair: Pair, eventually: Eventually
) -> None:
    due_ms = now_ms() + int(TIMER_S * 1000)
    await pair.send("Waits", b"a timer", f"TIMER_DELIVER_MS\x01{due_ms}\x02")
    await pair.send_half(b"a half message")
    await pair.lose_master()

    async def other_has_both() -> bool:
        return b"a timer" in log_of(pair.other) and b"a half message" in log_of(pair.other)

    await eventually(other_has_both, "the slave hands both to the other master")
    await pair.return_master()

    async def is_past() -> bool:
        return await pair.timers_read_ms(pair.master) > due_ms

    await eventually(is_past, "the master counts the timer as delivered")
    await pair.send_half(b"another one")

    async def is_checked() -> bool:
        return log_of(pair.master).count(b"another one") > 1

    await eventually(is_checked, "the master has checked its half messages")
    assert log_of(pair.master).count(b"a timer") == 1
    assert log_of(pair.master).count(b"a half message") == 1


async def test_a_slave_that_began_meanwhile_does_not_keep_the_master_away(pair: Pair, eventually: Eventually) -> None:
    await pair.lose_master()
    pair.slave.stop()
    pair.slave.start()

    async def stands_in() -> bool:
        return pair.slave.has_said("stands in for its master, which is away")

    await eventually(stands_in, "the slave stands in")
    await pair.return_master()

    async def stood_back() -> bool:
        return pair.slave.has_said("does not stand in for its master any more")

    await eventually(stood_back, "the slave stands back")
    await eventually(pair.is_whole, "all are registered")
