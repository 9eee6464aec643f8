"""Clients that ask a follower of a Raft group: the leader serves them as if they had asked itself."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import orjson
import pytest

from broker.admin.transfer import TRANSFER_LEADERSHIP
from broker.groups.subscription_refresh import AGAIN_SECONDS
from broker.passing import pass_on, subsystem
from broker.passing.runs import SendRun
from broker.passing.subsystem import PassingSubsystem
from broker.server import BrokerRequestHandler
from ledgermq.message.batch import encode_batch
from ledgermq.message.flags import TRANSACTION_COMMIT
from ledgermq.message.ids import parse_offset_message_id
from ledgermq.message.record import Record, decode_records
from ledgermq.remoting.client import NoRequests, RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import BINARY_HEADER, Command
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.route import MessageQueue
from node.broker_assembly import Broker
from tests.broker.conftest import eventually, pull_fields, send_fields, topic_fields
from tests.broker.groups.test_offsets import key
from tests.broker.pop.support import handle_fields, handles, pop_fields
from tests.broker.pull.test_query import query_fields
from tests.broker.test_broker import ask
from tests.broker.test_raft_brokers import Group, group
from tests.limits import WAIT_S

__all__ = ["group"]


async def make_topic(group: Group, name: str = "T", queues: int = 1) -> None:
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(name, queues))


async def stored(group: Group, topic: str = "T") -> list[Record]:
    pulled = await group.ask_leader(RequestCode.PULL_MESSAGE, pull_fields(topic))
    return list(decode_records(pulled.body))


AGAIN = ("busy", "not-leader", "no-quorum", "recovering")
"""Why a leader refuses to hand over for now: the last hand-over goes on, or was given up and its entries wait."""


async def hand_over_somewhere(client: RemotingClient, old: Broker) -> None:
    """Let another member lead; where much else runs, a hand-over may be given up, and is asked for again."""
    async with asyncio.timeout(WAIT_S):
        while old.parts.context.role.leader_elsewhere is None:
            if old.parts.context.role.writable:
                answer = await ask(client, old, TRANSFER_LEADERSHIP, {})
                assert answer.code == 0 or answer.ext["cause"] in AGAIN, answer
            await asyncio.sleep(0.001)


async def test_every_kind_of_send_to_a_follower_is_stored_by_the_leader(group: Group) -> None:
    await make_topic(group)
    one, other = group.followers
    long_names = {
        "producerGroup": "p",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": "UNIQ_KEY\x01L\x02",
        "reconsumeTimes": "0",
        "unitMode": "false",
    }
    batch = encode_batch((0, body, b"UNIQ_KEY\x01%b\x02" % body) for body in (b"b0", b"b1"))
    answers = [
        await ask(group.client, one, RequestCode.SEND_MESSAGE, long_names, b"v1"),
        await ask(group.client, other, RequestCode.SEND_MESSAGE_V2, send_fields(), b"v2"),
        await ask(group.client, one, RequestCode.SEND_BATCH_MESSAGE, send_fields(m="true"), batch),
        await group.client.request(
            other.address,
            Command(RequestCode.SEND_MESSAGE_V2, ext=send_fields(), body=b"binary", header_type=BINARY_HEADER),
            5,
        ),
    ]
    assert [answer.code for answer in answers] == [0, 0, 0, 0]
    assert [answer.ext["queueOffset"] for answer in answers] == ["0", "1", "2", "4"]
    await group.client.oneway(one.address, Command(RequestCode.SEND_MESSAGE_V2, ext=send_fields(), body=b"oneway"))
    leader = group.leader
    await eventually(lambda: leader.parts.context.store.queues.get("T", 0).max_offset == 6, "the one-way send too")
    assert [record.body for record in await stored(group)] == [b"v1", b"v2", b"b0", b"b1", b"binary", b"oneway"]
    host, _ = parse_offset_message_id(answers[1].ext["msgId"])
    assert str(host) == leader.address


async def test_the_address_of_the_sender_is_kept(group: Group) -> None:
    await make_topic(group)
    senders = [RemotingClient(), RemotingClient()]
    for sender in senders:
        assert (await ask(sender, group.followers[0], RequestCode.SEND_MESSAGE_V2, send_fields(), b"x")).code == 0
    own = [(await sender.connection(group.followers[0].address)).local_address for sender in senders]
    assert [str(record.born_host) for record in await stored(group)] == own
    for sender in senders:
        await sender.close()


async def test_sends_that_are_passed_on_as_they_came_keep_their_sender_and_answers(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(group)
    runs: list[int] = []
    command_of = SendRun.command

    def noted(run: SendRun) -> Command:
        runs.append(len(run.sends))
        return command_of(run)

    monkeypatch.setattr(SendRun, "command", noted)
    senders = [RemotingClient(), RemotingClient()]
    for _ in range(10):  # behind these, numbers of requests have as many digits as most
        for sender in senders:
            await ask(sender, group.followers[0], RequestCode.GET_BROKER_RUNTIME_INFO, {})
    asked: list[tuple[str, bytes, Command]] = []
    answers: dict[bytes, Command | RemotingError] = {}
    for number in range(200):
        connection = await senders[number // 10 % 2].connection(group.followers[0].address)
        body = b"%d" % number
        fields = send_fields(i=f"UNIQ_KEY\x01K{number:04}\x02WAIT\x01true\x02")
        command = Command(RequestCode.SEND_MESSAGE_V2, ext=fields, body=body)
        connection.call(command, 5, partial(answers.__setitem__, body))
        asked.append((connection.local_address, body, command))
    await eventually(lambda: len(answers) == 200, "all are answered")
    assert sum(runs) > 100 > 4 * len(runs), "most are passed on in runs, as they came"
    records: dict[bytes, Record] = {}
    while len(records) < 200:
        pulled = await group.ask_leader(RequestCode.PULL_MESSAGE, pull_fields(offset=len(records)))
        records |= {bytes(record.body): record for record in decode_records(pulled.body)}
    for own, body, command in asked:
        answer, record = answers[body], records[body]
        assert isinstance(answer, Command)
        assert (answer.code, answer.opaque) == (0, command.opaque)
        assert (str(record.born_host), record.born_timestamp) == (own, 1_700_000_000_000)
        assert answer.ext["queueOffset"] == str(record.queue_offset)
        assert answer.ext["transactionId"] == f"K{int(body):04}"
    for sender in senders:
        await sender.close()


async def test_many_sends_of_one_turn_stay_in_order(group: Group) -> None:
    await make_topic(group)
    connection = await group.client.connection(group.followers[0].address)
    answers: list[Any] = []
    for number in range(500):
        command = Command(RequestCode.SEND_MESSAGE_V2, ext=send_fields(), body=b"%d" % number)
        connection.call(command, 5, answers.append)
    await eventually(lambda: len(answers) == 500, "all are answered")
    assert [answer.ext["queueOffset"] for answer in answers] == [str(number) for number in range(500)]
    bodies: list[bytes] = []
    while len(bodies) < 500:
        pulled = await group.ask_leader(RequestCode.PULL_MESSAGE, pull_fields(offset=len(bodies)))
        bodies += [record.body for record in decode_records(pulled.body)]
    assert bodies == [b"%d" % number for number in range(500)]


async def test_what_else_only_the_leader_serves_is_passed_on(group: Group) -> None:
    await make_topic(group)
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g"}')
    follower = group.followers[0]
    assert (await ask(group.client, follower, RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="7"))).code == 0
    offset = await ask(group.client, group.followers[1], RequestCode.QUERY_CONSUMER_OFFSET, key())
    assert offset.ext == {"offset": "7"}
    queue = {"topic": "T", "brokerName": "b", "queueId": 0}
    lock = {"consumerGroup": "g", "clientId": "one", "mqSet": [queue]}
    locked = await ask(group.client, follower, RequestCode.LOCK_BATCH_MQ, {}, orjson.dumps(lock))
    assert orjson.loads(locked.body) == {"lockOKMQSet": [queue]}
    refused = await group.ask_leader(RequestCode.LOCK_BATCH_MQ, {}, orjson.dumps({**lock, "clientId": "other"}))
    assert orjson.loads(refused.body) == {"lockOKMQSet": []}
    assert (await ask(group.client, follower, RequestCode.UNLOCK_BATCH_MQ, {}, orjson.dumps(lock))).code == 0
    assert (await ask(group.client, follower, RequestCode.SEND_MESSAGE_V2, send_fields(), b"again")).code == 0
    back = {"group": "g", "offset": str((await stored(group))[0].physical_offset), "delayLevel": "1"}
    assert (await ask(group.client, follower, RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
    await eventually(lambda: group.leader.parts.context.metadata.topic("%RETRY%g") is not None)


async def test_messages_taken_by_pop_are_acknowledged_through_a_follower(group: Group) -> None:
    def opened() -> int:
        taken = group.leader.parts.context.state.pop.checkpoints.values()
        return sum(len(checkpoint.open_offsets) for checkpoint in taken)

    await make_topic(group)
    for body in (b"acked", b"hidden for longer"):
        await group.ask_leader(RequestCode.SEND_MESSAGE_V2, send_fields(), body)
    taken = await group.ask_leader(RequestCode.POP_MESSAGE, pop_fields(queueId=0, bornTime=time.time_ns() // 1_000_000))
    first, second = handles(taken)
    follower = group.followers[0]
    await eventually(lambda: opened() == 2)
    assert (await ask(group.client, follower, RequestCode.ACK_MESSAGE, handle_fields(first))).code == 0
    await eventually(lambda: opened() == 1)
    longer = handle_fields(second, invisibleTime=90_000)
    changed = await ask(group.client, follower, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, longer)
    assert (changed.code, changed.ext["invisibleTime"]) == (0, "90000")


async def test_offsets_are_reset_through_a_follower(group: Group) -> None:
    await make_topic(group)
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g"}')
    for body in (b"0", b"1"):
        await group.ask_leader(RequestCode.SEND_MESSAGE_V2, send_fields(), body)
    reset = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true", "offset": "1", "queueId": "0"}
    follower = group.followers[0]
    assert (await ask(group.client, follower, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == 0
    assert (await group.ask_leader(RequestCode.QUERY_CONSUMER_OFFSET, key())).ext == {"offset": "1"}


async def test_what_tools_ask_of_each_broker_name_of_a_route_is_found_and_done_once(group: Group) -> None:
    """Producers' names have the addresses of followers, and RocketMQ's tools add up what every name answers."""
    await make_topic(group)
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g"}')
    await group.ask_leader(RequestCode.SEND_MESSAGE_V2, send_fields(i="KEYS\x01k\x02"), b"m")
    await group.everywhere(lambda broker: broker.parts.context.store.queues.get("T", 0).max_offset == 1)
    reset = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
    for broker in group.followers:
        broker.parts.passing._led_until = -math.inf  # where elections were repeated, one of them has led lately
    queries = [
        await ask(group.client, broker, RequestCode.QUERY_MESSAGE, query_fields("k")) for broker in group.brokers
    ]
    assert sorted(answer.code for answer in queries) == [0, 22, 22]
    for code, fields, name in (
        (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "g"}, "consumeTimeSpanSet"),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset, "offsetTable"),
    ):
        answers = [await ask(group.client, broker, code, fields) for broker in group.brokers]
        assert {answer.code for answer in answers} == {0}
        assert sorted(len(loads(answer.body)[name]) for answer in answers) == [0, 0, 1]


async def test_a_member_that_led_until_lately_has_a_reset_done(group: Group) -> None:
    """A nameserver may still name it as the leader, and nobody else is asked then."""
    await make_topic(group)
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g"}')
    await group.ask_leader(RequestCode.SEND_MESSAGE_V2, send_fields(i="KEYS\x01k\x02"), b"m")
    await group.everywhere(lambda broker: broker.parts.context.store.queues.get("T", 0).max_offset == 1)
    old = group.leader
    await hand_over_somewhere(group.client, old)
    reset = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
    answer = await ask(group.client, old, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    assert (answer.code, len(loads(answer.body)["offsetTable"])) == (0, 1)
    assert (await ask(group.client, old, RequestCode.QUERY_MESSAGE, query_fields("k"))).code == 0


async def test_a_topic_is_made_through_a_follower(group: Group) -> None:
    """RocketMQ's producers make topics at every broker name."""
    for broker in group.brokers:
        assert (await ask(group.client, broker, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))).code == 0
    assert group.leader.parts.context.metadata.topic("T") is not None


