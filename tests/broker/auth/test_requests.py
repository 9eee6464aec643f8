"""A broker that asks: who is refused and how, and users and policies through requests 3001 to 3010."""

import json
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.admin.live_config import LiveConfig
from broker.auth_settings import AuthSettings
from broker.state.files import load_state
from broker.transactions.copies import TransactionCopies
from ledgermq.message.record import Record
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import SEND_NAMES
from ledgermq.remoting.signature import Credentials, signature
from node.keys import BROKER_KEYS
from tests.broker.conftest import Desk, MemoryClient, eventually, pull_fields, send_fields

ROOT = Credentials("root", "root-secret")
ALICE = Credentials("alice", "alice-secret")
FIRST = json.dumps({"username": "root", "password": "root-secret"})
ASKING = {"auth": AuthSettings(authentication_enable=True, first_user=FIRST)}
CHECKING = {"auth": AuthSettings(authentication_enable=True, authorization_enable=True, first_user=FIRST)}
checking = pytest.mark.parametrize("desk", [CHECKING], indirect=True)
asking = pytest.mark.parametrize("desk", [ASKING], indirect=True)


async def ask(
    client: MemoryClient, who: Credentials | None, code: int, ext: dict[str, str] | None = None, body: object = None
) -> Command:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    command = Command(code, ext=ext or {}, body=data)
    if who is not None:
        who.sign(command)
    return await client.ask(code, command.ext, data)


async def done(client: MemoryClient, code: int, ext: dict[str, str], body: object = None) -> Command:
    answer = await ask(client, ROOT, code, ext, body)
    assert answer.code == 0, answer
    return answer


def read(body: bytes | memoryview) -> Any:
    return json.loads(bytes(body))


async def rooted(desk: Desk) -> MemoryClient:
    await eventually(lambda: "root" in desk.parts.context.state.users, "the first user")
    return desk.client()


async def make_alice(client: MemoryClient, *entries: tuple[str, list[str], str]) -> None:
    await done(client, RequestCode.AUTH_CREATE_USER, {"username": "alice"}, {"password": "alice-secret"})
    if entries:
        listed = [{"resource": r, "actions": a, "decision": d} for r, a, d in entries]
        body = {"subject": "User:alice", "policies": [{"entries": listed}]}
        await done(client, RequestCode.AUTH_CREATE_ACL, {"subject": "User:alice"}, body)


def test_the_signature_is_hmac_sha1_over_the_values_in_the_order_of_their_names_and_the_body() -> None:
    # printf 'rootonetwobody' | openssl dgst -sha1 -hmac root-secret -binary | base64
    fields = {"b": "two", "a": "one", "AccessKey": "root", "Signature": "not this"}
    assert signature(fields, b"body", "root-secret") == "adLyXLUUSGduffKb5RE2GVUIpKI="


@asking
async def test_who_does_not_say_who_he_is_or_cannot_prove_it_is_refused(desk: Desk) -> None:
    client = await rooted(desk)
    send = (RequestCode.SEND_MESSAGE_V2, send_fields("TBW102"), b"x")
    refusals = [
        (None, "username cannot be null."),
        (Credentials("nobody", "x"), "check signature failed."),
        (Credentials("root", "wrong"), "check signature failed."),
    ]
    for who, remark in refusals:
        answer = await ask(client, who, *send)
        assert (answer.code, answer.remark) == (16, remark)
    assert (await ask(client, ROOT, *send)).code == 0
    signed = Command(send[0], ext=dict(send[1]), body=b"x")
    ROOT.sign(signed)
    assert (await client.ask(send[0], signed.ext, b"changed")).remark == "check signature failed."
    assert (await client.ask(send[0], {**signed.ext, "b": "other"}, b"x")).remark == "check signature failed."
    assert desk.parts.handler.refusals["no-permission"] == 5


