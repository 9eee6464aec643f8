"""What requests touch."""

import json

import pytest

from broker.auth.access import FOR_EVERY_USER, accesses
from ledgermq.message.ids import offset_message_id
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import long
from ledgermq.remoting.refusal import Refusal
from tests.broker.conftest import Desk, MemoryClient, make_topic, send

TEXT = dict[str, str]


def touched(code: int, ext: TEXT | None = None, body: object = None, topic_at: TEXT | None = None) -> list[str]:
    command = Command(code, ext=ext or {}, body=b"" if body is None else json.dumps(body).encode())
    found = accesses(command, "c", lambda offset: (topic_at or {}).get(str(offset)))
    return [f"{access.resource} {' '.join(access.actions)}" for access in found]


def test_a_send_publishes_and_a_retry_is_the_groups() -> None:
    assert touched(310, {"a": "p", "b": "orders"}) == ["Topic:orders Pub"]
    assert touched(10, {"producerGroup": "p", "topic": "orders"}) == ["Topic:orders Pub"]
    assert touched(310, {"a": "g", "b": "%RETRY%g"}) == ["Group:g Sub"]
    assert touched(320, {"a": "", "b": "%RETRY%g"}) == ["Group:g Sub"]
    assert touched(310, {"a": "mine", "b": "%RETRY%theirs"}) == ["Group:theirs Sub"]


@pytest.mark.parametrize("code", [310, 320])
def test_a_send_under_long_names_touches_the_topic_that_it_goes_to(code: int) -> None:
    assert touched(code, {"producerGroup": "p", "topic": "orders"}) == ["Topic:orders Pub"]
    assert touched(code, {"b": "orders", "topic": "mine"}) == ["Topic:orders Pub"]
    assert touched(10, {"b": "mine", "topic": "orders"}) == ["Topic:orders Pub"]


@pytest.mark.parametrize("where", ["i", "properties"])
def test_a_send_that_strikes_out_a_timer_touches_the_timer_s_topic(where: str) -> None:
    properties = {where: "KEYS\x01k\x02TIMER_DEL_UNIQKEY\x01theirs+0A00\x02"}
    topic = "b" if where == "i" else "topic"
    assert touched(310, {topic: "mine", **properties}) == ["Topic:mine Pub", "Topic:theirs Pub"]
    body = b"...TIMER_DEL_UNIQKEY\x01theirs+0A00\x02..."
    for code, fields in ((320, {"b": "mine"}), (310, {"b": "mine", "m": "true"})):
        found = accesses(Command(code, ext=fields, body=body), "c", lambda _: None)
        assert [str(access.resource) for access in found] == ["Topic:mine", "Topic:theirs"]
    assert [str(a.resource) for a in accesses(Command(310, ext={"b": "mine"}, body=body), "c", lambda _: None)] == [
        "Topic:mine"
    ]


@pytest.mark.parametrize("code", [10, 310, 320, 324, 325])
def test_a_send_strikes_out_the_timer_that_the_properties_name_which_the_broker_reads(code: int) -> None:
    short, long = (f"TIMER_DEL_UNIQKEY\x01{topic}+0A00\x02" for topic in ("of-short", "of-long"))
    both = {"topic": "mine", "i": short, "properties": long}
    assert touched(code, both) == ["Topic:mine Pub", "Topic:of-long Pub"]
    read = "of-long" if code == 10 else "of-short"
    assert touched(code, both | {"b": "mine"}) == ["Topic:mine Pub", f"Topic:{read} Pub"]


@pytest.mark.parametrize("code", [324, 325])
def test_a_reply_that_strikes_out_a_timer_touches_the_timer_s_topic(code: int) -> None:
    reply = {"b": "c_REPLY_TOPIC"}
    assert touched(code, reply) == []
    assert touched(code, reply | {"i": "TIMER_DEL_UNIQKEY\x01theirs+0A00\x02"}) == ["Topic:theirs Pub"]


def test_a_pull_touches_topic_and_group() -> None:
    assert touched(11, {"topic": "orders", "consumerGroup": "g"}) == ["Topic:orders Sub", "Group:g Sub"]
    assert touched(11, {"topic": "%RETRY%g", "consumerGroup": "g"}) == ["Group:g Sub", "Group:g Sub"]


