"""Who may change routes, KV configuration and settings, and what a stranger's word is worth."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.admin.registration import Announcement, NameserverLinks
from broker.config import BrokerConfig
from broker.role import Role
from broker.state.settings import TopicConfig
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.data_version import DataVersion
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.serving.authority import AuthorityKeys
from ledgermq.remoting.signature import ChallengedSigner, Credentials
from nameserver.authority import GUARDED
from tests.broker.conftest import eventually, log_state
from tests.nameserver.conftest import Peer, Serve, Served, register_body

SECRET = "the secret of this cluster, that nobody else knows"
MEMBER = Credentials("broker", SECRET)
STRANGER = Credentials("broker", "the secret of another cluster, known to a stranger")
LEADER = {
    "brokerName": "broker-a", "brokerAddr": "127.0.0.1:1", "brokerId": "0", "clusterName": "DefaultCluster",
    "haServerAddr": "127.0.0.1:2", "term": "3", "increment": "false",
}  # fmt: skip
BODY = register_body({"T": 6, "U": 6})
WRITES: list[tuple[int, dict[str, str], bytes]] = [
    (RequestCode.REGISTER_BROKER, LEADER | {"brokerAddr": "127.0.0.1:9", "term": "9999999999"}, BODY),
    (RequestCode.UNREGISTER_BROKER, LEADER, b""),
    (RequestCode.BROKER_HEARTBEAT, LEADER, b""),
    (RequestCode.QUERY_DATA_VERSION, LEADER, b"{}"),
    (RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}, b""),
    (RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}, b""),
    (RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "New"}, b'{"queueDatas":[{"brokerName":"broker-a"}]}'),
    (RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"}, b""),
    (RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}, b""),
    (RequestCode.DELETE_KV_CONFIG, {"namespace": "n", "key": "k"}, b""),
    (RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"deleteTopicWithBrokerRegistration=true"),
]


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


async def say(peer: Peer, code: int, ext: dict[str, str], body: bytes, who: Credentials | None) -> Command:
    command = Command(code, ext=dict(ext), body=body, version=479)
    if who is not None:
        who.sign(command)
    peer.send(command)
    return await peer.answer()


async def challenged(peer: Peer, who: Credentials) -> ChallengedSigner:
    refused = await say(peer, RequestCode.QUERY_DATA_VERSION, LEADER, b"{}", None)
    return ChallengedSigner(who, refused.ext["challenge"])


async def led(served: Served) -> None:
    """A leader of term 3 is there, with the topic T."""
    leader = await served.peer()
    answer = await say(leader, RequestCode.REGISTER_BROKER, LEADER, register_body({"T": 6, "U": 6}), MEMBER)
    assert answer.code == 0, answer.remark


def test_every_request_that_changes_something_is_tried() -> None:
    assert {code for code, _, _ in WRITES} == GUARDED


@pytest.mark.parametrize("who", [None, STRANGER], ids=["unsigned", "another secret"])
async def test_what_a_stranger_asks_changes_nothing(serve: Serve, secret_file: Path, who: Credentials | None) -> None:
    served = await serve(authority=AuthorityKeys(secret_file=secret_file))
    await led(served)
    watcher, stranger = await served.peer(), await served.peer()
    before, revision = await watcher.route("T"), served.server.table.revision
    for code, ext, body in WRITES:
        answer = await say(stranger, code, ext, body, who)
        assert (answer.code, answer.ext["cause"]) == (16, "no-permission"), code
        assert SECRET not in (answer.remark or "")
    assert await watcher.route("T") == before
    assert served.server.table.revision == revision
    assert served.server.table.highest_term("broker-a") == 3
    assert (await watcher.ask(RequestCode.GET_KV_CONFIG, {"namespace": "n", "key": "k"})).code == 22


async def test_what_is_signed_as_rocketmqs_brokers_and_tools_do_is_served(serve: Serve, secret_file: Path) -> None:
    served = await serve(authority=AuthorityKeys(secret_file=secret_file))
    await led(served)
    java = await served.peer()
    for code, ext, body in WRITES:
        answer = await say(java, code, ext, body, Credentials("whoever", SECRET))
        is_gone = code == RequestCode.BROKER_HEARTBEAT  # the broker was taken out before it
        assert answer.code == (22 if is_gone else 0), (code, answer.remark)


async def test_a_signed_challenge_counts_once_on_its_connection_and_with_its_code(
    serve: Serve, secret_file: Path
) -> None:
    served = await serve(authority=AuthorityKeys(secret_file=secret_file))
    await led(served)
    member, stranger = await served.peer(), await served.peer()
    signer = await challenged(member, MEMBER)
    question = Command(RequestCode.QUERY_DATA_VERSION, ext=dict(LEADER), body=b"{}", version=479)
    signer.sign(question)
    captured = dict(question.ext)
    member.send(question)
    assert (await member.answer()).code == 0
    again = await say(member, RequestCode.QUERY_DATA_VERSION, captured, b"{}", None)
    elsewhere = await say(stranger, RequestCode.QUERY_DATA_VERSION, captured, b"{}", None)
    otherwise = Command(RequestCode.QUERY_DATA_VERSION, ext=dict(LEADER), body=b"{}", version=479)
    signer.sign(otherwise)
    as_deletion = await say(member, RequestCode.UNREGISTER_BROKER, dict(otherwise.ext), b"{}", None)
    assert [answer.code for answer in (again, elsewhere, as_deletion)] == [16, 16, 16]
    assert await stranger.addresses("T") == {"0": "127.0.0.1:1"}


@pytest.mark.parametrize("code", [RequestCode.QUERY_DATA_VERSION, RequestCode.UNREGISTER_BROKER])
async def test_a_signed_challenge_is_worth_nothing_under_other_names(
    serve: Serve, secret_file: Path, code: int
) -> None:
    served = await serve(authority=AuthorityKeys(secret_file=secret_file))
    await led(served)
    member, stranger = await served.peer(), await served.peer()
    signer = await challenged(member, MEMBER)
    question = Command(RequestCode.QUERY_DATA_VERSION, ext=dict(LEADER), body=b"{}", version=479)
    signer.sign(question)
    captured = dict(question.ext)
    captured["challenge0"] = captured.pop("challenge")
    for peer in (member, stranger):
        assert (await say(peer, code, captured, b"{}", None)).code == 16
    other = captured | {"challenge": captured["challenge0"]}
    del other["challenge0"]
    other["signedNumbe"] = other.pop("signedNumber")
    assert (await say(member, code, other, b"{}", None)).code == 16
    assert await stranger.addresses("T") == {"0": "127.0.0.1:1"}


async def test_a_signature_without_a_challenge_is_none_of_a_request_with_one(serve: Serve, secret_file: Path) -> None:
    served = await serve(authority=AuthorityKeys(secret_file=secret_file))
    peer = await served.peer()
    refused = await say(peer, RequestCode.QUERY_DATA_VERSION, LEADER, b"{}", None)
    code = str(RequestCode.QUERY_DATA_VERSION)
    added = {"challenge": refused.ext["challenge"], "signedCode": code, "signedNumber": "1"}
    assert (await say(peer, RequestCode.QUERY_DATA_VERSION, LEADER | added, b"{}", MEMBER)).code == 16


async def test_a_topic_that_its_leader_has_removed_may_be_deleted_by_everybody(serve: Serve, secret_file: Path) -> None:
    served = await serve(authority=AuthorityKeys(secret_file=secret_file))
    leader, tool = await served.peer(), await served.peer()
    for name in ("broker-a", "broker-b"):
        whole = LEADER | {"brokerName": name, "brokerAddr": f"{name}:1"}
        assert (await say(leader, RequestCode.REGISTER_BROKER, whole, BODY, MEMBER)).code == 0
    gone = LEADER | {"brokerAddr": "broker-a:1", "increment": "true", "removedTopics": "T;None"}
    assert (await say(leader, RequestCode.REGISTER_BROKER, gone, register_body({}, 2), MEMBER)).code == 0
    deletion = {"topic": "T"}
    assert (await say(tool, RequestCode.DELETE_TOPIC_IN_NAMESRV, deletion, b"", None)).code == 16
    gone |= {"brokerName": "broker-b", "brokerAddr": "broker-b:1"}
    assert (await say(leader, RequestCode.REGISTER_BROKER, gone, register_body({}, 2), MEMBER)).code == 0
    assert await tool.route("T") is None
    assert (await say(tool, RequestCode.DELETE_TOPIC_IN_NAMESRV, deletion, b"", None)).code == 0
    assert (await tool.route("U") or {})["queueDatas"][0]["brokerName"] == "broker-a"


async def test_a_follower_s_removal_of_a_topic_is_not_taken(serve: Serve) -> None:
    served = await serve()
    peer = await served.peer()
    await led(served)
    follower = LEADER | {"brokerAddr": "127.0.0.1:3", "brokerId": "2"}
    assert (await say(peer, RequestCode.REGISTER_BROKER, follower, BODY, None)).code == 0
    follower |= {"increment": "true", "removedTopics": "T"}
    assert (await say(peer, RequestCode.REGISTER_BROKER, follower, register_body({}, 2), None)).code == 0
    assert await peer.route("T") is not None


async def test_in_an_open_nameserver_a_stranger_s_term_does_not_count(serve: Serve, secret_file: Path) -> None:
    served = await serve(authority=AuthorityKeys(secret_file=secret_file), insecure_registration=True)
    await led(served)
    stranger = await served.peer()
    ext = LEADER | {"brokerAddr": "127.0.0.1:9", "term": str(10**12)}
    answer = await say(stranger, RequestCode.REGISTER_BROKER, ext, register_body({"T": 6, "U": 6}), None)
    assert (answer.code, answer.ext.get("leaderHint")) == (14, "127.0.0.1:1")
    other = LEADER | {"brokerName": "broker-java"}
    del other["term"]
    other["brokerAddr"] = "127.0.0.1:5"
    assert (await say(stranger, RequestCode.REGISTER_BROKER, other, register_body({"J": 6, "K": 6}), None)).code == 0


async def test_a_member_takes_the_place_that_a_stranger_took_first(serve: Serve, secret_file: Path) -> None:
    served = await serve(authority=AuthorityKeys(secret_file=secret_file), insecure_registration=True)
    stranger, watcher = await served.peer(), await served.peer()
    ext = LEADER | {"brokerAddr": "127.0.0.1:9", "term": str(10**12)}
    assert (await say(stranger, RequestCode.REGISTER_BROKER, ext, register_body({"T": 6, "U": 6}), None)).code == 0
    await led(served)
    assert await watcher.addresses("T") == {"0": "127.0.0.1:1"}


async def test_without_a_secret_only_this_machine_may_ask(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = await serve()
    here = await served.peer()
    assert (await here.register("127.0.0.1:1")).code == 0
    made = Connection.connection_made

    def from_elsewhere(self: Connection, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        self.is_local = False

    monkeypatch.setattr(Connection, "connection_made", from_elsewhere)
    there = await served.peer()
    answer = await there.register("127.0.0.1:9", name="broker-b")
    assert answer.code == 16 and "namesrvSecretFile" in (answer.remark or "")
    assert await there.addresses() == {"0": "127.0.0.1:1"}
    open_to_all = await serve(insecure_registration=True)
    assert (await (await open_to_all.peer()).register("127.0.0.1:9")).code == 0


async def test_whoever_showed_a_certificate_that_was_asked_for_may_ask(
    serve: Serve, secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await serve(authority=AuthorityKeys(secret_file=secret_file))
    made = Connection.connection_made

    def certified(self: Connection, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        self.has_certificate = True

    monkeypatch.setattr(Connection, "connection_made", certified)
    assert (await (await served.peer()).register("127.0.0.1:1", term="1")).code == 0
    assert served.server.table.highest_term("broker-a") == 1


# ---- bounds


async def test_brokers_and_topics_have_bounds_that_spare_those_who_are_there(serve: Serve) -> None:
    served = await serve(max_brokers=2, max_topic_entries=5)
    peer = await served.peer()
    assert (await peer.register("127.0.0.1:1", name="a", topics={"A": 6, "B": 6, "C": 6})).code == 0
    assert (await peer.register("127.0.0.1:2", name="b", topics={"A": 6, "B": 6})).code == 0
    refused = await peer.register("127.0.0.1:3", name="c", topics={})
    assert refused.code == 1 and "2 brokers are registered (maxBrokers)" in (refused.remark or "")
    refused = await peer.register("127.0.0.1:2", name="b", topics={"A": 6, "B": 6, "C": 6}, counter=2)
    assert refused.code == 1 and "maxTopicEntries" in (refused.remark or "")
    assert (await peer.register("127.0.0.1:2", name="b", topics={"A": 6, "B": 4}, counter=3)).code == 0
    await peer.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "C"})
    assert (await peer.register("127.0.0.1:2", name="b", topics={"A": 6, "B": 6, "D": 6}, counter=4)).code == 0
    await peer.close()
    await served.until(lambda: not served.server.table.has_members)
    assert served.server.table.topics.entry_count == 0


@pytest.mark.parametrize("name", ["brokerName", "clusterName", "brokerAddr"])
async def test_a_name_has_a_length(serve: Serve, name: str) -> None:
    peer = await (await serve()).peer()
    ext = LEADER | {name: "n" * 1020 + ":9999"}
    answer = await say(peer, RequestCode.REGISTER_BROKER, ext, register_body({"T": 6, "U": 6}), None)
    assert answer.code == 1 and f"field {name} has 1025 characters" in (answer.remark or "")


# ---- our broker's side


@contextlib.asynccontextmanager
async def registering(
    served: Served, secret_file: Path | None, name: str = "broker-z"
) -> AsyncIterator[NameserverLinks]:
    config = BrokerConfig(
        namesrv_addrs=(f"127.0.0.1:{served.port}",), namesrv_secret_file=secret_file, broker_name=name
    )
    client, role = RemotingClient(), Role(config, log_state(writable=True, generation=3))
    topics = {name: TopicConfig(name=name, read_queues=4, write_queues=4) for name in ("T", "U")}
    describe = lambda: Announcement(topics, DataVersion(1, 2, 3), 99)  # noqa: E731
    registration = NameserverLinks(config, "127.0.0.1:10911", role, client, describe)
    registration.start()
    try:
        yield registration
    finally:
        await registration.close()
        await client.close()


async def test_our_broker_signs_what_it_says_to_a_nameserver_that_wants_it(serve: Serve, secret_file: Path) -> None:
    served = await serve(authority=AuthorityKeys(secret_file=secret_file))
    watcher = await served.peer()
    async with registering(served, secret_file) as registration:
        await eventually(lambda: registration.registered_count == 1)
        assert await watcher.addresses("T") == {"0": "127.0.0.1:10911"}
        for connection in served.server._server.connections:  # a new connection has another challenge
            if connection.attributes.get("challenge"):
                connection.abort("cut by the test")
        await served.until(lambda: not served.server.table.has_members)
        await served.until(lambda: served.server.table.has_members)
    await served.until(lambda: not served.server.table.has_members)


async def test_our_broker_signs_its_term_at_an_open_nameserver_that_has_a_secret(
    serve: Serve, secret_file: Path
) -> None:
    served = await serve(authority=AuthorityKeys(secret_file=secret_file), insecure_registration=True)
    async with registering(served, secret_file) as registration:
        await eventually(lambda: registration.registered_count == 1)
        assert served.server.table.highest_term("broker-z") == 3


async def test_a_signature_counts_on_after_a_claim_was_refused(serve: Serve, secret_file: Path) -> None:
    served = await serve(authority=AuthorityKeys(secret_file=secret_file))
    await led(served)
    watcher = await served.peer()
    later = await served.peer()
    ahead = LEADER | {"brokerAddr": "127.0.0.1:7", "term": "9"}
    assert (await say(later, RequestCode.REGISTER_BROKER, ahead, BODY, MEMBER)).code == 0
    async with registering(served, secret_file, name="broker-a") as registration:
        await asyncio.sleep(1.5)  # refused at least twice, a second apart: term 3 comes after term 9
        assert registration.registered_count == 0
        assert await watcher.addresses("T") == {"0": "127.0.0.1:7"}
        gone = LEADER | {"brokerAddr": "127.0.0.1:7"}
        assert (await say(later, RequestCode.UNREGISTER_BROKER, gone, b"", MEMBER)).code == 0
        served.server.table._terms.expire(1 << 60)
        await eventually(lambda: registration.registered_count == 1)


@pytest.mark.parametrize("has_secret", [False, True])
async def test_a_nameserver_without_a_secret_takes_our_broker_with_and_without_one(
    serve: Serve, secret_file: Path, has_secret: bool
) -> None:
    served = await serve()
    async with registering(served, secret_file if has_secret else None) as registration:
        await eventually(lambda: registration.registered_count == 1)
