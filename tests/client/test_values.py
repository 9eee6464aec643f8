"""The client's pure parts: allocation, routes, subscriptions, errors, properties, compression, back-off."""

import json
import pickle
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client import Message, MessageQueue
from ledgermq.client.admin.results import parse_cluster_info
from ledgermq.client.core.address import parse_addresses
from ledgermq.client.core.answers import read_body
from ledgermq.client.core.calls import FIRST_S, LEAST_TRY_S, LONGEST_S, _CallState, back_off_s
from ledgermq.client.core.compression import decompress
from ledgermq.client.errors import (
    Action,
    AnswerTimeoutError,
    CompressionUnavailableError,
    DeadlineExceededError,
    InvalidArgumentError,
    LedgerMQError,
    NoBrokerError,
    NoReplyError,
    NoRouteError,
    NotLeaderError,
    SendManyError,
    ServerError,
    TransactionUndecidedError,
    UnavailableError,
    UndecodableError,
    refusal_from,
)
from ledgermq.client.group.subscription import parse_subscription
from ledgermq.client.producer.outgoing import encode_properties
from ledgermq.message.properties import decode_properties
from ledgermq.remoting.allocation import allocate_averagely
from ledgermq.remoting.route import parse_route
from tests.client.fake import Ledger

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "allocation_vectors.json").read_text())


# -- allocation


@pytest.mark.parametrize("vector", VECTORS, ids=range(len(VECTORS)))
def test_queues_are_shared_out_as_java_does(vector: dict[str, Any]) -> None:
    queues = [MessageQueue("T", broker, queue_id) for broker, queue_id in vector["queues"]]
    for member, share in vector["shares"].items():
        expected = tuple(MessageQueue("T", broker, queue_id) for broker, queue_id in share)
        assert allocate_averagely(member, vector["members"], queues) == expected


@given(st.sets(st.text(min_size=1), min_size=1, max_size=12), st.integers(0, 40))
def test_every_queue_has_one_owner_and_shares_differ_by_one_at_most(members: set[str], queue_count: int) -> None:
    queues = [MessageQueue("T", "b", queue_id) for queue_id in range(queue_count)]
    shares = [allocate_averagely(member, list(members), queues) for member in members]
    assert sorted(queue for share in shares for queue in share) == queues
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_member_that_is_not_on_the_list_gets_nothing() -> None:
    assert allocate_averagely("me", ["you"], [MessageQueue("T", "b", 0)]) == ()


# -- routes


def test_a_route_lists_queues_by_broker_and_permission() -> None:
    body = {
        "brokerDatas": [
            {"brokerName": "b2", "cluster": "C", "brokerAddrs": {"0": "h:2", "1": "h:3"}},
            {"brokerName": "b1", "cluster": "C", "brokerAddrs": {"1": "h:1"}},
        ],
        "queueDatas": [
            {"brokerName": "b2", "perm": 6, "readQueueNums": 2, "writeQueueNums": 1},
            {"brokerName": "b1", "perm": 4, "readQueueNums": 1, "writeQueueNums": 1},
        ],
    }
    route = parse_route("T", json.dumps(body).encode())
    assert [(queue.broker, queue.queue_id) for queue in route.write_queues] == [("b2", 0)]
    assert [(queue.broker, queue.queue_id) for queue in route.read_queues] == [("b1", 0), ("b2", 0), ("b2", 1)]
    assert (route.brokers["b2"].leader, route.brokers["b1"].leader) == ("h:2", None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"brokerDatas":[]}',
        b'{"brokerDatas":[{"brokerName":"b"}],"queueDatas":[]}',
        b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":[]}],"queueDatas":[]}',
        b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":{"x":"h:1"}}],"queueDatas":[]}',
        b'{"brokerDatas":[],"queueDatas":[{"brokerName":"b","perm":"6","readQueueNums":1,"writeQueueNums":1}]}',
        b'{"brokerDatas":[],"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":1,"writeQueueNums":1000000000}]}',
        b'{"brokerDatas":[],"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":-1,"writeQueueNums":1}]}',
    ],
)
def test_a_route_of_another_shape_is_refused_by_its_topic(body: bytes) -> None:
    with pytest.raises(ValueError, match="'T'"):
        parse_route("T", body)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"brokerAddrTable":{"b":1},"clusterAddrTable":{}}', b"{}"])
