"""Timers of a pair of which one is RocketMQ's: what the master has delivered does not come again at its heir."""

import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError
from store.timer.checkpoint import TimerCheck
from tests.broker.conftest import send_fields
from tests.limits import WAIT_S
from tests.mixed.nodes import Node, Street, changed
from tests.mixed.test_java_brokers_here import copied, has_topic, registered
from tests.mixed.test_masters_and_slaves import log_of
from tests.mixed.traffic import brokers, create_topic

pytestmark = pytest.mark.long

Eventually = Callable[[Callable[[], Awaitable[bool]], str], Awaitable[None]]

NAME = "broker-t"
TOPIC = "Waits"
SLAVE = {"brokerRole": "SLAVE", "brokerId": 1}
MASTER = {"brokerRole": "ASYNC_MASTER", "recallMessageEnable": "true"}


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient()
    yield client
    await client.close()


async def test_our_slave_is_heir_of_rocketmqs_master(
    street: Street, eventually: Eventually, client: RemotingClient
) -> None:
    namesrv = street.our_nameserver()
    master = street.java_broker(NAME, namesrv, MASTER)
    slave = street.our_broker(NAME, namesrv, {**SLAVE, "haMasterProtocol": "rocketmq"})
    await inherit(eventually, client, namesrv, master, slave, late_s=60)


async def test_rocketmqs_slave_is_heir_of_our_master(
    street: Street, eventually: Eventually, client: RemotingClient
) -> None:
    namesrv = street.our_nameserver()
    master = street.our_broker(NAME, namesrv, {**MASTER, "haPlainSlaves": "127.0.0.1"})
    slave = street.java_broker(NAME, namesrv, SLAVE)
    await inherit(eventually, client, namesrv, master, slave, late_s=120)


async def inherit(
    eventually: Eventually, client: RemotingClient, namesrv: Node, master: Node, slave: Node, late_s: int
) -> None:
    """Some timers are delivered by the master, one is recalled there, and one is due when the slave is master.

    A master of RocketMQ's tells its progress every 30 s or so; its slave asks for the counts once a minute.
    """

    async def ask(node: Node, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
        return await client.request(node.address, Command(code, ext=fields or {}, body=body), WAIT_S)

    async def send(body: bytes, **timer: object) -> Command:
        waits = "".join(f"{name}\x01{value}\x02" for name, value in timer.items())
        fields = send_fields(TOPIC, e="0", g=str(now_ms()), i=f"UNIQ_KEY\x01{body.hex()}\x02{waits}")
        answer = await ask(master, RequestCode.SEND_MESSAGE_V2, fields, body)
        assert answer.code == 0, answer
        return answer

    async def waiting(node: Node) -> int:
        with contextlib.suppress(RemotingError):
            answer = await ask(node, RequestCode.GET_TIMER_METRICS)
            counts = json.loads(bytes(answer.body))["timingCount"]
            return int(counts.get(TOPIC, {"count": 0})["count"])
        return -1

    async def read_ms(node: Node) -> int:
        with contextlib.suppress(RemotingError):
            return TimerCheck.decode(bytes((await ask(node, RequestCode.GET_TIMER_CHECK_POINT)).body)).read_ms
        return 0

    async def both() -> bool:
        return (await brokers(namesrv)).get(NAME, {}).keys() == {0, 1}

    await eventually(both, "both are registered")
    await create_topic(namesrv, TOPIC)
    await eventually(lambda: has_topic(slave, b'"Waits"'), "the slave has the topic")

    soon = [b"timer soon %d" % number for number in range(3)]
    await send(soon[0], TIMER_DELAY_SEC=2)
    await send(soon[1], TIMER_DELAY_MS=2500)
    await send(soon[2], TIMER_DELIVER_MS=now_ms() + 3000)
    late_ms = now_ms() + late_s * 1000
    await send(b"timer late", TIMER_DELAY_SEC=late_s)
    handle = (await send(b"timer recalled", TIMER_DELAY_SEC=late_s)).ext["recallHandle"]
    recalled = await ask(
        master, RequestCode.RECALL_MESSAGE, {"topic": TOPIC, "recallHandle": handle, "producerGroup": "p"}
    )
    assert recalled.code == 0, recalled

    async def delivered() -> bool:
        return all(log_of(master).count(body) == 2 for body in soon)

    await eventually(delivered, "the master has delivered what was due soon")
    past_ms = now_ms()

    async def slave_knows() -> bool:
        return await read_ms(slave) > past_ms and await copied(master, slave)

    await eventually(slave_knows, "the slave knows how far the master has delivered timers")

    async def slave_counts() -> bool:
        return await waiting(master) == await waiting(slave) == 1

    await eventually(slave_counts, "both know that one timer waits")
    master.kill()
    slave.stop()
    changed(slave, {**MASTER, "brokerId": 0})
    slave.start()
    await eventually(lambda: registered(namesrv, NAME, slave), "the slave is master")

    async def is_delivered() -> bool:
        return log_of(slave).count(b"timer late") == 2

    await eventually(is_delivered, "the heir delivers what is due later")
    assert now_ms() >= late_ms

    async def is_past() -> bool:
        return await read_ms(slave) > late_ms + 1000

    await eventually(is_past, "the heir has delivered all that was due by then")
    log = log_of(slave)
    assert [log.count(body) for body in soon] == [2, 2, 2]
    assert log.count(b"timer late") == 2
    assert log.count(b"timer recalled") == 1


def now_ms() -> int:
    return time.time_ns() // 1_000_000
