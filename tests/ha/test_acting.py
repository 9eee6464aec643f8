"""A slave stands in for its master: what waits is delivered by the master of another name, once."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import orjson
import pytest

from broker.acting.journal import Delivered, DeliveryJournal
from broker.acting.subsystem import ActingSubsystem
from broker.delay.deliveries import DeliveryKind
from ledgermq.message.record import decode_records
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.serving.listener import ListenerKeys
from ledgermq.remoting.signature import Credentials
from nameserver.config import NameServerConfig
from nameserver.server import NameServer
from node.broker_assembly import Broker
from store.timer.checkpoint import TimerCheck
from tests.broker.conftest import eventually, pull_fields, send_fields, topic_fields
from tests.broker.pop.support import pop_fields
from tests.broker.test_broker import ask
from tests.limits import SLOWNESS
from tests.node_config import node_config
from tests.ports import free_ports

MASTER, SLAVE, OTHER = range(3)
RETRY = "%RETRY%g_T"
LATER_MS = 1000


class Street:
    """A master and its slave, the master of another name, and a nameserver; brokers may be stopped and started."""

    def __init__(self, directory: Path, client: RemotingClient, namesrv: NameServer, **changes: object) -> None:
        self.client = client
        [port] = free_ports(1)
        common: dict[str, object] = {
            "bindAddress": "127.0.0.1",
            "healthHost": "127.0.0.1",
            "healthPort": 0,
            "mappedFileSizeCommitLog": 1 << 20,
            "maxMessageSize": 1 << 18,
            "slave_read": True,
            "namesrv_addrs": (namesrv.address,),
            "namesrv_heartbeat_interval_ms": 200,
            "enableSlaveActingMaster": True,
            "enableRemoteEscape": True,
            "syncBrokerMemberGroupPeriod": 100,
            "transactionCheckInterval": 100,
            "transactionTimeOut": 100,
            "transactionCheckMax": 100_000,
            **changes,
        }
        self._configs: list[dict[str, object]] = [
            {"brokerName": "m", "brokerRole": "ASYNC_MASTER", "haListenPort": port, "broker_id": 0},
            {"brokerName": "m", "brokerRole": "SLAVE", "haMasterAddress": f"127.0.0.1:{port}", "broker_id": 1},
            {"brokerName": "o", "broker_id": 0},
        ]
        for number, config in enumerate(self._configs):
            config |= common | {"storePathRootDir": directory / str(number)}
        self.brokers: list[Broker | None] = [None] * 3

    async def start(self, number: int) -> None:
        broker = self.brokers[number] = Broker(node_config(**self._configs[number]))
        await broker.start()
        broker.parts.acting.elsewhere.pause_s = 0.1

    def make_master(self, number: int) -> None:
        """By its configuration, from its next start on."""
        self._configs[number] |= {"brokerRole": "ASYNC_MASTER", "broker_id": 0}

    async def stop(self, number: int) -> None:
        broker, self.brokers[number] = self.brokers[number], None
        if broker is not None:
            await broker.close()

    def __getitem__(self, number: int) -> Broker:
        broker = self.brokers[number]
        assert broker is not None
        return broker

    async def make(self, number: int, topic: str) -> None:
        code, fields = RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic)
        assert (await ask(self.client, self[number], code, fields)).code == 0

    async def send(self, body: bytes, topic: str = "T", properties: str = "", **fields: str) -> None:
        key = f"UNIQ_KEY\x01{body.hex()}\x02"
        now = str(time.time_ns() // 1_000_000)
        header = send_fields(topic, i=key + properties, g=now, **fields)
        assert (await ask(self.client, self[MASTER], RequestCode.SEND_MESSAGE_V2, header, body)).code == 0

    async def bodies(self, number: int, topic: str = "T") -> list[bytes]:
        answer = await ask(self.client, self[number], RequestCode.PULL_MESSAGE, pull_fields(topic))
        return [record.body for record in decode_records(answer.body)]

    async def slave_has_all(self) -> None:
        logs = [self[number].parts.context.store for number in (MASTER, SLAVE)]
        await eventually(lambda: logs[1].dispatched_offset == logs[0].log.max_offset)


OpenStreet = Callable[..., Awaitable[Street]]


@pytest.fixture
async def open_street(tmp_path: Path) -> AsyncIterator[OpenStreet]:
    clients: list[RemotingClient] = []
    namesrv = NameServer(NameServerConfig(listener=ListenerKeys(host="127.0.0.1"), kv_config_path=tmp_path / "kv.json"))
    await namesrv.start()
    streets = []

    async def make(user: str = "", **changes: object) -> Street:
        signing = RemotingClient(credentials=Credentials(user, "secret-of-brokers") if user else None)
        clients.append(signing)
        street = Street(tmp_path, signing, namesrv, **changes)
        streets.append(street)
        for number in (MASTER, SLAVE, OTHER):
            await street.start(number)
        for number in (MASTER, OTHER):
            await street.make(number, "T")
        master = street[MASTER].parts
        await eventually(lambda: master.delay.timer._is_leading and master.transactions.service._is_ready)
        master.delay.stop()  # however slow this machine is, nothing is due before the master is away
        master.pop.revive.stop()
        master.transactions.stop()
        return street

    yield make
    for street in streets:
        for number in range(3):
            await street.stop(number)
    for client in clients:
        await client.close()
    await namesrv.close()


def later() -> str:
    return f"TIMER_DELIVER_MS\x01{time.time_ns() // 1_000_000 + LATER_MS}\x02"


async def test_what_waits_is_delivered_once_while_the_master_is_away(open_street: OpenStreet) -> None:
    street = await open_street()
    group = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    for number in (MASTER, OTHER):
        assert (await ask(street.client, street[number], group, {}, b'{"groupName":"g"}')).code == 0
    await street.send(b"taken")
    pop = pop_fields(consumerGroup="g", topic="T", invisibleTime=1000, bornTime=time.time_ns() // 1_000_000)
    assert (await ask(street.client, street[MASTER], RequestCode.POP_MESSAGE, pop)).code == 0
    await street.make(MASTER, "Here")
    await street.send(b"level", properties="DELAY\x011\x02")
    await street.send(b"timer", properties=later())
    await street.send(b"only here", "Here", properties=later())
    await street.send(b"half", properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02")
    await street.slave_has_all()
    await eventually(lambda: street[MASTER].parts.pop.progress.checkpoints.has_changes() is False)
    await street.slave_has_all()
    await street.stop(MASTER)

    slave, other = street[SLAVE].parts, street[OTHER].parts
    await eventually(lambda: slave.acting.elsewhere.stored == 4 and slave.acting.elsewhere.left > 0)
    assert sorted(await street.bodies(OTHER)) == [b"level", b"timer"]
    assert await street.bodies(OTHER, RETRY) == [b"taken"]
    await eventually(lambda: other.transactions.service.open_count == 1)
    assert slave.context.store.log.max_offset == slave.context.store.dispatched_offset, "a slave writes nothing"

    await street.start(MASTER)
    master = street[MASTER].parts
    await eventually(lambda: master.delay.timer.delivered == 1)
    assert await street.bodies(MASTER, "Here") == [b"only here"]
    assert not slave.context.role.stands_in
    await eventually(lambda: master.transactions.service._is_ready)
    await eventually(lambda: master.delay.levels._next.get(0) == 1)
    assert (master.transactions.service.open_count, master.pop.progress.checkpoints.next_due_ms) == (0, None)
    assert await street.bodies(MASTER) == [b"taken"]
    assert await street.bodies(MASTER, RETRY) == []


async def test_a_slave_tells_of_delay_levels_up_to_the_first_message_that_it_left(open_street: OpenStreet) -> None:
    street = await open_street()
    await street.make(MASTER, "Here")
    for topic, body in (("T", b"1"), ("T", b"2"), ("Here", b"only here"), ("T", b"4")):
        await street.send(body, topic, properties="DELAY\x011\x02")
    await street.slave_has_all()
    told = orjson.loads((await ask(street.client, street[SLAVE], RequestCode.GET_ALL_DELAY_OFFSET, {})).body)
    assert (told["offsetTable"], told["dataVersion"]["counter"]) == ({}, 0)
    await street.stop(MASTER)
    elsewhere = street[SLAVE].parts.acting.elsewhere
    await eventually(lambda: elsewhere.stored == 3 and elsewhere.left > 0)
    for _ in range(2):  # a process that has notes only tells the same
        answer = await ask(street.client, street[SLAVE], RequestCode.GET_ALL_DELAY_OFFSET, {})
        told = orjson.loads(bytes(answer.body).replace(b"{1:", b'{"1":'))
        assert told["offsetTable"] == {"1": 2}
        assert told["dataVersion"]["counter"] > 10**12, "RocketMQ's master believes the higher version"
        steps = street[SLAVE].parts.delay.levels.all_offsets(Mock(), Command(RequestCode.GET_ALL_DELAY_OFFSET))
        assert len(list(steps)) == 3 + 2, "half a million notes do not hold up the loop"
        await street.stop(SLAVE)
        await street.start(SLAVE)


async def test_a_slave_tells_of_timers_up_to_the_first_that_it_left(open_street: OpenStreet) -> None:
    street = await open_street(recallMessageEnable=True)
    await street.make(MASTER, "Here")
    first_ms = time.time_ns() // 1_000_000 + round(2000 * SLOWNESS)  # the one that is recalled must not be due before
    due = {b"recalled": first_ms, b"1": first_ms, b"2": first_ms + 1000, b"left": first_ms + 2000}
    for body, at_ms in due.items():
        await street.send(body, "Here" if body == b"left" else "T", f"TIMER_DELIVER_MS\x01{at_ms}\x02")
    key = b"recalled".hex()
    words = " ".join(("v1", "T", "m", str((due[b"recalled"] - 1) // 1000 * 1000 + 1), key))
    fields = {"topic": "T", "recallHandle": base64.urlsafe_b64encode(words.encode()).decode()}
    assert (await ask(street.client, street[MASTER], RequestCode.RECALL_MESSAGE, fields)).code == 0
    await street.slave_has_all()
    await street.stop(MASTER)
    elsewhere = street[SLAVE].parts.acting.elsewhere
    await eventually(lambda: elsewhere.stored == 2 and elsewhere.left == 1)
    for _ in range(2):  # a process that has notes only tells the same
        answer = await ask(street.client, street[SLAVE], RequestCode.GET_TIMER_CHECK_POINT, {})
        told = TimerCheck.decode(bytes(answer.body))
        assert told.read_ms == (due[b"left"] - 1) // 1000 * 1000, "the slot of the one that is left"
        assert told.counter > 10**12, "RocketMQ's master believes the higher version"
        index = street[SLAVE].parts.delay.timer.index
        with patch.object(index, "queue_offset", index.queue_offset - 1):  # one is not in the index yet
            answer = await ask(street.client, street[SLAVE], RequestCode.GET_TIMER_CHECK_POINT, {})
            assert TimerCheck.decode(bytes(answer.body)).read_ms == index.read_ms, "it may be due"
        await street.stop(SLAVE)
        await street.start(SLAVE)


@pytest.mark.parametrize("first_heard", [False, True])
async def test_a_slave_keeps_for_rocketmqs_master_which_half_messages_it_handed_on(
    open_street: OpenStreet, first_heard: bool
) -> None:
    street = await open_street()
    await street.make(MASTER, "Here")
    for topic, body in (("T", b"1"), ("T", b"2"), ("Here", b"only here"), ("T", b"4")):
        await street.send(body, topic, "TRAN_MSG\x01true\x02PGROUP\x01p\x02")
    await street.slave_has_all()
    acting, offsets = street[SLAVE].parts.acting, street[SLAVE].parts.context.offsets
    acting._follows_rocketmq = True
    await street.stop(MASTER)
    await eventually(lambda: acting.elsewhere.stored == 3 and acting.elsewhere.left == 1)
    if first_heard:  # the stream from the master begins before the slave asks for it
        with patch.object(acting._routes, "members", return_value=[]):
            street[SLAVE].parts.leadership.take(street[SLAVE].parts.context.store.log.state)
            await street.start(MASTER)
    else:
        await street.start(MASTER)
    await eventually(lambda: offsets.get("RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS", 0) == 2)
    assert not street[SLAVE].parts.context.role.stands_in


async def test_a_slave_does_not_stand_in_by_what_it_asked_before_the_master_said_that_it_is_back(
    open_street: OpenStreet,
) -> None:
    street = await open_street(syncBrokerMemberGroupPeriod=3_600_000)
    acting, may_go_on, answers = street[SLAVE].parts.acting, asyncio.Event(), iter((False, True))

    async def members() -> list[dict[int, str]]:
        return [{1: street[SLAVE].address}]

    async def master_answers() -> bool:
        answer = next(answers)
        if not answer:
            await may_go_on.wait()
        return answer

    with patch.object(acting._routes, "members", members), patch.object(acting, "_master_answers", master_answers):
        acting.look()
        await asyncio.sleep(0)
        before = asyncio.all_tasks()
        code = RequestCode.EXCHANGE_BROKER_HA_INFO
        assert (await ask(street.client, street[SLAVE], code, {})).code == 0
        may_go_on.set()
        await eventually(lambda: not any("_look" in repr(task.get_coro()) for task in before if not task.done()))
    assert not street[SLAVE].parts.context.role.stands_in


async def test_a_slave_says_that_rocketmqs_master_may_go_on_when_it_has_all_of_its_log(
    open_street: OpenStreet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.acting.subsystem._COPIES_S", 60 * SLOWNESS)
    street = await open_street()
    await street.send(b"0")
    await street.slave_has_all()
    end = street[MASTER].parts.context.store.log.max_offset
    code, fields = RequestCode.EXCHANGE_BROKER_HA_INFO, {"masterFlushOffset": str(end + 1)}
    assert (await ask(street.client, street[SLAVE], code, {"masterFlushOffset": str(end)})).code == 0
    settled = street[SLAVE].parts.acting.elsewhere.settled
    with patch.object(street[SLAVE].parts.acting.elsewhere, "settled", side_effect=settled) as settling:
        answer = asyncio.ensure_future(ask(street.client, street[SLAVE], code, fields))
        await eventually(lambda: settling.call_count == 1)
    await ask(street.client, street[SLAVE], RequestCode.GET_BROKER_HA_STATUS, {})
    assert not answer.done(), "timers that it lacks would be passed over by the time that it tells"
    await street.send(b"timer", properties=later())
    assert (await answer).code == 0
    assert street[SLAVE].parts.context.store.dispatched_offset > end


async def test_rocketmqs_master_asks_again_while_a_slave_copies_and_is_not_kept_away_by_one_that_does_not(
    open_street: OpenStreet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.acting.subsystem._COPIES_S", 0.2)
    street = await open_street()
    await street.slave_has_all()
    code, fields = RequestCode.EXCHANGE_BROKER_HA_INFO, {"masterFlushOffset": str(1 << 40)}
    assert (await ask(street.client, street[SLAVE], code, fields)).code == 0, "nothing arrives"

    has_copied, store = ActingSubsystem._has_copied, street[SLAVE].parts.context.store

    async def copy_meanwhile(acting: ActingSubsystem, *asked: Any) -> bool:
        answer = asyncio.ensure_future(has_copied(acting, *asked))
        await asyncio.sleep(0)
        before = store.dispatched_offset
        await street.send(b"0")
        await eventually(lambda: store.dispatched_offset > before)
        return await answer

    monkeypatch.setattr(ActingSubsystem, "_has_copied", copy_meanwhile)
    monkeypatch.setattr("broker.acting.subsystem._COPIES_S", 2.0 * SLOWNESS)
    assert (await ask(street.client, street[SLAVE], code, fields)).code == ResponseCode.SYSTEM_BUSY


async def test_of_many_requests_of_masters_that_are_back_few_wait_and_all_are_answered(
    open_street: OpenStreet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.acting.subsystem._RETURNING_MAX", 3)
    monkeypatch.setattr("broker.acting.subsystem._COPIES_S", 60 * SLOWNESS)
    street = await open_street()
    await street.slave_has_all()
    end = street[MASTER].parts.context.store.log.max_offset
    code, fields = RequestCode.EXCHANGE_BROKER_HA_INFO, {"masterFlushOffset": str(end + 1)}
    for _ in range(2):  # those that are answered make room
        waiting = [asyncio.ensure_future(ask(street.client, street[SLAVE], code, fields)) for _ in range(3)]
        await eventually(lambda: street[SLAVE].parts.acting._returning_count == 3)
        assert (await ask(street.client, street[SLAVE], code, fields)).code == ResponseCode.SYSTEM_BUSY
        await street.send(b"more")
        assert {(await answer).code for answer in waiting} == {0}
        await street.slave_has_all()
        fields = {"masterFlushOffset": str(street[MASTER].parts.context.store.log.max_offset + 1)}


async def test_a_slave_leaves_rocketmqs_log_of_pop_to_the_master(open_street: OpenStreet) -> None:
    street = await open_street()
    elsewhere = street[SLAVE].parts.acting.elsewhere
    elsewhere.open(street[SLAVE].parts.delay.deliveries)
    draft = Mock(topic=b"rmq_sys_REVIVE_LOG_DefaultCluster")
    with patch.object(elsewhere._routes, "masters_of", side_effect=AssertionError("another master is looked for")):
        elsewhere.deliver(DeliveryKind.TIMER, [draft], lambda _: None)
        await eventually(lambda: elsewhere.left == 1)


async def test_what_a_slave_had_not_sent_yet_is_sent_once_when_it_stands_in_again(
    open_street: OpenStreet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.acting.routes._FRESH_S", 0)
    street = await open_street(syncBrokerMemberGroupPeriod=3_600_000)
    await street.make(MASTER, "Here")
    await street.send(b"timer", "Here", later())
    await street.slave_has_all()
    await street.stop(MASTER)
    slave = street[SLAVE].parts
    slave.acting.elsewhere.pause_s = 0.5
    slave.acting._stand_in()
    await eventually(lambda: slave.delay.deliveries._under_way_elsewhere == 1)
    slave.leadership.stand_back()
    await street.make(OTHER, "Here")
    slave.acting._stand_in()
    await eventually(lambda: slave.acting.elsewhere.stored > 0)
    await asyncio.sleep(3 * slave.acting.elsewhere.pause_s)
    assert await street.bodies(OTHER, "Here") == [b"timer"]


async def test_many_who_say_that_they_are_the_master_cost_few_looks_at_the_nameserver(open_street: OpenStreet) -> None:
    street = await open_street(syncBrokerMemberGroupPeriod=3_600_000)
    acting, looks, may_look = street[SLAVE].parts.acting, list[int](), asyncio.Event()

    async def members() -> list[dict[int, str]]:
        looks.append(1)
        await may_look.wait()
        return []

    def tasks() -> int:
        return sum("_answer_returning" in repr(task.get_coro()) for task in asyncio.all_tasks())

    table = street[SLAVE].parts.handler._table
    served, code = list[Command](), RequestCode.EXCHANGE_BROKER_HA_INFO
    exchange = acting.exchange_ha_info

    def count(connection: Connection, command: Command) -> None:
        served.append(command)
        exchange(connection, command)

    with patch.object(acting._routes, "members", members), patch.dict(table, {code: count}):
        asked = [ask(street.client, street[SLAVE], code, {}) for _ in range(20)]
        answers = asyncio.gather(*asked)
        for _ in range(20):
            await street.client.oneway(street[SLAVE].address, Command(code))
        await eventually(lambda: len(served) == 40)
        assert tasks() <= 2
        may_look.set()
        assert {answer.code for answer in await answers} == {0}
    assert len(looks) < 5  # two, and those of notices of a nameserver


async def test_a_slave_that_stands_in_and_is_started_again_repeats_nothing(open_street: OpenStreet) -> None:
    street = await open_street()
    await street.send(b"timer", properties=later())
    await street.slave_has_all()
    await street.stop(MASTER)
    await eventually(lambda: street[SLAVE].parts.acting.elsewhere.stored == 1)
    await street.stop(SLAVE)
    await street.start(SLAVE)
    slave = street[SLAVE].parts
    await eventually(lambda: slave.context.role.stands_in and slave.delay.timer._is_leading)
    await eventually(lambda: slave.delay.timer._due.loaded_ms > time.time_ns() // 1_000_000)
    assert (slave.acting.elsewhere.stored, len(slave.delay.timer._due)) == (0, 0)
    assert await street.bodies(OTHER) == [b"timer"]


async def test_a_slave_that_is_made_master_delivers_what_it_has_not_delivered(open_street: OpenStreet) -> None:
    street = await open_street()
    await street.make(MASTER, "Here")
    await street.make(MASTER, "Plain")
    for body in (b"0", b"1"):
        await street.send(body, "Plain")
    await street.send(b"timer", properties=later())
    await street.send(b"only here", "Here", properties=later())
    await street.slave_has_all()
    await street.stop(MASTER)
    elsewhere = street[SLAVE].parts.acting.elsewhere
    await eventually(lambda: elsewhere.stored == 1 and elsewhere.left > 0)
    await street.stop(SLAVE)
    street.make_master(SLAVE)
    await street.start(SLAVE)
    promoted = street[SLAVE].parts
    await eventually(lambda: promoted.delay.timer.delivered == 1)
    assert (await street.bodies(SLAVE, "Here"), await street.bodies(SLAVE)) == ([b"only here"], [])
    sent = await ask(street.client, street[SLAVE], RequestCode.SEND_MESSAGE_V2, send_fields("Plain"), b"2")
    assert sent.ext["queueOffset"] == "2", "behind the messages of the master before"


async def test_without_escape_a_slave_locks_queues_and_delivers_nothing(open_street: OpenStreet) -> None:
    street = await open_street(enableRemoteEscape=False)
    told = await ask(street.client, street[MASTER], RequestCode.EXCHANGE_BROKER_HA_INFO, {})
    assert told.ext.keys() == {"masterAddress", "masterFlushOffset", "masterHaAddress"}
    assert told.ext["masterAddress"] == street[MASTER].address
    queue = {"topic": "T", "brokerName": "m", "queueId": 0}
    lock = orjson.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": [queue]})
    assert (await ask(street.client, street[SLAVE], RequestCode.LOCK_BATCH_MQ, {}, lock)).code != 0
    await street.send(b"timer", properties=later())
    await street.slave_has_all()
    await street.stop(MASTER)
    slave = street[SLAVE].parts
    await eventually(lambda: slave.context.role.stands_in)
    answer = await ask(street.client, street[SLAVE], RequestCode.LOCK_BATCH_MQ, {}, lock)
    assert (answer.code, orjson.loads(answer.body)) == (0, {"lockOKMQSet": [queue]})
    assert not slave.delay.timer._is_leading
    await street.start(MASTER)
    await eventually(lambda: street[MASTER].parts.delay.timer.delivered == 1)
    await eventually(lambda: not slave.context.role.stands_in)
    assert await street.bodies(MASTER) == [b"timer"]


async def test_where_users_are_checked_a_slave_signs_what_it_sends(open_street: OpenStreet) -> None:
    inner = '{"accessKey":"inner","secretKey":"secret-of-brokers"}'
    street = await open_street(
        authenticationEnabled=True,
        authorizationEnabled=True,
        plainPasswords=True,
        innerClientAuthenticationCredentials=inner,
        user="inner",
    )
    await street.send(b"timer", properties=later())
    await street.slave_has_all()
    await street.stop(MASTER)
    await eventually(lambda: street[SLAVE].parts.acting.elsewhere.stored == 1)


def test_the_journal_outlives_a_torn_line_a_trim_and_a_cut(tmp_path: Path) -> None:
    path, entries = tmp_path / "standInDeliveries", [Delivered(1, at, 5, 6, "T") for at in (100, 200, 300)]
    journal = DeliveryJournal(path, lambda: 0)
    journal.load()
    for entry in entries:
        journal.add(entry)
    with path.open("ab") as file:
        file.write(b"[1,400,")
    reader = DeliveryJournal(path, lambda: 150)
    reader.load()
    assert reader.entries == entries[1:], "what the log has dropped is forgotten"
    reader.cut(300)
    again = DeliveryJournal(path, lambda: 0)
    again.load()
    assert again.entries == [entries[1]]


def test_a_full_journal_takes_entries_again_when_the_log_has_dropped_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.acting.journal.ENTRIES_MAX", 3)
    first = 0
    journal = DeliveryJournal(tmp_path / "standInDeliveries", lambda: first)
    journal.load()
    entries = [Delivered(1, at, 5, 6, "T") for at in (100, 200, 300)]
    for entry in entries:
        assert journal.make_room()
        journal.add(entry)
    assert not journal.make_room()
    first = 150
    assert journal.make_room()
    journal.add(entries[0]._replace(origin=400))
    assert not journal.make_room()
    again = DeliveryJournal(tmp_path / "standInDeliveries", lambda: 0)
    again.load()
    assert [entry.origin for entry in again.entries] == [200, 300, 400]


async def test_a_master_believes_no_note_about_another_log(open_street: OpenStreet) -> None:
    street = await open_street()
    await street.send(b"timer", properties=later())
    await street.slave_has_all()
    await street.stop(MASTER)
    await eventually(lambda: street[SLAVE].parts.acting.elsewhere.stored == 1)
    journal = street[SLAVE].parts.acting._journal
    journal.entries = [entry._replace(born_ms=entry.born_ms - 1) for entry in journal.entries]
    await street.start(MASTER)
    await eventually(lambda: street[MASTER].parts.delay.timer.delivered == 1)


async def test_a_master_does_not_wait_for_ever_for_a_slave_that_does_not_answer(
    open_street: OpenStreet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    street = await open_street()
    await street.send(b"timer", properties=later())
    await street.slave_has_all()
    monkeypatch.setattr("broker.acting.hand_back._WAIT_S", 0.5)
    await street.stop(MASTER)
    street[SLAVE].parts.passing._requests.own = {}
    await street.start(MASTER)
    await eventually(lambda: street[MASTER].parts.delay.timer.delivered == 1)
    assert "without the answer of every slave that delivered" in caplog.text


async def test_a_master_that_leads_anew_does_not_deliver_before_its_last_scan_is_done(
    open_street: OpenStreet, monkeypatch: pytest.MonkeyPatch
) -> None:
    street = await open_street()
    parts = street[MASTER].parts
    leadership, deliveries, state = parts.leadership, parts.delay.deliveries, parts.context.store.log.state
    answered, scans, resumed = asyncio.Event(), list[Callable[[], None]](), list[bool]()

    async def ask_slaves() -> None:
        await answered.wait()

    def scan(then: Callable[[], None]) -> None:
        deliveries.stop()
        scans.append(then)

    monkeypatch.setattr(leadership, "ask_slaves", ask_slaves)
    monkeypatch.setattr(leadership, "_resume", lambda: resumed.append(True))
    monkeypatch.setattr(deliveries, "scan", scan)
    leadership.take(state)
    scans.pop()()
    await asyncio.sleep(0)
    leadership.take(state)
    answered.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert resumed == []
    scans.pop()()
    await eventually(lambda: resumed == [True])


async def test_a_slave_has_few_messages_under_way_at_once(
    open_street: OpenStreet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.delay.deliveries.ELSEWHERE_MAX", 4)
    street = await open_street()
    await street.make(MASTER, "Here")
    for number in range(10):
        await street.send(b"half %d" % number, "Here", "TRAN_MSG\x01true\x02PGROUP\x01p\x02")
    await street.slave_has_all()
    deliveries, elsewhere = street[SLAVE].parts.delay.deliveries, street[SLAVE].parts.acting.elsewhere
    counts, deliver = list[int](), elsewhere.deliver

    def noted(*what: Any) -> None:
        counts.append(deliveries._under_way_elsewhere)
        deliver(*what)

    monkeypatch.setattr(elsewhere, "deliver", noted)
    await street.stop(MASTER)
    await eventually(lambda: elsewhere.left == 10)
    assert (len(counts), max(counts)) == (10, 4)
