"""The page of /metrics against that of a real broker 5.3.3, and its numbers against what was done."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest

from broker.metrics.page import MetricsPage
from ledgermq.message.record import decode_records
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.wall_clock import wall_clock_ms
from telemetry.metrics import Registry
from tests.broker.conftest import (
    Desk,
    MemoryClient,
    eventually,
    make_topic,
    pull_fields,
    send,
    send_fields,
    small_config,
)
from tests.broker.pop.support import ack, handles, pop

COMMIT, ROLLBACK = 8, 12

GOLDEN = json.loads(Path(__file__).with_name("golden_metrics_5_3_3.json").read_text())
"""Names, types, help, labels and bounds on the page of a broker 5.3.3 that served the conformance suite."""

RUNTIME = Path(__file__).with_name("golden_runtime_5_3_3.txt")
"""What such a broker answers to GET_BROKER_RUNTIME_INFO, without the ratio that has a path in its name."""

_LINE = re.compile(r"([a-zA-Z_:0-9]+)(?:\{(.*)\})? (\S+)")
_PAIR = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_PARTS = re.compile(r"_(bucket|sum|count)$")


@dataclass
class Shown:
    """One metric of a page."""

    kind: str
    explanation: str
    label_sets: set[tuple[str, ...]] = field(default_factory=set)
    bounds: list[str] = field(default_factory=list)
    values: dict[frozenset[tuple[str, str]], float] = field(default_factory=dict)


def read_page(text: str) -> dict[str, Shown]:
    """The metrics of a page by name; of histograms the values are their counts."""
    found: dict[str, Shown] = {}
    help_text, name = "", ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, help_text = line.split(" ", 3)
        elif line.startswith("# TYPE "):
            found[name] = Shown(line.split()[3], help_text)
        else:
            match = _LINE.fullmatch(line)
            assert match is not None, line
            add_line(found[name], match[1], dict(_PAIR.findall(match[2] or "")), match[3])
    return found


def add_line(shown: Shown, name: str, labels: dict[str, str], value: str) -> None:
    bound = labels.pop("le", None)
    shown.label_sets.add(tuple(sorted(labels)))
    if bound is not None and bound not in shown.bounds:
        shown.bounds.append(bound)
    if shown.kind != "histogram" or name.endswith("_count"):
        shown.values[frozenset(labels.items())] = float(value)


def value(shown: Shown, **labels: str) -> float:
    """The one series that has these labels."""
    (found,) = [number for all_labels, number in shown.values.items() if labels.items() <= dict(all_labels).items()]
    return found


async def text_of(pieces: AsyncIterator[bytes]) -> str:
    """A whole page."""
    return b"".join([piece async for piece in pieces]).decode()


class Scraped:
    """A desk with a page."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.page = MetricsPage(desk.config, Registry(), desk.parts, wall_clock_ms)

    async def rocketmq_page(self) -> dict[str, Shown]:
        return read_page(await text_of(self.page.rocketmq_page()))

    async def whole(self) -> dict[str, Shown]:
        return read_page(await text_of(self.page.whole()))


@pytest.fixture
async def scraped(tmp_path: Path) -> AsyncIterator[Scraped]:
    desk = Desk(small_config(tmp_path, recall_enable=True, transaction_op_interval_ms=10))
    await desk.start()
    yield Scraped(desk)
    await desk.stop()


def properties(key: str, **more: object) -> str:
    return "".join(f"{name}\x01{text}\x02" for name, text in {"UNIQ_KEY": key, **more}.items())


async def beat(client: MemoryClient, group: str, consume_type: str, topic: str) -> None:
    """Be a producer, and a consumer in a group."""
    consumer = {
        "groupName": group,
        "consumeType": consume_type,
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [{"topic": topic, "subString": "*", "subVersion": 1, "expressionType": "TAG"}],
    }
    producers = [{"groupName": "producers"}]
    body = orjson.dumps({"clientID": "c", "producerDataSet": producers, "consumerDataSet": [consumer]})
    assert (await client.ask(RequestCode.HEART_BEAT, body=body, version=479)).code == 0


async def transact(client: MemoryClient, key: str, decision: int) -> None:
    sent = await send(client, g=str(wall_clock_ms()), i=properties(key, TRAN_MSG="true", PGROUP="p"))
    fields = {
        "producerGroup": "p",
        "tranStateTableOffset": sent.ext["queueOffset"],
        "commitLogOffset": str(int(sent.ext["msgId"][16:], 16)),
        "commitOrRollback": str(decision),
        "msgId": key,
    }
    assert (await client.ask(RequestCode.END_TRANSACTION, fields)).code == 0