def test_cluster_information_of_another_shape_is_refused(body: bytes) -> None:
    with pytest.raises(UndecodableError, match="somebody"):
        read_body("somebody", "cluster information", body, parse_cluster_info)


def test_addresses_are_split_at_semicolons_and_commas_and_each_is_kept_once() -> None:
    assert parse_addresses(" a:1 ;b:2,a:1;") == ("a:1", "b:2")
    assert parse_addresses(["[::1]:9876", "a:1"]) == ("[::1]:9876", "a:1")


# -- subscriptions, properties


@pytest.mark.parametrize(
    ("expression", "tags"),
    [("*", set()), ("", set()), (" a ", {b"a"}), ("a||b", {b"a", b"b"}), (" a || b || ", {b"a", b"b"})],
)
def test_a_tag_expression_names_its_tags(expression: str, tags: set[bytes]) -> None:
    assert parse_subscription("T", expression, 1).tags == tags


def test_a_tag_expression_of_nothing_but_separators_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'\|\| \|\|' of topic 'T'"):
        parse_subscription("T", "|| ||", 1)


def test_a_subscription_compares_tags_and_not_their_hashes() -> None:
    subscription = parse_subscription("T", "Aa", 7)
    assert subscription.to_wire()["codeSet"] == [2112]  # "BB" has the same hash
    assert subscription.wants(b"Aa")
    assert not subscription.wants(b"BB")
    assert not subscription.wants(None)


@given(
    st.dictionaries(
        st.text("abc", min_size=1),
        st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1),
        max_size=4,
    )
)
def test_properties_are_read_as_they_were_written(properties: dict[str, str]) -> None:
    text = encode_properties("ID", "tag", ["k1", "k2"], properties)
    assert decode_properties(text) == {"UNIQ_KEY": "ID", "TAGS": "tag", "KEYS": "k1 k2"} | properties


# -- errors


def every_error(kind: type[LedgerMQError]) -> list[type[LedgerMQError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in every_error(child))]


def test_every_error_is_in_the_drawing_and_says_what_helps() -> None:
    drawing = sys.modules[LedgerMQError.__module__].__doc__ or ""
    for kind in every_error(LedgerMQError):
        assert kind.__name__ in drawing
        assert isinstance(kind.action, Action)


def test_code_14_is_a_redirect_only_when_another_node_leads() -> None:
    assert type(refusal_from("a", 14, "", {"cause": "not-leader"})) is NotLeaderError
    assert type(refusal_from("a", 14, "", {"leaderHint": "h:1"})) is NotLeaderError
    assert type(refusal_from("a", 14, "", {"cause": "disk-full"})) is UnavailableError
    assert type(refusal_from("a", 14, None, None)) is UnavailableError


def test_a_message_that_no_quorum_has_yet_may_survive() -> None:
    assert not refusal_from("a", 14, "", {"cause": "no-quorum"}).outcome_known
    assert not refusal_from("a", 14, "", {"cause": "disk-failed"}).outcome_known
    assert refusal_from("a", 14, "", {"cause": "recovering"}).outcome_known


def test_hints_that_do_not_parse_are_taken_as_not_given() -> None:
    error = refusal_from("a", 14, "", {"leaderHint": "nonsense", "retryAfterMs": "soon"})
    assert (error.leader_hint, error.retry_after_s) == (None, None)


def test_the_outcome_is_unknown_where_the_message_may_be_stored() -> None:
    assert not refusal_from("a", 14, "", {"cause": "leader-changed"}).outcome_known
    assert not refusal_from("a", 1, "in-sync replicas not enough", {}).outcome_known
    assert refusal_from("a", 2, "", {}).outcome_known