@asking
async def test_a_disabled_user_is_refused_and_an_enabled_one_is_served_again(desk: Desk) -> None:
    client = await rooted(desk)
    await make_alice(client)
    assert (await ask(client, ALICE, RequestCode.CHECK_CLIENT_CONFIG)).code != 16
    await done(client, RequestCode.AUTH_UPDATE_USER, {"username": "alice"}, {"userStatus": "disable"})
    assert (await ask(client, ALICE, RequestCode.HEART_BEAT)).remark == "User:alice is disabled."
    await done(client, RequestCode.AUTH_UPDATE_USER, {"username": "alice"}, {"userStatus": "enable"})
    assert (await ask(client, ALICE, RequestCode.CHECK_CLIENT_CONFIG)).code != 16


@checking
async def test_a_user_may_what_policies_allow_and_no_more(desk: Desk) -> None:
    client = await rooted(desk)
    rights = (("Topic:T", ["Pub", "Sub"], "Allow"), ("Group:g", ["Sub"], "Allow"))
    await make_alice(client, *rights)
    assert (await ask(client, ALICE, RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x")).code == 0
    pull = await ask(client, ALICE, RequestCode.PULL_MESSAGE, pull_fields("T"))
    assert pull.code == 0, pull
    refused = await ask(client, ALICE, RequestCode.SEND_MESSAGE_V2, send_fields("T2"), b"x")
    expected = "User:alice has no permission to access Topic:T2 from 127.0.0.1, no matched policies."
    assert (refused.code, refused.remark) == (16, expected)
    for code in (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.GET_BROKER_CONFIG, RequestCode.AUTH_LIST_USER, 424242):
        assert (await ask(client, ALICE, code)).code == 16
    assert (await ask(client, ROOT, RequestCode.GET_BROKER_CONFIG)).code == 0
    assert (await ask(client, ROOT, 424242)).code == 3
    body = (await done(client, RequestCode.AUTH_DELETE_ACL, {"subject": "User:alice", "resource": "Topic:T"})).body
    assert not body
    assert (await ask(client, ALICE, RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x")).code == 16


@checking
@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
async def test_a_reply_goes_to_the_clusters_own_topic_or_needs_the_right_of_a_send(desk: Desk, code: int) -> None:
    client = await rooted(desk)
    assert (await ask(client, ROOT, RequestCode.SEND_MESSAGE_V2, send_fields("theirs"), b"x")).code == 0
    await make_alice(client, ("Topic:mine", ["Pub"], "Allow"))
    fields = send_fields("theirs")
    long = {name: fields[short] for short, name in SEND_NAMES.items() if short in fields}
    for header in (fields, long):
        refused = await ask(client, ALICE, code, header, b"forged")
        assert (refused.code, "Topic:theirs" in str(refused.remark)) == (16, True), refused
    for topic in ("DefaultCluster_REPLY_TOPIC", "mine"):
        answer = await ask(client, ALICE, code, send_fields(topic), b"x")
        assert (answer.code, answer.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")
    assert [record.body for record in desk.records() if record.topic == "theirs"] == [b"x"]


@checking
async def test_a_message_by_its_offset_needs_a_right_on_its_own_topic_and_the_clusters_own_are_nobodys(
    desk: Desk,
) -> None:
    client = await rooted(desk)
    await make_alice(client, ("Topic:mine", ["All"], "Allow"))
    sent = await ask(client, ROOT, RequestCode.SEND_MESSAGE_V2, send_fields("theirs"), b"x")
    assert sent.code == 0
    by_topic = {record.topic: record.physical_offset for record in desk.records()}
    fields = {"topic": "mine", "offset": str(by_topic["theirs"])}
    assert (await ask(client, ALICE, RequestCode.VIEW_MESSAGE_BY_ID, fields)).code == 16
    assert (await ask(client, ROOT, RequestCode.VIEW_MESSAGE_BY_ID, fields)).code == 0
    own = {"offset": str(by_topic["rmq_sys_ledgermq_state"])}
    answer = await ask(client, ROOT, RequestCode.VIEW_MESSAGE_BY_ID, own)
    assert (answer.code, bytes(answer.body)) == (16, b"")
    back = {"group": "g", "delayLevel": "1", **own}
    assert (await ask(client, ROOT, RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 16
    pull = await ask(client, ROOT, RequestCode.PULL_MESSAGE, pull_fields("rmq_sys_ledgermq_state"))
    assert (pull.code, bytes(pull.body)) == (16, b"")
    sent = await ask(client, ROOT, RequestCode.SEND_MESSAGE_V2, send_fields("rmq_sys_ledgermq_state"), b"{}")
    assert sent.code == 16


@checking
async def test_who_may_change_the_cluster_makes_no_super_user_and_sees_no_password(desk: Desk) -> None:
    client = await rooted(desk)
    await make_alice(client, ("Cluster:DefaultCluster", ["All"], "Allow"))
    body = {"password": "p", "userType": "Super"}
    answer = await ask(client, ALICE, RequestCode.AUTH_CREATE_USER, {"username": "eve"}, body)
    assert (answer.code, answer.remark) == (1, "The super user can only be create by super user")
    for name in ("root", "alice"):
        changed = await ask(client, ALICE, RequestCode.AUTH_UPDATE_USER, {"username": name}, {"userType": "Super"})
        assert changed.code == 1
    assert (await ask(client, ALICE, RequestCode.AUTH_DELETE_USER, {"username": "root"})).code == 1
    shown = await ask(client, ALICE, RequestCode.AUTH_GET_USER, {"username": "root"})
    assert read(shown.body) == {"userStatus": "enable", "userType": "Super", "username": "root"}
    full = await ask(client, ROOT, RequestCode.AUTH_GET_USER, {"username": "alice"})
    assert read(full.body)["password"] == "alice-secret"


@asking
async def test_without_policies_users_are_a_super_users_business(desk: Desk) -> None:
    client = await rooted(desk)
    await make_alice(client)
    for code in (RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_GET_USER, RequestCode.AUTH_LIST_ACL):
        assert (await ask(client, ALICE, code, {"username": "bob"}, {"password": "p"})).code == 16


@checking
async def test_users_and_policies_are_listed_as_rocketmq_lists_them(desk: Desk) -> None:
    client = await rooted(desk)
    await make_alice(client, ("Topic:T", ["Pub"], "Allow"), ("Group:*", ["Sub"], "Deny"))
    users = read((await done(client, RequestCode.AUTH_LIST_USER, {"filter": "ali"})).body)
    expected = {"password": "alice-secret", "userStatus": "enable", "userType": "Normal", "username": "alice"}
    assert users == [expected]
    found = read((await done(client, RequestCode.AUTH_LIST_ACL, {"resourceFilter": "Group"})).body)
    entry = {"actions": ["Sub"], "decision": "Deny", "resource": "Group:*"}
    assert found == [{"policies": [{"entries": [entry], "policyType": "Custom"}], "subject": "User:alice"}]
    one = read((await done(client, RequestCode.AUTH_GET_ACL, {"subject": "User:alice"})).body)
    assert len(one["policies"][0]["entries"]) == 2
    assert not (await done(client, RequestCode.AUTH_GET_USER, {"username": "nobody"})).body
    refusals = [
        (RequestCode.AUTH_CREATE_USER, {"username": "alice"}, {"password": "p"}, 16, "The user is existed"),
        (RequestCode.AUTH_CREATE_USER, {"username": "alice"}, {"password": "alice-secret"}, 0, None),  # just made so
        (RequestCode.AUTH_UPDATE_USER, {"username": "bob"}, {}, 16, "The user is not exist"),
        (RequestCode.AUTH_CREATE_USER, {}, {}, 29, "The username is blank"),
        (RequestCode.AUTH_CREATE_USER, {"username": "bob"}, {}, 16, "password can not be blank"),
        (RequestCode.AUTH_GET_ACL, {"subject": "User:bob"}, None, 16, "The subject of User:bob is not exist."),
        (RequestCode.AUTH_GET_ACL, {"subject": "bob"}, None, 29, "field subject is 'bob', not User:name"),
        (RequestCode.AUTH_DELETE_ACL, {"subject": "User:root"}, None, 16, "The acl is not exist."),
        (RequestCode.AUTH_CREATE_ACL, {"subject": "User:alice"}, {}, 1, "The body of acl is null"),
    ]
    for code, ext, body, wanted, remark in refusals:
        answer = await ask(client, ROOT, code, ext, body)
        assert (answer.code, answer.remark) == (wanted, remark)


@checking
async def test_a_user_with_more_entries_than_a_leader_can_carry_in_a_moment_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await rooted(desk)
    await make_alice(client)

    async def put(first: int, end: int, code: int = RequestCode.AUTH_CREATE_ACL) -> Command:
        entries = [{"resource": f"Topic:t-{n}", "actions": ["Pub"], "decision": "Allow"} for n in range(first, end)]
        return await ask(client, ROOT, code, {"subject": "User:alice"}, {"policies": [{"entries": entries}]})

    read_entries: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr("broker.state.users.Entry.from_json", read_entries.append)
        answer = await put(0, 90_000)
    assert (answer.code, "90000 entries, a user may have 10000" in (answer.remark or "")) == (29, True)
    assert not read_entries, "refused before it is read"
    assert (await put(0, 9_000)).code == 0
    assert (await put(8_000, 10_001)).code == 29
    assert (await put(8_000, 10_000, RequestCode.AUTH_UPDATE_ACL)).code == 0
    assert desk.parts.context.state.acls["User:alice"].size == 10_000


@checking
async def test_users_and_policies_survive_a_restart_and_go_together(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    client = await rooted(desk)
    await make_alice(client, ("Topic:T", ["Pub"], "Allow"))
    before = desk.parts.context.state.users, desk.parts.context.state.acls
    await desk.stop()
    loaded = load_state(desk.config.store.root / "config")
    assert (loaded.users, loaded.acls) == before
    await desk.start()
    client = await rooted(desk)
    assert (desk.parts.context.state.users, desk.parts.context.state.acls) == before
    assert (await ask(client, ALICE, RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x")).code == 0
    await done(client, RequestCode.AUTH_DELETE_USER, {"username": "alice"})
    assert not desk.parts.context.state.acls
    await desk.stop(save_tables=False)
    await desk.start()
    assert list(desk.parts.context.state.users) == ["root"]
    assert "alice-secret" not in caplog.text


async def test_where_nobody_is_asked_users_can_be_made_beforehand_and_have_no_file_until_then(desk: Desk) -> None:
    client = desk.client()
    await desk.stop()
    assert not (desk.config.store.root / "config" / "ledgermqAuth.json").exists()
    await desk.start()
    client = desk.client()
    body = {"password": "p", "userType": "Super"}
    assert (await ask(client, None, RequestCode.AUTH_CREATE_USER, {"username": "root"}, body)).code == 0
    shown = read((await ask(client, None, RequestCode.AUTH_GET_USER, {"username": "root"})).body)
    assert "password" not in shown
    assert (await ask(client, None, RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x")).code == 0


@pytest.mark.parametrize(
    "desk",
    [{"auth": AuthSettings(authentication_enable=True, authentication_whitelist=frozenset({310}))}],
    indirect=True,
)
async def test_codes_of_the_white_list_need_no_user(desk: Desk) -> None:
    client = desk.client()
    assert (await ask(client, None, RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x")).code == 0
    assert (await ask(client, None, RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})).code == 16


@pytest.mark.parametrize(
    "desk",
    [
        {
            "auth": AuthSettings(
                authentication_enable=True, authentication_whitelist=frozenset({3001, 3005}), first_user=FIRST
            )
        }
    ],
    indirect=True,
)
async def test_on_codes_of_the_white_list_a_name_alone_makes_nobody_a_super_user(desk: Desk) -> None:
    client = await rooted(desk)
    forged = {"AccessKey": "root", "Signature": "made up", "username": "eve"}
    made = {"password": "p", "userType": "Super"}
    assert (await client.ask(RequestCode.AUTH_LIST_USER, forged)).code == 16
    assert (await client.ask(RequestCode.AUTH_CREATE_USER, forged, json.dumps(made).encode())).code == 16
    assert list(desk.parts.context.state.users) == ["root"]
    assert (await ask(client, ROOT, RequestCode.AUTH_CREATE_USER, {"username": "eve"}, made)).code == 0


HEARTBEAT = {"clientID": "requester@1", "producerDataSet": [{"groupName": "p"}]}


@checking
async def test_a_producer_without_the_right_to_the_topic_is_not_asked_about_its_half_messages(desk: Desk) -> None:
    client, clients = await rooted(desk), desk.parts.groups.clients
    await make_alice(client, ("Topic:Mine", ["Pub"], "Allow"))
    assert (await ask(client, ALICE, RequestCode.HEART_BEAT, {}, HEARTBEAT)).code == 0
    assert [found.user for found in clients.producers("p")] == ["alice"]
    guard = desk.parts.auth.guard
    copies = TransactionCopies(desk.parts.context, clients, guard.may_publish)
    half = cast("Record", SimpleNamespace(topic="Half", property_map={"REAL_TOPIC": "Theirs"}, physical_offset=0))
    assert not copies.ask(half, "p")
    assert guard.may_publish("alice", "Mine", "127.0.0.1") and guard.may_publish("root", "Theirs", "127.0.0.1")
    assert not guard.may_publish("nobody", "Mine", "127.0.0.1") and not guard.may_publish(None, "Mine", "127.0.0.1")
    await done(client, RequestCode.AUTH_UPDATE_USER, {"username": "alice"}, {"userStatus": "disable"})
    assert not guard.may_publish("alice", "Mine", "127.0.0.1")


@asking
async def test_a_client_id_belongs_to_the_user_whose_client_has_it(desk: Desk) -> None:
    victim = await rooted(desk)
    await make_alice(victim)
    attacker, clients = desk.client(), desk.parts.groups.clients
    await ask(victim, ROOT, RequestCode.HEART_BEAT, {}, HEARTBEAT)
    mine = clients.producer_connection("requester@1")
    assert (await ask(attacker, ALICE, RequestCode.HEART_BEAT, {}, HEARTBEAT)).code == 0
    assert mine is not None and clients.producer_connection("requester@1") is mine
    again = desk.client()
    await ask(again, ROOT, RequestCode.HEART_BEAT, {}, HEARTBEAT)
    assert clients.producer_connection("requester@1") is not mine


@checking
async def test_settings_that_stop_the_broker_or_delete_messages_are_for_super_users(desk: Desk) -> None:
    client = await rooted(desk)
    await make_alice(client, ("Cluster:*", ["Update"], "Allow"))
    live = LiveConfig(desk.config, BROKER_KEYS, lambda _: None, lambda _: None, desk.parts.auth.guard.is_super)
    desk.parts.handler.serve({RequestCode.UPDATE_BROKER_CONFIG: live.update})
    update = RequestCode.UPDATE_BROKER_CONFIG
    assert (await ask(client, ALICE, update, {}, b"transactionCheckMax=14")).code == 0
    for line in (b"startAcceptSendRequestTimeStamp=9999999999999", b"fileReservedTime=0", b"brokerPermission=4"):
        answer = await ask(client, ALICE, update, {}, b"transactionCheckMax=13\n" + line)
        assert (answer.code, (answer.remark or "").endswith("is changed by super users only")) == (16, True)
    assert desk.config.transaction_check_max == 14
    assert (await ask(client, ROOT, update, {}, b"brokerPermission=4")).code == 0


@checking
async def test_a_strict_signature_is_of_one_request_code(desk: Desk) -> None:
    """RocketMQ's covers values only: whoever captures a question can send it as a deletion."""
    client = await rooted(desk)
    topic = {"topic": "T", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "defaultTopic": "TBW102"}
    topic |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    assert (await ask(client, ROOT, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == 0
    question, deletion = RequestCode.GET_TOPIC_CONFIG, RequestCode.DELETE_TOPIC_IN_BROKER
    strict = replace(ROOT, is_strict=True)
    asked = Command(question, ext={"topic": "T"})
    strict.sign(asked)
    assert (await client.ask(question, asked.ext)).code == 0
    renamed = {"signedCodf" if name == "signedCode" else name: value for name, value in asked.ext.items()}
    without = {name: value for name, value in asked.ext.items() if name != "signedCode"}
    for fields in (asked.ext, asked.ext | {"signedCode": str(deletion)}, renamed, without):
        refused = await client.ask(deletion, fields)
        assert (refused.code, refused.remark) == (16, "check signature failed.")
    assert "T" in desk.parts.context.state.topics
    captured = Command(question, ext={"topic": "T"})
    ROOT.sign(captured)
    assert (await client.ask(deletion, captured.ext)).code == 0, "as in RocketMQ, which the other signature prevents"