async def do_everything(desk: Desk, client: MemoryClient) -> None:
    """All kinds of traffic: topic T (one queue) gets three plain messages, one in order, and one each that waited."""
    await make_topic(client, "T")
    group = {"groupName": "g", "retryMaxTimes": 0, "consumeEnable": True}
    body = orjson.dumps(group)
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0
    await beat(client, "g", "CONSUME_PASSIVELY", "T")
    held = client.start(RequestCode.PULL_MESSAGE, pull_fields(sysFlag=6, suspendTimeoutMillis=9000))
    for number in range(3):
        await send(client, bytes(2000), i=properties(f"K{number}"))
    await client.answer_to(held)
    await send(client, i=properties("F", __SHARDINGKEY="o"))
    await send(client, i=properties("D", DELAY=1))
    await send(client, i=properties("M", TIMER_DELAY_MS=20))
    await transact(client, "C", COMMIT)
    await transact(client, "R", ROLLBACK)
    await eventually(lambda: desk.store.queues.get("T", 0).max_offset == 7, "all messages")
    pulled = await client.ask(RequestCode.PULL_MESSAGE, pull_fields(maxMsgNums=4))
    first = decode_records(pulled.body)[0]
    back = {"group": "g", "offset": str(first.physical_offset), "delayLevel": "-1", "originTopic": "T"}
    assert (await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
    await beat(client, "popper", "CONSUME_POP", "T")
    popped = await pop(client, consumerGroup="popper", maxMsgNums=2, invisibleTime=100, initMode=0)
    await ack(client, handles(popped)[0], consumerGroup="popper")
    await eventually(lambda: desk.parts.pop.revive.revived == 1, "a message that comes again")
    await pop(client, consumerGroup="popper", initMode=0)
    refused = await client.ask(RequestCode.SEND_MESSAGE_V2, send_fields("T", 9), b"x")
    assert refused.code == ResponseCode.INVALID_PARAMETER


async def test_every_metric_of_a_real_broker_is_there_with_its_type_labels_help_and_bounds(scraped: Scraped) -> None:
    await do_everything(scraped.desk, scraped.desk.client())
    shown = await scraped.rocketmq_page()
    assert set(shown) == set(GOLDEN)
    for name, golden in GOLDEN.items():
        found = shown[name]
        assert (found.kind, found.explanation) == (golden["type"], golden["help"])
        assert found.bounds == golden.get("le", []), name
        assert found.label_sets <= {tuple(sorted(names)) for names in golden["labels"]}, name


async def test_the_numbers_are_those_of_what_was_done(scraped: Scraped) -> None:
    desk = scraped.desk
    await do_everything(desk, desk.client())
    shown = await scraped.rocketmq_page()
    came = shown["rocketmq_messages_in_total"]
    assert value(came, topic="T", message_type="normal", is_system="false") == 3
    assert value(came, topic="T", message_type="fifo") == 1
    assert value(came, topic="T", message_type="delay") == 2  # by level and by time
    assert value(came, topic="T", message_type="transaction") == 1
    assert value(came, topic="SCHEDULE_TOPIC_XXXX", message_type="delay", is_system="true") == 1
    assert value(came, topic="rmq_sys_wheel_timer", message_type="delay") == 1
    assert value(came, topic="RMQ_SYS_TRANS_HALF_TOPIC", message_type="transaction") == 2
    plain = [record.size for record in desk.records() if record.topic == "T" and len(record.body) == 2000]
    assert value(shown["rocketmq_throughput_in_total"], topic="T", message_type="normal") == sum(plain)
    assert value(shown["rocketmq_message_size"], topic="T", message_type="normal") == 3
    assert value(shown["rocketmq_commit_messages_total"], topic="T") == 1
    assert value(shown["rocketmq_rollback_messages_total"], topic="T") == 1
    assert value(shown["rocketmq_half_messages"], topic="T") == 0
    assert value(shown["rocketmq_send_to_dlq_messages_total"], topic="T", consumer_group="g") == 1
    assert value(shown["rocketmq_timer_enqueue_total"], topic="T") == 1
    assert value(shown["rocketmq_timer_dequeue_total"], topic="T") == 1
    assert value(shown["rocketmq_pop_revive_retry_messages_total"], consumer_group="popper", topic="T") == 1


async def test_what_consumers_got_and_how_far_they_are_is_told(scraped: Scraped) -> None:
    desk = scraped.desk
    client = desk.client()
    await do_everything(desk, client)
    shown = await scraped.rocketmq_page()
    out = shown["rocketmq_messages_out_total"]
    assert value(out, topic="T", consumer_group="g") == 1 + 4
    assert value(out, topic="T", consumer_group="popper", is_retry="false") == 2 + 5
    assert value(out, topic="T", consumer_group="popper", is_retry="true") == 1
    await desk.parts.context.offsets.drain()
    commit = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"}
    assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
    shown = await scraped.rocketmq_page()
    of_group = {"consumer_group": "g", "topic": "T", "is_retry": "false"}
    assert value(shown["rocketmq_consumer_lag_messages"], **of_group) == 6
    assert value(shown["rocketmq_consumer_inflight_messages"], **of_group) == 3
    assert value(shown["rocketmq_consumer_ready_messages"], **of_group) == 3
    assert value(shown["rocketmq_consumer_lag_latency_milliseconds"], **of_group) > 0
    of_popper = {"consumer_group": "popper", "topic": "T", "is_retry": "false"}
    assert value(shown["rocketmq_consumer_inflight_messages"], **of_popper) == 5
    assert value(shown["rocketmq_consumer_ready_messages"], **of_popper) == 0
    connected = shown["rocketmq_consumer_connections"]
    assert value(connected, consumer_group="popper", consume_mode="pop", version="v5_3_3", language="java") == 1
    assert value(shown["rocketmq_producer_connections"], version="v5_3_3") == 1


async def test_requests_are_told_apart_by_answer_and_by_whether_they_were_held(scraped: Scraped) -> None:
    await do_everything(scraped.desk, scraped.desk.client())
    latency = (await scraped.rocketmq_page())["rocketmq_rpc_latency_milliseconds"]
    pulls = {"request_code": "pull_message", "response_code": "success", "result": "success"}
    assert value(latency, is_long_polling="true", **pulls) == 1
    assert value(latency, is_long_polling="false", **pulls) == 1
    sends = {"request_code": "send_message_v2", "is_long_polling": "false"}
    assert value(latency, response_code="success", **sends) == 8
    refused = [labels for labels in map(dict, latency.values) if labels["request_code"] == "send_message_v2"]
    assert len(refused) == 2
    assert value(latency, request_code="heart_beat", response_code="success") == 2


async def test_labels_that_are_configured_are_on_every_series_and_in_order(tmp_path: Path) -> None:
    desk = Desk(small_config(tmp_path, metrics_labels=(("zone", "z"), ("dc", 'e"')), metrics_in_delta=True))
    await desk.start()
    text = await text_of(Scraped(desk).page.rocketmq_page())
    series = [line for line in text.splitlines() if not line.startswith("#")]
    assert all('aggregation="delta"' in line and 'zone="z"' in line and r'dc="e\""' in line for line in series)
    assert all(line.partition("{")[2].startswith('otel_scope_name="broker-meter",aggregation=') for line in series)
    await desk.stop()


async def test_label_sets_beyond_the_limit_are_counted_together(tmp_path: Path) -> None:
    desk = Desk(small_config(tmp_path, metrics_label_sets_max=4, max_topics=100))
    await desk.start()
    client = desk.client()
    for number in range(10):
        await make_topic(client, f"T{number}")
        await send(client, topic=f"T{number}")
    shown = (await Scraped(desk).rocketmq_page())["rocketmq_messages_in_total"]
    assert len(shown.values) <= 5
    assert sum(shown.values.values()) == 10
    assert value(shown, otel_metric_overflow="true") == 6
    await desk.stop()


SHAPES = {
    "three rates": r"[\d.E-]+ [\d.E-]* [\d.E-]*",
    "whole number": r"-?\d+",
    "fraction": r"\d+\.\d+(E-?\d+)?",
    "size": r"\d+(\.\d)? [KMGT]?i?B",
    "offsets": r"\d+,\d+",
    "spread": r"(\[[^\]]+\]:\d+ ){13}",
    "capacity": r"Total : \S+ \S+, Free : \S+ \S+\.",
    "runtime": r"\[ \d+ days, \d+ hours, \d+ minutes, \d+ seconds \]",
    "yes or no": r"true|false",
    "version": r"V\d_\d_\d",
}


def shape(text: str) -> str:
    return next(name for name, pattern in SHAPES.items() if re.fullmatch(pattern, text))


async def test_runtime_info_has_a_real_brokers_keys_and_shapes_of_values(scraped: Scraped) -> None:
    desk = scraped.desk
    await do_everything(desk, desk.client())
    for _ in range(2):
        desk.parts.admin.runtime.sample()
    table = desk.parts.admin.runtime.table(writable=True)
    theirs = dict(line.split("=", 1) for line in RUNTIME.read_text().splitlines())
    only_here = {"getTransferedTps", "remainHowManyDataToCommit"}  # as 4.x spells it; upstream only with a pool
    levels = {name for name in theirs if name.startswith("scheduleMessageOffset_")}
    own_path = f"commitLogDiskRatio_{desk.node_config.commit_log_path}"
    assert set(table) - only_here - {"scheduleMessageOffset_1", own_path} == set(theirs) - levels
    assert own_path in table
    for name in set(table) & set(theirs):
        assert shape(table[name]) == shape(theirs[name]), (name, table[name])
    assert table["getTransferedTps"] == table["getTransferredTps"]
    assert (table["putMessageTimesTotal"], table["scheduleMessageOffset_1"]) == ("11", "1,1")
    spread = re.findall(r"\]:(\d+)", table["putMessageDistributeTime"])
    assert sum(map(int, spread)) >= 11
    assert int(table["earliestMessageTimeStamp"]) > 0