def test_an_unknown_code_can_be_tried_again() -> None:
    error = refusal_from("a", 777, "what", {})
    assert (type(error), error.code, error.is_retryable) == (ServerError, 777, True)


@pytest.mark.parametrize("jitter", [0.0, 0.999])
def test_back_off_grows_to_its_bound_within_its_jitter(jitter: float) -> None:
    delays = [back_off_s(count, lambda: jitter) for count in range(1, 40)]
    assert delays == sorted(delays)
    assert 0.6 * FIRST_S < delays[0] <= FIRST_S
    assert 0.6 * LONGEST_S < delays[-1] <= LONGEST_S


SILENT = AnswerTimeoutError("a:1", 3.0)


@pytest.mark.parametrize(
    "error",
    [
        SILENT,
        refusal_from("a:1", 14, "not the leader", {"leaderHint": "b:1"}),
        NoRouteError("T", {"a:1": SILENT}),
        NoBrokerError(["a:1", "b:1"]),
        DeadlineExceededError("request", 3.0, 2, [SILENT]),
        NoReplyError("T", "id", 3.0),
        TransactionUndecidedError("id", SILENT),
        SendManyError([SILENT], ["sent", SILENT]),
        CompressionUnavailableError("zstd", "zstandard"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_come_whole_through_a_pickle(error: LedgerMQError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 -- our own
    assert (type(copy), str(copy), copy.action) == (type(error), str(error), error.action)
    assert list(map(repr, vars(copy).items())) == list(map(repr, vars(error).items()))


# -- messages


def message(body: bytes, properties: bytes, sys_flag: int = 0) -> Message:
    record = Ledger().append("T", 3, body, properties, sys_flag)
    return Message(record, MessageQueue("T", "b", 3))


@pytest.mark.parametrize("sys_flag", [0x001, 0x301], ids=["zlib of old", "zlib"])
def test_a_compressed_body_is_read_as_it_was_before(sys_flag: int) -> None:
    assert message(zlib.compress(b"x" * 5000), b"", sys_flag).body == b"x" * 5000


@pytest.mark.parametrize(("sys_flag", "module"), [(0x101, "lz4"), (0x201, "zstandard")])
def test_a_codec_that_is_not_installed_is_named(sys_flag: int, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lz4", "lz4.frame", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CompressionUnavailableError, match=repr(module)) as caught:
        _ = message(b"x", b"", sys_flag).body
    assert caught.value.module == module


@pytest.mark.parametrize(
    ("body", "sys_flag"),
    [(b"garbage", 1), (b"", 1), (zlib.compress(b"x" * 100)[:-8], 1), (b"x", 0x501)],
)
def test_a_corrupt_compressed_body_is_a_typed_error(body: bytes, sys_flag: int) -> None:
    with pytest.raises(UndecodableError):
        decompress(body, sys_flag)


def test_a_message_shows_what_its_record_holds() -> None:
    one = message(b"body", encode_properties("ID", "tag", ["k1", "k2"], {"x": "y"}).encode())
    assert (one.message_id, one.tags, one.keys, one.properties["x"]) == ("ID", "tag", ["k1", "k2"], "y")
    assert (one.topic, one.queue_id, one.queue_offset) == ("T", 3, 0)
    assert one.offset_message_id == "7F000001000000010000000000000000"


def test_a_message_without_a_unique_key_goes_by_its_offset_id() -> None:
    one = message(b"body", b"")
    assert one.message_id == one.offset_message_id


def test_a_message_from_the_retry_topic_has_the_topic_it_was_sent_to() -> None:
    assert message(b"body", b"RETRY_TOPIC\x01Orders\x02").topic == "Orders"


def test_no_try_begins_that_has_too_little_time_for_an_answer() -> None:
    state = _CallState(began_at=0.0, deadline=1.0, attempts_max=None)
    assert [state.is_over(now) for now in (0.9, 1.0 - LEAST_TRY_S / 2, 1.0)] == [False, True, True]
