"""What nameservers are told, and when."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from broker.admin import registration_bodies
from broker.admin.registration import Announcement, NameserverLinks
from broker.config import BrokerConfig
from broker.role import Role
from broker.state.settings import TopicConfig
from ledgermq.message.crc import crc32
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.data_version import DataVersion
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, LeaderHint, Refusal
from ledgermq.remoting.server import RemotingServer
from store.replicated_log import LogRole, LogState
from tests.broker.conftest import eventually, log_state
from tests.ports import free_ports


def topic(name: str, queues: int = 4) -> TopicConfig:
    return TopicConfig(name=name, read_queues=queues, write_queues=queues)


class Tables:
    """The topics of a broker."""

    def __init__(self) -> None:
        self.topics = {name: topic(name) for name in ("T", "U")}
        self.counter = 1

    def put(self, *topics: TopicConfig) -> None:
        self.topics |= {topic.name: topic for topic in topics}
        self.counter += 1

    def describe(self) -> Announcement:
        return Announcement(self.topics, DataVersion(self.counter, 5, 3), 99)


def told_topics(command: Command) -> dict[str, Any]:
    table: dict[str, Any] = orjson.loads(command.body)["topicConfigSerializeWrapper"]["topicConfigTable"]
    return table


class ScriptedNameServer:
    """Remembers what it is told; refuses, and forgets who registered, as often as asked."""

    def __init__(self, *, takes_increments: bool = True) -> None:
        self._takes_increments = takes_increments
        self.forget = 0
        self.server = RemotingServer(self)
        self.heard: list[Command] = []
        self.refuse: dict[int, int] = {}

    def on_connected(self, connection: Connection) -> None: ...

    def on_closed(self, connection: Connection) -> None: ...

    def on_request(self, connection: Connection, command: Command) -> None:
        command.body = bytes(command.body)
        self.heard.append(command)
        if self.refuse.get(command.code, 0) > 0:
            self.refuse[command.code] -= 1
            raise Refusal(Cause.QUERY_NOT_FOUND, "register first")
        connection.respond(command, 0, self._fields(command.code))

    def _fields(self, code: int) -> dict[str, str]:
        if code == RequestCode.QUERY_DATA_VERSION:
            self.forget -= 1
            return {"changed": str(self.forget >= 0).lower()}
        return {"takesIncrements": "true"} if code == RequestCode.REGISTER_BROKER and self._takes_increments else {}

    def of(self, code: int) -> list[Command]:
        return [command for command in self.heard if command.code == code]

    @property
    def registrations(self) -> list[Command]:
        return self.of(RequestCode.REGISTER_BROKER)


@pytest.fixture
async def namesrv() -> AsyncIterator[ScriptedNameServer]:
    namesrv = ScriptedNameServer()
    await namesrv.server.start("127.0.0.1", 0)
    yield namesrv
    await namesrv.server.close()


@pytest.fixture
async def remoting() -> AsyncIterator[RemotingClient]:
    client = RemotingClient()
    yield client
    await client.close()


def raft_config(*ports: int, beat_ms: int = 20) -> BrokerConfig:
    return BrokerConfig(
        broker_name="b",
        node_id="n2",
        follower_id=3,
        namesrv_addrs=tuple(f"127.0.0.1:{port}" for port in ports),
        namesrv_heartbeat_interval_ms=beat_ms,
    )


FOLLOWER = log_state(writable=False, generation=3, leader=LeaderHint("n0", "127.0.0.1:10911"))
LEADER = log_state(writable=True, generation=4)


async def test_a_role_change_is_registered_at_once_with_term_and_confirm_offset(
    namesrv: ScriptedNameServer, remoting: RemotingClient
) -> None:
    config = raft_config(namesrv.server.port, beat_ms=4000)
    role = Role(config, FOLLOWER)
    registration = NameserverLinks(config, "127.0.0.1:10931", role, remoting, Tables().describe)
    registration.start()
    await eventually(lambda: registration.registered_count == 1)
    first = namesrv.registrations[0]
    assert first.ext["brokerId"] == "3"
    assert (first.ext["brokerName"], first.ext["clusterName"]) == ("b", "DefaultCluster")
    assert (first.ext["term"], first.ext["confirmOffset"]) == ("3", "99")
    assert first.ext["brokerAddr"] == "127.0.0.1:10931"
    assert first.ext["haServerAddr"] == "", "nobody listens to slaves"
    assert int(first.ext["bodyCrc32"]) == crc32(first.body) & 0x7FFFFFFF
    assert told_topics(first) == {name: topic(name).to_json() for name in ("T", "U")}
    role.update(LEADER)
    registration.announce_soon()
    await registration.announce()
    assert (namesrv.registrations[-1].ext["brokerId"], namesrv.registrations[-1].ext["term"]) == ("0", "4")
    await registration.close()
    assert namesrv.of(RequestCode.UNREGISTER_BROKER)[0].ext["brokerAddr"] == "127.0.0.1:10931"


async def test_between_registrations_it_gives_signs_of_life_and_registers_when_it_is_not_known(
    namesrv: ScriptedNameServer, remoting: RemotingClient
) -> None:
    config = raft_config(namesrv.server.port)
    registration = NameserverLinks(config, "127.0.0.1:1", Role(config, LEADER), remoting, Tables().describe)
    registration.start()
    await eventually(lambda: len(namesrv.of(RequestCode.QUERY_DATA_VERSION)) >= 2)
    assert len(namesrv.registrations) == 1
    beat = namesrv.of(RequestCode.QUERY_DATA_VERSION)[0]
    assert beat.ext["brokerId"] == "0"
    assert orjson.loads(beat.body) == {"counter": 1, "stateVersion": 3, "timestamp": 5}
    namesrv.forget = 1
    await eventually(lambda: len(namesrv.registrations) == 2)
    assert namesrv.registrations[-1].ext["increment"] == "false"
    await registration.close()


async def test_a_connection_that_was_lost_is_followed_by_a_whole_registration(
    namesrv: ScriptedNameServer, remoting: RemotingClient
) -> None:
    config = raft_config(namesrv.server.port)
    registration = NameserverLinks(config, "127.0.0.1:1", Role(config, LEADER), remoting, Tables().describe)
    registration.start()
    await eventually(lambda: registration.registered_count == 1)
    for connection in tuple(namesrv.server.connections):
        connection.close()
    await eventually(lambda: len(namesrv.registrations) == 2)
    assert set(told_topics(namesrv.registrations[-1])) == {"T", "U"}
    await registration.close()


async def test_a_topic_that_changed_is_told_of_alone(namesrv: ScriptedNameServer, remoting: RemotingClient) -> None:
    config, tables = raft_config(namesrv.server.port, beat_ms=4000), Tables()
    registration = NameserverLinks(config, "127.0.0.1:1", Role(config, LEADER), remoting, tables.describe)
    registration.start()
    await eventually(lambda: registration.registered_count == 1)
    tables.put(topic("New", 2), topic("T", 9))
    registration.announce_soon({"New", "T"})
    await registration.announce()
    change = namesrv.registrations[-1]
    assert change.ext["increment"] == "true"
    assert told_topics(change) == {"New": topic("New", 2).to_json(), "T": topic("T", 9).to_json()}
    del tables.topics["New"], tables.topics["U"]
    tables.put(topic("T", 3))
    registration.announce_soon({"New", "U", "T"})
    await registration.announce()
    change = namesrv.registrations[-1]
    assert (set(told_topics(change)), change.ext["increment"]) == ({"T"}, "true")
    assert set(change.ext["removedTopics"].split(";")) == {"New", "U"}
    count = len(namesrv.registrations)
    await registration.announce()
    assert len(namesrv.registrations) == count, "there is nothing new"
    await registration.close()


async def test_a_nameserver_that_does_not_take_changes_is_told_everything(remoting: RemotingClient) -> None:
    javas = ScriptedNameServer(takes_increments=False)
    await javas.server.start("127.0.0.1", 0)
    config, tables = raft_config(javas.server.port, beat_ms=4000), Tables()
    registration = NameserverLinks(config, "127.0.0.1:1", Role(config, LEADER), remoting, tables.describe)
    registration.start()
    await eventually(lambda: registration.registered_count == 1)
    tables.put(topic("New"))
    registration.announce_soon({"New"})
    await registration.announce()
    assert set(told_topics(javas.registrations[-1])) == {"T", "U", "New"}
    await registration.close()
    await javas.server.close()


async def test_a_change_that_is_refused_is_followed_by_everything(
    namesrv: ScriptedNameServer, remoting: RemotingClient
) -> None:
    config, tables = raft_config(namesrv.server.port), Tables()
    registration = NameserverLinks(config, "127.0.0.1:1", Role(config, LEADER), remoting, tables.describe)
    registration.start()
    await eventually(lambda: registration.registered_count == 1)
    tables.put(topic("New"))
    namesrv.refuse[RequestCode.REGISTER_BROKER] = 1
    registration.announce_soon({"New"})
    await eventually(lambda: registration.registered_count == 1 and len(namesrv.registrations) == 3)
    assert set(told_topics(namesrv.registrations[-1])) == {"T", "U", "New"}
    await registration.close()


async def test_topics_are_shown_with_no_more_than_the_whole_broker_allows(
    namesrv: ScriptedNameServer, remoting: RemotingClient
) -> None:
    config = raft_config(namesrv.server.port)
    registration = NameserverLinks(config, "127.0.0.1:1", Role(config, LEADER), remoting, Tables().describe)
    registration.start()
    await eventually(lambda: registration.registered_count == 1)
    config.broker_permission = 4
    registration.announce_soon()
    await eventually(lambda: len(namesrv.registrations) == 2)
    assert {row["perm"] for row in told_topics(namesrv.registrations[-1]).values()} == {4}
    await registration.close()


async def test_the_loop_has_its_turns_while_all_of_many_topics_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_bodies, "_SLICE_S", 0.0)
    topics = {f"t{number}": topic(f"t{number}") for number in range(20)}
    bodies, turns = registration_bodies.RegistrationBodies(lambda: 6), 0
    writing = asyncio.ensure_future(bodies.whole(topics, DataVersion(1, 5, 3)))
    while not writing.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= len(topics)
    assert told_topics(Command(103, body=writing.result())).keys() == topics.keys()
    left = await bodies.whole({"t1": topics["t1"]}, DataVersion(2, 5, 3))
    assert told_topics(Command(103, body=left)).keys() == {"t1"}


async def test_what_a_broker_allowed_while_its_topics_were_written_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_bodies, "_SLICE_S", 0.0)
    topics = {f"t{number}": topic(f"t{number}") for number in range(20)}
    allowed = 6
    bodies = registration_bodies.RegistrationBodies(lambda: allowed)
    writing = asyncio.ensure_future(bodies.whole(topics, DataVersion(1, 5, 3)))
    for _ in range(5):
        await asyncio.sleep(0)
    allowed = 4
    await writing
    allowed = 6
    again = await bodies.whole(topics, DataVersion(1, 5, 3))
    assert {row["perm"] for row in told_topics(Command(103, body=again)).values()} == {6}


async def test_the_topics_are_written_once_for_all_nameservers_and_attempts(
    remoting: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bytes] = []
    write = registration_bodies._body

    def count(*arguments: Any) -> bytes:
        made.append(write(*arguments))
        return made[-1]

    monkeypatch.setattr(registration_bodies, "_body", count)
    monkeypatch.setattr("broker.admin.registration._RETRY_SECONDS", 0.01)
    namesrvs = [ScriptedNameServer() for _ in range(2)]
    for namesrv in namesrvs:
        await namesrv.server.start("127.0.0.1", 0)
    namesrvs[1].refuse[RequestCode.REGISTER_BROKER] = 5
    config = raft_config(*free_ports(1), *(namesrv.server.port for namesrv in namesrvs))
    tables = Tables()
    links = NameserverLinks(config, "127.0.0.1:1", Role(config, LEADER), remoting, tables.describe)
    links.start()
    await eventually(lambda: links.registered_count == 2)
    assert len(namesrvs[1].registrations) == 6
    assert len(made) == 1
    tables.put(topic("V"))
    links.announce_soon()
    await eventually(lambda: all("V" in told_topics(namesrv.registrations[-1]) for namesrv in namesrvs))
    assert len(made) == 2
    await links.close()
    for namesrv in namesrvs:
        await namesrv.server.close()


async def test_a_refused_registration_is_tried_again(namesrv: ScriptedNameServer, remoting: RemotingClient) -> None:
    config = raft_config(namesrv.server.port)
    namesrv.refuse[RequestCode.REGISTER_BROKER] = 1
    registration = NameserverLinks(config, "127.0.0.1:1", Role(config, LEADER), remoting, Tables().describe)
    registration.start()
    await eventually(lambda: registration.registered_count == 1)
    assert len(namesrv.registrations) == 2
    await registration.close()


async def test_a_nameserver_that_is_away_keeps_nobody_waiting_and_is_told_when_it_comes(
    namesrv: ScriptedNameServer, remoting: RemotingClient
) -> None:
    [late_port] = free_ports(1)
    config = raft_config(namesrv.server.port, late_port)
    registration = NameserverLinks(config, "127.0.0.1:1", Role(config, LEADER), remoting, Tables().describe)
    registration.start()
    await registration.announce()
    assert registration.registered_count == 1
    late = ScriptedNameServer()
    await late.server.start("127.0.0.1", late_port)
    await eventually(lambda: registration.registered_count == 2)
    await registration.close()
    await late.server.close()


async def test_a_standalone_broker_registers_its_configured_id_and_no_term(
    namesrv: ScriptedNameServer, remoting: RemotingClient
) -> None:
    config = BrokerConfig(broker_name="b", namesrv_addrs=(f"127.0.0.1:{namesrv.server.port}",), broker_id=0)
    state = LogState(LogRole.ALONE, 0, None, None)
    registration = NameserverLinks(config, "127.0.0.1:1", Role(config, state), remoting, Tables().describe)
    registration.start()
    await eventually(lambda: namesrv.registrations != [])
    assert namesrv.registrations[0].ext["brokerId"] == "0"
    assert "term" not in namesrv.registrations[0].ext
    await asyncio.sleep(0)
    await registration.close()
