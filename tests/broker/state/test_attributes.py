"""Attributes of topics and groups: what RocketMQ takes, and what it says to the rest."""

import orjson
import pytest

from broker.state.attributes import GROUP_ATTRIBUTES, TOPIC_ATTRIBUTES, change_attributes, parse_change
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.refusal import Refusal
from tests.broker.conftest import Desk, MemoryClient, topic_fields

TOPIC = RequestCode.UPDATE_AND_CREATE_TOPIC
GROUP = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("", {}),
        ("+a=1,-b", {"+a": "1", "-b": ""}),
        ("+a=1=2,", {"+a": "1"}),  # as Java splits it
    ],
)
def test_a_change_is_read_as_java_reads_it(text: str, change: dict[str, str]) -> None:
    assert parse_change(text) == change


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("a=1", "add/alter attribute format is wrong: a"),
        ("a", "delete attribute format is wrong: a"),
        ("+a=", "Index 1 out of bounds for length 1"),
        ("-a,-a", "key duplication: -a"),
    ],
)
def test_what_is_no_change_is_refused_in_java_s_words(text: str, remark: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_change(text)
    assert caught.value.remark == remark


@pytest.mark.parametrize("value", ["9" * 5000, "0" * 5000 + "7", "+" + "9" * 19])
def test_a_number_that_no_long_holds_is_refused_in_java_s_words_however_long_it_is(value: str) -> None:
    with pytest.raises(Refusal, match="For input string") as caught:
        change_attributes(TOPIC_ATTRIBUTES, None, {"+reserve.time": value})
    assert len(caught.value.remark) < 200


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        (None, "+cleanup.policy=COMPACTION", {"cleanup.policy": "COMPACTION"}),
        ({"queue.type": "BatchCQ"}, "+message.type=FIFO", {"queue.type": "BatchCQ", "message.type": "FIFO"}),
        ({"message.type": "FIFO"}, "+message.type=DELAY", {"message.type": "DELAY"}),
        ({"message.type": "FIFO"}, "-message.type", {}),
        ({}, "+reserve.time=9223372036854775807", {"reserve.time": "9223372036854775807"}),
    ],
)
def test_attributes_are_set_changed_and_removed(
    before: dict[str, str] | None, change: str, after: dict[str, str]
) -> None:
    assert change_attributes(TOPIC_ATTRIBUTES, before, parse_change(change)) == after


@pytest.mark.parametrize(
    ("before", "change", "remark"),
    [
        (None, "-message.type", "only add attribute is supported while creating topic. key: message.type"),
        (None, "+colour=red", "unsupported key: colour"),
        (None, "+cleanup.policy=KEEP", "value is not in set: [DELETE, COMPACTION]"),
        (None, "+queue.type=x", "value is not in set: [SimpleCQ, BatchCQ]"),
        (None, "+reserve.time=-2", "value is not in range(-1, 9223372036854775807)"),
        (None, "+reserve.time=soon", 'For input string: "soon"'),
        (None, "+a-b=1", "kv string format wrong."),
        ({}, "+cleanup.policy=COMPACTION", "attempt to update an unchangeable attribute. key: cleanup.policy"),
        ({"queue.type": "BatchCQ"}, "-queue.type", "attempt to update an unchangeable attribute. key: queue.type"),
        ({}, "-message.type", "attempt to delete a nonexistent key: message.type"),
        ({}, "+message.type=FIFO,-message.type", "alter duplication key. key: message.type"),
        ({}, "x+message.type=FIFO", "kv string format wrong."),
    ],
)
def test_a_bad_change_is_refused_in_java_s_words(before: dict[str, str] | None, change: str, remark: str) -> None:
    with pytest.raises(Refusal) as caught:
        change_attributes(TOPIC_ATTRIBUTES, before, parse_change(change))
    assert caught.value.remark == remark


def test_groups_have_no_attributes_yet() -> None:
    with pytest.raises(Refusal, match="unsupported key: a"):
        change_attributes(GROUP_ATTRIBUTES, None, {"+a": "1"})


async def test_attributes_ride_in_the_topic_s_settings_and_survive_a_restart(desk: Desk) -> None:
    ext = topic_fields("T", 1, attributes="+cleanup.policy=COMPACTION,+message.type=NORMAL")
    assert (await desk.client().ask(TOPIC, ext)).code == 0
    await desk.stop(save_tables=False)
    await desk.start()
    shown = await desk.client().ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
    assert orjson.loads(shown.body)["attributes"] == {"cleanup.policy": "COMPACTION", "message.type": "NORMAL"}
    assert desk.parts.admin.describe().topics["T"].attributes["cleanup.policy"] == "COMPACTION"


@pytest.mark.parametrize(
    ("attributes", "code", "remark"),
    [
        ("+cleanup.policy=KEEP", 1, "value is not in set: [DELETE, COMPACTION]"),
        ("+message.type=MIXED", 29, "MIXED message type is not supported."),
    ],
)
async def test_a_topic_with_a_bad_attribute_is_not_made(
    desk: Desk, client: MemoryClient, attributes: str, code: int, remark: str
) -> None:
    answer = await client.ask(TOPIC, topic_fields("T", 1, attributes=attributes))
    assert (answer.code, answer.remark) == (code, remark)
    assert desk.parts.context.metadata.topic("T") is None


async def test_a_group_with_an_attribute_is_not_made(desk: Desk, client: MemoryClient) -> None:
    body = orjson.dumps({"groupName": "g", "attributes": {"+a": "1"}})
    answer = await client.ask(GROUP, body=body)
    assert (answer.code, answer.remark) == (1, "unsupported key: a")
    assert desk.parts.context.metadata.group("g") is None