async def test_a_transaction_is_decided_through_a_follower(group: Group) -> None:
    await make_topic(group)
    follower = group.followers[0]
    properties = "UNIQ_KEY\x01HALF\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02"
    half = await ask(group.client, follower, RequestCode.SEND_MESSAGE_V2, send_fields(i=properties, f="4"), b"half")
    assert half.code == 0
    _, offset = parse_offset_message_id(half.ext["msgId"])
    end = {
        "producerGroup": "p",
        "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": str(offset),
        "commitOrRollback": str(TRANSACTION_COMMIT),
        "msgId": "HALF",
        "fromTransactionCheck": "false",
    }
    await group.client.oneway(follower.address, Command(RequestCode.END_TRANSACTION, ext=end))
    await eventually(lambda: group.leader.parts.context.store.queues.get("T", 0).max_offset == 1, "it is committed")
    assert [record.body for record in await stored(group)] == [b"half"]


async def test_sends_during_a_hand_over_are_held_and_none_is_refused(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("HOLD_S", "_OLD_LINK_S"):  # where much else runs, a hand-over and the last answers take longer
        monkeypatch.setattr(pass_on, limit, WAIT_S)
    await make_topic(group)
    old = group.leader
    connections = [await group.client.connection(broker.address) for broker in group.brokers]
    answers: list[Any] = []
    asked = asyncio.ensure_future(hand_over_somewhere(group.client, old))
    sent = 0
    while not asked.done():
        for connection in connections:
            command = Command(RequestCode.SEND_MESSAGE_V2, ext=send_fields(), body=b"%d" % sent)
            connection.call(command, WAIT_S, answers.append)
            sent += 1
        await asyncio.sleep(0)
    await asked
    await eventually(lambda: len(answers) == sent, "all are answered")
    assert [answer.remark for answer in answers if answer.code != 0] == []
    offsets = [int(answer.ext["queueOffset"]) for answer in answers]
    assert sorted(offsets) == list(range(sent)), "each was stored once"


async def test_a_member_that_stops_passes_on_until_all_is_answered(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subsystem, "_FINISH_S", WAIT_S)
    serve, finish, is_stopping = BrokerRequestHandler.on_request, PassingSubsystem.finish, asyncio.Event()

    def serve_late(handler: BrokerRequestHandler, connection: Connection, command: Command) -> None:
        delay_s = 0.2 if connection.is_relayed and command.code == RequestCode.SEND_MESSAGE_V2 else 0.0
        asyncio.get_running_loop().call_later(delay_s, serve, handler, connection, command)

    async def tell_and_finish(passing: PassingSubsystem) -> None:
        is_stopping.set()
        await finish(passing)

    await make_topic(group)
    follower = group.followers[0]
    monkeypatch.setattr(BrokerRequestHandler, "on_request", serve_late)
    monkeypatch.setattr(PassingSubsystem, "finish", tell_and_finish)
    sending = asyncio.create_task(ask(group.client, follower, RequestCode.SEND_MESSAGE_V2, send_fields(), b"first"))
    await eventually(lambda: follower.parts.passing.pass_on.in_flight == 1, "it is passed on")
    group.brokers.remove(follower)
    closing = asyncio.create_task(follower.close())
    await is_stopping.wait()
    later = ask(group.client, follower, RequestCode.SEND_MESSAGE_V2, send_fields(), b"while it stops")
    assert [answer.code for answer in await asyncio.gather(sending, later)] == [0, 0]
    await closing


async def test_while_nobody_leads_a_send_waits_for_a_second_and_is_refused(group: Group) -> None:
    await make_topic(group)
    last = group.followers[0]
    for broker in [broker for broker in group.brokers if broker is not last]:
        group.brokers.remove(broker)
        await broker.close()
    await eventually(lambda: last.parts.context.role.leader_elsewhere is None, "it knows that nobody leads")
    loop = asyncio.get_running_loop()
    began = loop.time()
    answer = await ask(group.client, last, RequestCode.SEND_MESSAGE_V2, send_fields(), b"x")
    assert answer.code == 14
    assert answer.ext["cause"] in ("not-leader", "recovering")
    assert loop.time() - began > 0.9


@pytest.mark.parametrize("is_leader", [True, False])
async def test_a_client_without_the_greeting_cannot_send_for_another_one(group: Group, is_leader: bool) -> None:
    await make_topic(group)
    broker: Broker = group.leader if is_leader else group.followers[0]
    command = Command(RequestCode.SEND_MESSAGE_V2, ext=send_fields(), body=b"x", remark="passed on for 10.9.8.7:1")
    assert (await group.client.request(broker.address, command, 5)).code == 0
    own = (await group.client.connection(broker.address)).local_address
    assert [str(record.born_host) for record in await stored(group)] == [own]


class Member(NoRequests):
    """A client that is connected to some of the brokers; keeps what brokers ask it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.remoting = RemotingClient(self)
        self.asked: list[int] = []

    def on_request(self, connection: Connection, command: Command) -> None:
        self.asked.append(command.code)
        connection.respond(command, 0, {"is": self.name}, b"own words")

    async def beat(self, *brokers: Broker) -> None:
        subscription = {"topic": "T", "subString": "*", "expressionType": "TAG", "subVersion": 1}
        consumer = {
            "groupName": "g",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [subscription],
        }
        beat = {"clientID": self.name, "consumerDataSet": [consumer], "producerDataSet": [{"groupName": "p"}]}
        for broker in brokers:
            answer = await ask(self.remoting, broker, RequestCode.HEART_BEAT, {}, orjson.dumps(beat))
            assert answer.code == 0


@pytest.fixture
async def members() -> AsyncIterator[list[Member]]:
    made = [Member("one"), Member("two")]
    yield made
    for member in made:
        await member.remoting.close()


async def members_at(group: Group, broker: Broker) -> list[str]:
    answer = await ask(group.client, broker, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
    return sorted(orjson.loads(answer.body)["consumerIdList"]) if answer.code == 0 else []


async def all_know(group: Group, *wanted: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while [await members_at(group, broker) for broker in group.brokers] != [list(wanted)] * len(group.brokers):
            await asyncio.sleep(0.01)


async def test_all_members_of_a_group_are_known_wherever_they_are_connected(
    group: Group, members: list[Member]
) -> None:
    await make_topic(group)
    one, two = members
    first, second = group.followers
    await one.beat(first)
    await two.beat(first, second, group.leader)
    await all_know(group, "one", "two")
    clients = group.leader.parts.groups.clients
    assert len(clients.producers("p")) == 2
    await one.remoting.close()
    await all_know(group, "two")
    gone = await ask(two.remoting, second, RequestCode.UNREGISTER_CLIENT, {"clientID": "two", "consumerGroup": "g"})
    assert gone.code == 0
    await eventually(lambda: len(clients.consumer_group("g").members) == 2, "one connection left the group")  # type: ignore[union-attr]


async def test_a_follower_serves_pulls_of_a_client_that_only_the_leader_has_heard(
    group: Group, members: list[Member]
) -> None:
    """As after its restart: clients send a heartbeat every 30 s only."""
    await make_topic(group)
    await group.ask_leader(RequestCode.SEND_MESSAGE_V2, send_fields(), b"m")
    without_subscription = pull_fields(sysFlag=0, subscription=None, expressionType=None, subVersion=1)
    first, second = group.followers
    await eventually(lambda: first.parts.passing.pass_on._link is not None, "the leader can be asked")
    refused = await ask(members[0].remoting, first, RequestCode.PULL_MESSAGE, without_subscription)
    assert (refused.code, refused.ext["cause"]) == (24, "subscription-not-exist"), "the leader knows of none either"
    await members[0].beat(group.leader)
    await asyncio.sleep(AGAIN_SECONDS)
    await eventually(lambda: second.parts.context.store.queues.get("T", 0).max_offset == 1, "the message is there")
    for follower in (first, second):
        pulled = await ask(members[0].remoting, follower, RequestCode.PULL_MESSAGE, without_subscription)
        assert [record.body for record in decode_records(pulled.body)] == [b"m"], pulled
        assert follower.parts.groups.clients.consumer_group("g") is None
    newer = pull_fields(sysFlag=0, subscription=None, expressionType=None, subVersion=2)
    await asyncio.sleep(AGAIN_SECONDS)
    assert (await ask(members[0].remoting, first, RequestCode.PULL_MESSAGE, newer)).code == 25


async def test_a_new_leader_knows_the_clients_of_all_members(group: Group, members: list[Member]) -> None:
    await make_topic(group)
    old = group.leader
    for member, broker in zip(members, group.followers, strict=True):
        await member.beat(broker)
    await all_know(group, "one", "two")
    assert (await ask(group.client, old, TRANSFER_LEADERSHIP, {})).code == 0
    await eventually(lambda: any(broker.parts.context.role.writable for broker in group.brokers if broker is not old))
    await all_know(group, "one", "two")


async def test_every_member_gives_the_same_shares_of_queues(group: Group, members: list[Member]) -> None:
    await make_topic(group, "T", 4)
    for member in members:  # none of which the other follower has heard
        await member.beat(group.followers[0])
    await all_know(group, "one", "two")
    given = {"topic": "T", "consumerGroup": "g", "strategyName": "AVG", "messageModel": "CLUSTERING"}
    for client_id, numbers in (("one", [0, 1]), ("two", [2, 3])):
        body = orjson.dumps({**given, "clientId": client_id})
        for broker in group.brokers:
            answer = orjson.loads((await ask(group.client, broker, RequestCode.QUERY_ASSIGNMENT, {}, body)).body)
            assert [one["messageQueue"]["queueId"] for one in answer["messageQueueAssignments"]] == numbers


async def test_the_leader_asks_and_tells_clients_behind_a_follower(group: Group, members: list[Member]) -> None:
    await make_topic(group)
    one, two = members
    await one.beat(group.followers[0])
    await all_know(group, "one")
    before = len(one.asked)
    await two.beat(group.leader)
    await eventually(lambda: len(one.asked) > before, "it is told of the second member")
    assert set(one.asked) == {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}
    fields = {"consumerGroup": "g", "clientId": "one"}
    for broker in group.brokers:
        info = await ask(group.client, broker, RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        assert (info.code, info.ext["is"], bytes(info.body)) == (0, "one", b"own words")
    assert one.asked.count(RequestCode.GET_CONSUMER_RUNNING_INFO) == 3


async def test_a_client_behind_a_follower_that_is_gone_keeps_no_locks(group: Group, members: list[Member]) -> None:
    await make_topic(group)
    one, two = members
    await one.beat(group.followers[0])
    await two.beat(group.leader)
    await all_know(group, "one", "two")

    async def lock(member: Member, broker: Broker) -> int:
        queue = {"topic": "T", "brokerName": "b", "queueId": 0}
        body = orjson.dumps({"consumerGroup": "g", "clientId": member.name, "mqSet": [queue]})
        answer = await ask(member.remoting, broker, RequestCode.LOCK_BATCH_MQ, {}, body)
        return len(orjson.loads(answer.body)["lockOKMQSet"])

    assert await lock(one, group.followers[0]) == 1
    await one.remoting.close()
    await all_know(group, "two")
    assert await lock(two, group.leader) == 0
    locks = group.leader.parts.groups.locks
    await eventually(lambda: not locks.is_locked("g"), "the grace time is over")
    assert await lock(two, group.leader) == 1


async def locks_of(group: Group, node: Broker, client_id: str, *numbers: int) -> list[int]:
    body = {
        "consumerGroup": "g",
        "clientId": client_id,
        "mqSet": [MessageQueue("T", "b", n).to_json() for n in numbers],
    }
    answer = await ask(group.client, node, RequestCode.LOCK_BATCH_MQ, {}, orjson.dumps(body))
    return sorted(queue["queueId"] for queue in orjson.loads(answer.body)["lockOKMQSet"])


def locked_at(node: Broker) -> list[int]:
    """The queues that are locked as far as this member knows."""
    return sorted(queue.queue_id for _, _, queues in node.parts.groups.locks.held() for queue in queues)


@pytest.mark.parametrize("group", [{"lockGraceTime": 600_000}], indirect=True)
async def test_a_new_leader_knows_who_has_locked_a_queue(group: Group) -> None:
    await make_topic(group, queues=4)
    old = group.leader
    assert await locks_of(group, old, "holds", 0, 1, 2) == [0, 1, 2]
    unlock = {"consumerGroup": "g", "clientId": "holds", "mqSet": [MessageQueue("T", "b", 1).to_json()]}
    await ask(group.client, group.followers[0], RequestCode.UNLOCK_BATCH_MQ, {}, orjson.dumps(unlock))
    await group.everywhere(lambda broker: locked_at(broker) == [0, 2])
    await hand_over_somewhere(group.client, old)
    await group.led()
    assert await locks_of(group, group.leader, "other", 0, 1, 2) == [1]
    assert await locks_of(group, group.leader, "holds", 0, 1, 2) == [0, 2]
    await group.everywhere(lambda broker: locked_at(broker) == [0, 1, 2])


@pytest.mark.parametrize("group", [{"lockGraceTime": 50}], indirect=True)
async def test_a_consumer_that_dies_with_the_leader_loses_its_locks_after_the_grace_time(group: Group) -> None:
    await make_topic(group)
    assert await locks_of(group, group.leader, "dies, too", 0) == [0]
    await group.everywhere(lambda broker: locked_at(broker) == [0])
    await hand_over_somewhere(group.client, group.leader)
    await group.led()
    await group.everywhere(lambda broker: locked_at(broker) == [])
