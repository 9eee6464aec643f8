"""Three brokers of one Raft group in one process: one leads, all know the same, nothing is forgotten when it goes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import orjson
import pytest

from broker.admin.transfer import TRANSFER_LEADERSHIP
from dledger.config import PeerAddress
from ledgermq.message.record import decode_records
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from node.broker_assembly import Broker
from store.log.flusher import FlushMode
from tests.broker.conftest import eventually, pull_fields, send_fields, topic_fields
from tests.broker.groups.test_clients import heartbeat
from tests.broker.groups.test_offsets import key
from tests.broker.pull.test_query import query_fields
from tests.broker.test_broker import ask, broker_config
from tests.limits import WAIT_S
from tests.ports import free_ports


class Group:
    """The brokers that run."""

    def __init__(self, brokers: list[Broker], client: RemotingClient) -> None:
        self.brokers = brokers
        self.client = client

    @property
    def leader(self) -> Broker:
        return next(broker for broker in self.brokers if broker.parts.context.role.writable)

    @property
    def followers(self) -> list[Broker]:
        return [broker for broker in self.brokers if not broker.parts.context.role.writable]

    async def led(self) -> None:
        await eventually(lambda: any(broker.parts.context.role.writable for broker in self.brokers), "a leader")

    async def everywhere(self, condition: Callable[[Broker], bool]) -> None:
        await eventually(lambda: all(map(condition, self.brokers)), "the same on all nodes")

    async def ask_leader(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        answer = await ask(self.client, self.leader, code, fields, body)
        assert answer.code == 0, answer
        return answer


@pytest.fixture
async def group(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Group]:
    """Three members that have elected a leader; a parameter has further settings of theirs."""
    ports = free_ports(3)
    peers = tuple(PeerAddress(f"n{n}", "127.0.0.1", port) for n, port in enumerate(ports))
    brokers = [
        Broker(
            broker_config(
                tmp_path / peer.node_id,
                enableDLegerCommitLog=True,
                flushDiskType=FlushMode.SYNC,
                dLegerGroup="b",
                dLegerSelfId=peer.node_id,
                dLegerPeers=peers,
                raftElectionTimeout=1500,
                slaveTimeout=60_000,
                compactionCqMappedFileSize=4600,
                compactionMappedFileSize=200_000,
                **getattr(request, "param", {}),
            )
        )
        for peer in peers
    ]
    client = RemotingClient()
    group = Group(brokers, client)
    for broker in brokers:
        await broker.start()
    await group.led()
    yield group
    await client.close()
    for broker in group.brokers:
        await broker.close()


async def test_what_the_leader_is_told_all_nodes_know(group: Group) -> None:
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g"}')
    sent = await group.ask_leader(RequestCode.SEND_MESSAGE_V2, send_fields(), b"hello")
    assert int(sent.ext["term"]) >= 1
    assert int(sent.ext["durableCopies"]) >= 2
    await group.ask_leader(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="1"))
    await group.everywhere(lambda broker: broker.parts.context.state.offsets.get("T@g") == {0: 1})
    await group.everywhere(lambda broker: broker.parts.context.store.queues.get("T", 0).max_offset == 1)
    for code in (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
        answers = [orjson.loads((await ask(group.client, broker, code, {})).body) for broker in group.brokers]
        assert answers[0] == answers[1] == answers[2]
    for broker in group.brokers:
        table = await ask(group.client, broker, RequestCode.GET_ALL_CONSUMER_OFFSET, {})
        assert b'"T@g":{0:1}' in bytes(table.body)
        pulled = await ask(group.client, broker, RequestCode.PULL_MESSAGE, pull_fields())
        assert [record.body for record in decode_records(pulled.body)] == [b"hello"]


async def test_each_node_has_an_index_by_key_and_the_leader_answers_queries(group: Group) -> None:
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))
    for number in range(3):
        fields = send_fields(i=f"KEYS\x01all k{number}\x02UNIQ_KEY\x01ID{number}\x02")
        await group.ask_leader(RequestCode.SEND_MESSAGE_V2, fields, b"m%d" % number)
    await group.everywhere(lambda broker: broker.parts.context.store.queues.get("T", 0).max_offset == 3)
    for key_, wanted in (("all", [b"m0", b"m1", b"m2"]), ("k1", [b"m1"]), ("ID2", [b"m2"])):
        answer = await group.ask_leader(RequestCode.QUERY_MESSAGE, query_fields(key_))
        assert [record.body for record in decode_records(answer.body)] == wanted
        found = []
        for index in (broker.parts.context.store.index for broker in group.brokers):
            assert index is not None
            found.append((await index.query("T", key_, 32, 0, 1 << 62)).offsets)
        assert len(found[0]) == len(wanted) and found[0] == found[1] == found[2]
    await group.everywhere(
        lambda broker: broker.parts.context.store.index is not None and not broker.parts.context.store.index.lag_bytes
    )


async def test_each_node_compacts_its_own_copy_and_serves_it(group: Group) -> None:
    compacted = topic_fields("T", attributes="+cleanup.policy=COMPACTION")
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, compacted)
    for number in range(130):
        fields = send_fields(i=f"KEYS\x01k{number % 4}\x02")
        await group.ask_leader(RequestCode.SEND_MESSAGE_V2, fields, b"%d" % number)

    def is_copied(broker: Broker) -> bool:
        compaction = broker.parts.context.store.compaction
        found = compaction.log_of("T", 0) if compaction is not None else None
        return found is not None and found.end_offset == 130

    await group.everywhere(is_copied)
    for broker in group.brokers:
        assert broker.parts.context.store.compaction is not None
        await broker.parts.context.store.compaction.compact()
        pulled = await ask(group.client, broker, RequestCode.PULL_MESSAGE, pull_fields())
        offsets = [record.queue_offset for record in decode_records(pulled.body)]
        assert offsets == [95, 96, 97, 98, *range(99, 127)]  # the first file held 99 messages, 32 are pulled at once


async def test_a_pull_held_by_a_follower_is_woken_by_the_commit(group: Group) -> None:
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))
    follower = group.followers[0]
    await eventually(lambda: "T" in follower.parts.context.state.topics and follower.parts.pull.spread.keeps_readers)
    connection = await group.client.connection(follower.address)
    answers: list[object] = []
    held = Command(RequestCode.PULL_MESSAGE, ext=pull_fields(sysFlag=6, suspendTimeoutMillis=20_000))
    connection.call(held, 30, answers.append)
    await eventually(lambda: len(follower.parts.pull.held) == 1)
    await group.ask_leader(RequestCode.SEND_MESSAGE_V2, send_fields(), b"news")
    await eventually(lambda: answers != [])
    assert isinstance(answers[0], Command)
    assert answers[0].code == 0


async def test_each_queue_is_read_from_one_follower_that_keeps_its_readers(group: Group) -> None:
    async def suggested(broker: Broker) -> list[str]:
        pulls = [await ask(group.client, broker, RequestCode.PULL_MESSAGE, pull_fields(queueId=n)) for n in range(6)]
        return [pulled.ext["suggestWhichBrokerId"] for pulled in pulls]

    async def becomes(broker: Broker, wanted: Callable[[list[str]], bool]) -> list[str]:
        async with asyncio.timeout(WAIT_S):
            while not wanted(found := await suggested(broker)):
                await asyncio.sleep(0.05)
        return found

    def id_of(broker: Broker) -> str:
        return str(broker.parts.context.config.follower_id)

    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T", 6))
    await group.everywhere(lambda broker: "T" in broker.parts.context.state.topics)
    leader, followers = group.leader, group.followers
    spread = await becomes(leader, lambda found: set(found) == set(map(id_of, followers)))
    connection = await group.client.connection(leader.address)
    answers: list[object] = []
    await ask(group.client, leader, RequestCode.HEART_BEAT, {}, heartbeat("c"))
    for held in (
        pull_fields(sysFlag=6, suspendTimeoutMillis=60_000),
        pull_fields(sysFlag=2, suspendTimeoutMillis=60_000, subscription=None, subVersion=1),
    ):
        connection.call(Command(RequestCode.PULL_MESSAGE, ext=held), WAIT_S, answers.append)
    await eventually(lambda: answers != [], "a push consumer that waits at the leader is sent away, too")
    assert isinstance(answers[0], Command) and answers[0].ext["suggestWhichBrokerId"] == spread[0]
    assert len(leader.parts.pull.held) == 1, "the other one waits as long as it wants to"
    for follower in followers:
        await becomes(follower, ([id_of(follower)] * 6).__eq__)
    group.brokers.remove(gone := followers[0])
    await gone.close()
    left = await becomes(leader, lambda found: id_of(gone) not in found)
    assert [now for now, before in zip(left, spread, strict=True) if before != id_of(gone)] == [
        before for before in spread if before != id_of(gone)
    ], "only its queues move"


async def test_a_member_that_stops_sends_its_readers_away(group: Group) -> None:
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))
    await group.everywhere(lambda broker: "T" in broker.parts.context.state.topics)
    follower = group.followers[0]
    await eventually(lambda: follower.parts.pull.spread.keeps_readers)
    connection = await group.client.connection(follower.address)
    answers: list[object] = []
    held = Command(RequestCode.PULL_MESSAGE, ext=pull_fields(sysFlag=6, suspendTimeoutMillis=20_000))
    connection.call(held, 30, answers.append)
    await eventually(lambda: len(follower.parts.pull.held) == 1)
    follower.parts.stop()
    await eventually(lambda: answers != [])
    assert isinstance(answers[0], Command) and answers[0].ext["suggestWhichBrokerId"] == "0"


async def test_leadership_is_handed_over_on_request_with_the_last_offsets(group: Group) -> None:
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g"}')
    await group.ask_leader(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="3"))
    old = group.leader
    answer = await group.ask_leader(TRANSFER_LEADERSHIP, {})
    await eventually(lambda: any(broker.parts.context.role.writable for broker in group.brokers if broker is not old))
    await eventually(lambda: not old.parts.context.role.writable)
    assert answer.ext["target"] in ("n0", "n1", "n2")
    offset = await group.ask_leader(RequestCode.QUERY_CONSUMER_OFFSET, key())
    assert offset.ext == {"offset": "3"}
    refused = await ask(group.client, group.leader, TRANSFER_LEADERSHIP, {"target": "n9"})
    assert refused.code == 2
    assert "n9" in (refused.remark or "")


async def test_a_new_leader_knows_topics_offsets_and_messages_and_goes_on(group: Group) -> None:
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g"}')
    for number in range(5):
        await group.ask_leader(RequestCode.SEND_MESSAGE_V2, send_fields(), b"m%d" % number)
    await group.ask_leader(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="3"))
    old = group.leader
    term = old.parts.context.role.generation
    group.brokers.remove(old)
    await old.close()  # its last offsets go into the log first
    await group.led()
    assert group.leader.parts.context.role.generation > term
    offset = await group.ask_leader(RequestCode.QUERY_CONSUMER_OFFSET, key())
    assert offset.ext == {"offset": "3"}
    pulled = await group.ask_leader(RequestCode.PULL_MESSAGE, pull_fields(offset=3))
    assert [record.body for record in decode_records(pulled.body)] == [b"m3", b"m4"]
    sent = await group.ask_leader(RequestCode.SEND_MESSAGE_V2, send_fields(), b"m5")
    assert sent.ext["queueOffset"] == "5"


async def test_a_raft_member_tells_its_terms(group: Group) -> None:
    answer = await group.ask_leader(RequestCode.GET_BROKER_EPOCH_CACHE, {})
    told = orjson.loads(answer.body)
    (*_, last) = told["epochList"]
    log = group.leader.parts.context.store.log
    assert last["epoch"] == log.state.generation
    assert last["startOffset"] < told["maxOffset"] == log.max_offset
    assert last["endOffset"] == (1 << 63) - 1
    for broker in group.followers:
        other = orjson.loads((await ask(group.client, broker, RequestCode.GET_BROKER_EPOCH_CACHE, {})).body)
        assert other["epochList"] == told["epochList"]
        assert other["brokerId"] > 0


async def test_a_raft_log_is_never_read_ahead(group: Group) -> None:
    answer = await ask(group.client, group.leader, RequestCode.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": "0"})
    assert answer.code == 3
    await group.ask_leader(RequestCode.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": "1"})


async def test_a_topic_is_removed_whichever_member_is_asked(group: Group) -> None:
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))
    await group.everywhere(lambda broker: "T" in broker.parts.context.state.topics)
    for broker in (*group.followers, group.leader):
        answer = await ask(group.client, broker, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert answer.code == 0, answer
    await group.everywhere(lambda broker: "T" not in broker.parts.context.state.topics)


@pytest.mark.parametrize("name", ["DELAY", "INNER_NUM"])
async def test_a_number_of_thousands_of_digits_in_a_message_stops_no_follower(group: Group, name: str) -> None:
    await group.led()
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T", 1))
    properties = f"UNIQ_KEY\x01K\x02{name}\x01{'9' * 5000}\x02"
    await ask(group.client, group.leader, RequestCode.SEND_MESSAGE_V2, send_fields("T", i=properties), b"odd")
    await group.ask_leader(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"plain")
    end = group.leader.parts.context.store.log.confirm_offset
    await group.everywhere(lambda broker: broker.parts.context.store.dispatched_offset >= end)