def test_bodies_are_read_for_what_they_touch() -> None:
    consumer = {"groupName": "g", "subscriptionDataSet": [{"topic": "orders"}, {"topic": "%RETRY%g"}]}
    heartbeat = {"clientID": "x", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": [consumer]}
    assert touched(34, body=heartbeat) == ["Group:g Sub", "Topic:orders Sub"]
    assert touched(41, body={"consumerGroup": "g", "mqSet": [{"topic": "t", "queueId": 0}]}) == [
        "Group:g Sub",
        "Topic:t Sub",
    ]
    assert touched(200, body={"groupName": "g"}) == ["Group:g Create"]
    with pytest.raises(Refusal, match="where an object belongs"):
        touched(34, body={"consumerDataSet": ["g"]})
    with pytest.raises(Refusal, match="HEART_BEAT: the body is not JSON"):
        accesses(Command(34, body=b"{"), "c", lambda _: None)


def test_a_message_by_offset_is_of_the_topic_it_lies_in_whatever_is_said() -> None:
    assert touched(33, {"offset": "7", "topic": "mine"}, topic_at={"7": "theirs"}) == ["Topic:theirs Sub Get"]
    assert touched(33, {"offset": "-1"}) == []
    sent_back = touched(36, {"offset": "7", "group": "g", "originTopic": "mine"}, topic_at={"7": "theirs"})
    assert sent_back == ["Group:g Sub", "Topic:theirs Sub"]
    message_id = offset_message_id(bytes(8), 7)
    handed = touched(309, {"msgId": message_id, "consumerGroup": "g", "topic": "mine"}, topic_at={"7": "theirs"})
    assert handed == ["Group:g Sub", "Topic:theirs Sub"]


def test_the_end_of_a_transaction_publishes_to_the_topic_that_the_half_message_is_for() -> None:
    fields = {"commitLogOffset": "7", "producerGroup": "p"}
    assert touched(37, fields, topic_at={"7": "orders"}) == ["Topic:orders Pub"]
    both = touched(37, {**fields, "topic": "mine"}, topic_at={"7": "orders"})
    assert sorted(both) == ["Topic:mine Pub", "Topic:orders Pub"]


@pytest.mark.parametrize("offset", ["7", "+7", "007", "0000000000000000007", "+0000000000000000007"])
def test_an_offset_means_the_same_to_who_asks_for_rights_as_to_who_serves_it(offset: str) -> None:
    assert long({"offset": offset}, "offset") == 7
    lies = {"7": "theirs"}
    assert touched(33, {"offset": offset}, topic_at=lies) == ["Topic:theirs Sub Get"]
    assert touched(36, {"offset": offset, "group": "g"}, topic_at=lies) == ["Group:g Sub", "Topic:theirs Sub"]
    assert touched(37, {"commitLogOffset": offset}, topic_at=lies) == ["Topic:theirs Pub"]


def test_a_group_without_a_name_needs_a_right_of_its_own() -> None:
    fields = {"topic": "orders", "consumerGroup": ""}
    assert touched(11, fields) == ["Topic:orders Sub", "Group: Sub"]


@pytest.mark.parametrize("offset", ["", "7x", "٧", "1e1", "99999999999999999999"])
def test_an_offset_that_is_none_is_refused_before_anything_is_looked_at(offset: str) -> None:
    for code, name in ((33, "offset"), (36, "offset"), (37, "commitLogOffset")):
        with pytest.raises(Refusal, match=name):
            touched(code, {name: offset, "group": "g"})


async def test_a_waiting_record_counts_as_of_the_topic_that_it_is_for(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "orders")
    await send(client, topic="orders", i="UNIQ_KEY\x01K\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02", f="4")
    (half,) = [record for record in desk.records() if record.topic == "RMQ_SYS_TRANS_HALF_TOPIC"]
    assert desk.parts.auth.topic_at(half.physical_offset) == "orders"


@pytest.mark.parametrize("code", [200050, 200051, 200052, 200053, 200054])
def test_taking_acknowledging_and_waiting_by_pop_need_the_right_to_topic_and_group(code: int) -> None:
    assert touched(code, {"topic": "orders", "consumerGroup": "g"}) == ["Topic:orders Sub", "Group:g Sub"]


def test_what_only_shows_needs_the_right_to_see() -> None:
    assert [touched(code) for code in (402, 1007, 2003, 200055)] == [["Cluster:c Get"]] * 4
    assert [touched(code) for code in (323, 401, 905, 908, 2001, 2002, 2004)] == [["Cluster:c Update"]] * 7
    assert touched(400, body={"topic": "orders", "consumerGroup": "g"}) == ["Topic:orders Sub", "Group:g Sub"]


def test_several_names_in_a_field_are_all_touched() -> None:
    assert touched(208, {"topicList": "a;b", "consumerGroup": "g"}) == ["Topic:a Get", "Topic:b Get", "Group:g Get"]


def test_a_request_that_names_nothing_or_that_nobody_knows_is_the_clusters() -> None:
    assert touched(25) == ["Cluster:c Update"]
    assert touched(26) == ["Cluster:c Get"]
    assert touched(424242) == ["Cluster:c Update"]
    assert touched(11, {}) == ["Cluster:c Sub"]


async def test_every_request_that_is_served_needs_a_right_or_is_named_as_free(desk: Desk) -> None:
    assert {code for code in desk.parts.handler.codes if not touched(code, body={})} <= {
        *FOR_EVERY_USER,
        *(RequestCode.END_TRANSACTION, RequestCode.HEART_BEAT, RequestCode.VIEW_MESSAGE_BY_ID),
        *(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST),
        RequestCode.BATCH_ACK_MESSAGE,  # of nothing
    }
    taken = {"acks": [{"c": "g", "t": "t"}, {"c": "h", "t": "t"}]}
    assert touched(RequestCode.BATCH_ACK_MESSAGE, body=taken) == [
        "Group:g Sub",
        "Topic:t Sub",
        "Group:h Sub",
        "Topic:t Sub",
    ]
