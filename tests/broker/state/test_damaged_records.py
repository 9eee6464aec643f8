"""A state record that rots on one member's disk, and that its next start replays: it is replaced by a peer's copy."""

from pathlib import Path

import pytest

from dledger.raft_log import RaftLog
from ledgermq.message.record import decode_records
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from node.broker_assembly import Broker
from tests.broker.conftest import eventually, pull_fields, send_fields, topic_fields
from tests.broker.groups.test_offsets import key
from tests.broker.test_broker import ask
from tests.broker.test_raft_brokers import Group
from tests.broker.test_raft_cleaning import configs_of_three

TOPICS = [f"Topic-{number}" for number in range(6)]


async def make_and_send(group: Group, topic: str) -> None:
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic))
    fields = send_fields(topic, i=f"KEYS\x01key-{topic}\x02")
    await group.ask_leader(RequestCode.SEND_MESSAGE_V2, fields, topic.encode())
    timer = send_fields(topic, i=f"UNIQ_KEY\x01timer-{topic}\x02TIMER_DELAY_SEC\x013600\x02")
    await group.ask_leader(RequestCode.SEND_MESSAGE_V2, timer, b"timer")


async def offsets_are_known(group: Group) -> None:
    await group.everywhere(lambda broker: broker.parts.context.state.offsets.get("Topic-5@g") == {0: 1})


def waiting_timers(broker: Broker) -> int:
    """The number of timers that the index of a broker counts, when it has entered all messages."""
    timer = broker.parts.delay.timer
    is_whole = broker.parts.context.store.dispatched_offset == broker.parts.context.store.log.max_offset
    return timer.index.metrics.total if is_whole and not timer.follower.behind else -1


def rot(data: Path, wanted: bytes) -> None:
    """Change a byte of the first place in the log that has these bytes."""
    path = next(path for path in sorted(data.iterdir()) if wanted in path.read_bytes())
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(wanted) + 1)
        file.write(b"X")


@pytest.mark.parametrize("rotten", [(2,), (1, 4)])
async def test_a_state_record_found_damaged_by_the_replay_is_fetched_from_a_peer(
    tmp_path: Path, rotten: tuple[int, ...]
) -> None:
    configs = configs_of_three(tmp_path)
    brokers = {node_id: Broker(config) for node_id, config in configs.items()}
    group = Group(list(brokers.values()), RemotingClient())
    try:
        for broker in group.brokers:
            await broker.start()
        await group.led()
        await group.ask_leader(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g"}')
        for topic in TOPICS:
            await make_and_send(group, topic)
        await group.ask_leader(RequestCode.UPDATE_CONSUMER_OFFSET, key(topic="Topic-5", commitOffset="1"))
        await offsets_are_known(group)
        await group.everywhere(lambda broker: waiting_timers(broker) == len(TOPICS))
        member = group.followers[0]
        node_id = next(node_id for node_id, broker in brokers.items() if broker is member)
        group.brokers.remove(member)
        await member.close()
        for path in (tmp_path / node_id / "config").iterdir():
            if "timer" not in path.name:
                path.unlink()  # no table was saved: all state records are replayed
        log = member.parts.context.store.log
        assert isinstance(log, RaftLog)
        for number in rotten:
            rot(log.directory / "data", b'"Topic-%d"' % number)

        back = Broker(configs[node_id])
        group.brokers.append(back)
        await back.start()
        await offsets_are_known(group)
        assert back.parts.context.state.topics.keys() >= set(TOPICS)
        log = back.parts.context.store.log
        assert isinstance(log, RaftLog)
        await eventually(lambda: not log.damages, "the copies are there")
        index = back.parts.context.store.index
        assert index is not None
        await eventually(lambda: not index.lag_bytes, "the index has all")
        await eventually(lambda: waiting_timers(back) == len(TOPICS), "each timer is in the index")
        for topic in TOPICS:
            pulled = await ask(group.client, back, RequestCode.PULL_MESSAGE, pull_fields(topic))
            assert [record.body for record in decode_records(pulled.body)] == [topic.encode()]
            assert len((await index.query(topic, f"key-{topic}", 32, 0, 1 << 62)).offsets) == 1
    finally:
        await group.client.close()
        for broker in group.brokers:
            await broker.close()
