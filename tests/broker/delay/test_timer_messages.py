"""Timer messages at a broker's desk: when they come, what they carry, what is refused, and how one is taken back."""

import base64
import struct
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from broker.state.tables import TIMER_PROGRESS_KEY
from ledgermq.message.properties import PROPERTIES_LENGTH_MAX
from ledgermq.message.record import Record
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from store.errors import DiskFailedError, DiskReadError
from store.log.commit_log import CommitLog
from store.timer.timer_index import TimerIndex
from store.timer.timer_log import UNIT_SIZE, TimerLog, TimerUnit
from tests.broker.conftest import Desk, MemoryClient, eventually, log_state, make_topic, send, send_fields, small_config

RECALLING = {"recall_enable": True}
TIMER_TOPIC = "rmq_sys_wheel_timer"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def send_timer(client: MemoryClient, body: bytes, key: str, **timer: object) -> Command:
    properties = "".join(f"{name}\x01{value}\x02" for name, value in timer.items())
    return await send(client, body, i=f"UNIQ_KEY\x01{key}\x02{properties}")


def lead_anew(desk: Desk) -> None:
    """Another node led for a moment."""
    desk.parts.on_role_change(log_state(writable=False, generation=8))
    desk.parts.on_role_change(log_state(writable=True, generation=9))


def delivered(desk: Desk, topic: str = "T") -> list[Record]:
    return [record for record in desk.records() if record.topic == topic]


async def arrive(desk: Desk, count: int) -> list[Record]:
    await eventually(lambda: len(delivered(desk)) >= count, f"{count} messages")
    return delivered(desk)


@pytest.mark.parametrize("name", ["TIMER_DELAY_MS", "TIMER_DELIVER_MS"], ids=["delay in ms", "time of delivery"])
async def test_a_timer_comes_at_its_time_and_not_before(desk: Desk, client: MemoryClient, name: str) -> None:
    await make_topic(client)
    due = now_ms() + 700
    await send_timer(client, b"later", "K", **{name: due if name == "TIMER_DELIVER_MS" else 700})
    assert delivered(desk) == []
    (record,) = await arrive(desk, 1)
    assert record.store_timestamp >= due
    assert record.body == b"later"


async def test_a_delivered_timer_carries_what_javas_does_and_names_its_origin(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send_timer(client, b"later", "K", TIMER_DELAY_MS=300, TAGS="A", p="v")
    (record,) = await arrive(desk, 1)
    (parked,) = [record for record in desk.records() if record.topic == TIMER_TOPIC]
    properties, first = record.property_map, parked.property_map
    assert {name: properties[name] for name in first} == first
    assert set(properties) - set(first) <= {"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}
    assert int(first["TIMER_OUT_MS"]) % 1000 == 0
    assert (first["REAL_TOPIC"], first["REAL_QID"]) == ("T", "0")
    assert (record.prepared_transaction_offset, record.born_timestamp) == (
        parked.physical_offset,
        parked.born_timestamp,
    )


async def test_timers_come_in_the_order_of_their_times_not_of_their_sending(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    start = now_ms() + 300
    for wait in (600, 0, 300):
        await send_timer(client, b"%d" % wait, f"K{wait}", TIMER_DELIVER_MS=start + wait)
    assert [record.body for record in await arrive(desk, 3)] == [b"0", b"300", b"600"]


async def test_many_timers_come_each_once_in_order_and_none_early(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    count = 2000
    start = now_ms() + 1500
    frames = [
        Command(
            RequestCode.SEND_MESSAGE_V2,
            number,
            flag=2,
            ext=send_fields(i=f"UNIQ_KEY\x01K{number}\x02TIMER_DELIVER_MS\x01{start + number // 2}\x02"),
            body=b"%d" % number,
        )
        for number in range(count)
    ]
    client.give(*frames)
    await eventually(lambda: desk.parts.delay.timer.delivered == count, "all of them")
    records = delivered(desk)
    assert [int(record.body) for record in records] == list(range(count))
    assert min(record.store_timestamp - int(record.property_map["TIMER_DELIVER_MS"]) for record in records) >= 0


async def test_a_time_that_is_past_is_none(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    answer = await send_timer(client, b"now", "K", TIMER_DELIVER_MS=now_ms() - 5000)
    assert "recallHandle" not in answer.ext
    assert [record.body for record in delivered(desk)] == [b"now"]


async def test_a_level_wins_over_a_time(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send_timer(client, b"x", "K", DELAY=3, TIMER_DELAY_MS=100)
    record = desk.records()[-1]
    assert record.topic == "SCHEDULE_TOPIC_XXXX"
    assert "TIMER_DELAY_MS" not in record.property_map


@pytest.mark.parametrize(
    ("changes", "properties", "code", "part"),
    [
        ({}, "TIMER_DELAY_SEC\x01259201\x02", 13, "max delay 259200000ms"),
        ({}, "TIMER_DELAY_MS\x01soon\x02", 13, "TIMER_DELAY_MS is 'soon'"),
        ({}, "TIMER_DELIVER_MS\x0199999999999999999999\x02", 13, "TIMER_DELIVER_MS"),
        ({}, "TIMER_DELIVER_MS\x011\x02TIMER_DEL_UNIQKEY\x01T+K\x02", 13, "time 1 is past"),
        ({"timer_wheel_enable": False}, "TIMER_DELAY_SEC\x015\x02", 1, "timerWheelEnable is false"),
    ],
)
async def test_a_timer_that_cannot_be_is_refused_as_java_does(
    tmp_path: Path, changes: dict[str, Any], properties: str, code: int, part: str
) -> None:
    desk = Desk(small_config(tmp_path, **changes))
    await desk.start()
    client = desk.client()
    await make_topic(client)
    before = desk.store.log.max_offset
    fields = send_fields(i=f"UNIQ_KEY\x01K\x02{properties}")
    answer = await client.ask(RequestCode.SEND_MESSAGE_V2, fields, b"x")
    assert (answer.code, part in (answer.remark or "")) == (code, True), answer
    assert desk.store.log.max_offset == before
    await desk.stop()


@pytest.mark.parametrize("desk", [{"timer_slot_count_max": 1}], indirect=True)
async def test_a_slot_that_is_full_twice_over_takes_no_more(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    due = now_ms() // 1000 * 1000 + 60_500
    answers = [
        await client.ask(
            RequestCode.SEND_MESSAGE_V2,
            send_fields(i=f"UNIQ_KEY\x01K{number}\x02TIMER_DELIVER_MS\x01{due}\x02"),
            b"x",
        )
        for number in range(4)
    ]
    assert [answer.code for answer in answers] == [0, 0, 1, 1]
    assert "under flow control, max num limit is 2" in (answers[-1].remark or "")


# ---- taking back


async def recall(client: MemoryClient, handle: str, topic: str = "T") -> Command:
    fields = {"producerGroup": "p", "topic": topic, "recallHandle": handle}
    return await client.ask(RequestCode.RECALL_MESSAGE, fields)


@pytest.mark.parametrize("desk", [RECALLING], indirect=True)
async def test_a_recalled_timer_never_comes(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    due = now_ms() + 1500
    sent = await send_timer(client, b"no", "K1", TIMER_DELIVER_MS=due)
    await send_timer(client, b"yes", "K2", TIMER_DELIVER_MS=due)
    words = base64.urlsafe_b64decode(sent.ext["recallHandle"]).decode().split(" ")
    assert words == ["v1", "T", "b", str((due - 1) // 1000 * 1000 + 1), "K1"]
    answer = await recall(client, sent.ext["recallHandle"])
    assert (answer.code, answer.ext["msgId"]) == (0, "K1")
    assert [record.body for record in await arrive(desk, 1)] == [b"yes"]
    await eventually(lambda: desk.parts.delay.timer.index.read_ms > due)
    assert [record.body for record in delivered(desk)] == [b"yes"]
    assert desk.parts.delay.timer.index.metrics.counts == {"T": 0}


@pytest.mark.parametrize("desk", [RECALLING], indirect=True)
async def test_what_an_earlier_leader_recalled_never_comes_though_the_next_ones_index_is_behind(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(client)
    timer = desk.parts.delay.timer
    due = now_ms() + 1500
    sent = await send_timer(client, b"no", "K1", TIMER_DELIVER_MS=due)
    await send_timer(client, b"yes", "K2", TIMER_DELIVER_MS=due)
    await eventually(lambda: timer.follower.behind == 0)
    monkeypatch.setattr(timer.follower, "follow", lambda: None)
    assert (await recall(client, sent.ext["recallHandle"])).code == 0
    lead_anew(desk)
    await eventually(lambda: now_ms() > due + 300)
    assert delivered(desk) == []
    monkeypatch.undo()
    timer.follower.follow()
    assert [record.body for record in await arrive(desk, 1)] == [b"yes"]
    await eventually(lambda: timer.index.read_ms > due)
    assert [record.body for record in delivered(desk)] == [b"yes"]


@pytest.mark.parametrize("desk", [RECALLING], indirect=True)
async def test_the_key_of_a_recalled_timer_is_free_again_when_the_index_has_the_recall(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(client)
    monkeypatch.setattr(desk.parts.delay.timer, "_is_leading", False)
    first = await send_timer(client, b"no", "K1", TIMER_DELIVER_MS=now_ms() + 60_000)
    assert (await recall(client, first.ext["recallHandle"])).code == 0
    await eventually(lambda: desk.parts.delay.timer.follower.behind == 0)
    monkeypatch.undo()
    await send_timer(client, b"yes", "K1", TIMER_DELAY_MS=500)
    assert [record.body for record in await arrive(desk, 1)] == [b"yes"]


@pytest.mark.parametrize("desk", [RECALLING], indirect=True)
async def test_a_recall_that_names_no_timer_of_this_broker_is_refused(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)

    def handle(*words: object) -> str:
        return base64.urlsafe_b64encode(" ".join(map(str, words)).encode()).decode()

    due = now_ms() + 60_000
    refused = {
        "nonsense": "recall handle is invalid",
        handle("v2", "T", "b", due, "K"): "recall handle is invalid",
        handle("v1", "T", "b", due, "K\x01x\x02"): "recall handle is invalid",
        handle("v1", "U", "b", due, "K"): "topic not match",
        handle("v1", "T", "other", due, "K"): "broker service not available",
        handle("v1", "T", "b", "x", "K"): "timestamp invalid",
        handle("v1", "T", "b", now_ms() - 1, "K"): "timestamp invalid",
        handle("v1", "T", "b", due + 300_000_000, "K"): "timestamp invalid",
    }
    for text, part in refused.items():
        answer = await recall(client, text)
        assert (answer.code, part in (answer.remark or "")) == (604, True), answer
    assert (await recall(client, handle("v1", "X", "b", due, "K"), "X")).code == 17


async def test_recalls_are_forbidden_unless_allowed(client: MemoryClient) -> None:
    answer = await recall(client, "any")
    assert (answer.code, answer.remark) == (16, "recall failed, operation is forbidden")


# ---- what survives


async def test_a_timer_fires_once_across_restarts(tmp_path: Path) -> None:
    desk = Desk(small_config(tmp_path))
    await desk.start()
    await make_topic(desk.client())
    start = now_ms() + 300
    for number in range(40):
        await send_timer(desk.client(), b"%d" % number, f"K{number}", TIMER_DELIVER_MS=start + number * 40)
    await arrive(desk, 10)
    await desk.stop(save_tables=False)
    await desk.start()
    await arrive(desk, 25)
    await desk.stop()
    await desk.start()
    records = await arrive(desk, 40)
    assert sorted(int(record.body) for record in records) == list(range(40))
    await desk.stop()


@pytest.mark.parametrize("lost", [["timerwheel"], ["timerlog"], ["timerwheel", "timerlog", "config/timercheck"]])
async def test_a_timer_fires_though_its_files_are_lost(tmp_path: Path, lost: list[str]) -> None:
    desk = Desk(small_config(tmp_path))
    await desk.start()
    await make_topic(desk.client())
    await send_timer(desk.client(), b"x", "K", TIMER_DELAY_MS=1500)
    await desk.stop()
    for name in lost:
        path = tmp_path / name
        for file in [path] if path.is_file() else path.iterdir():
            file.unlink()
    await desk.start()
    assert [record.body for record in await arrive(desk, 1)] == [b"x"]
    await desk.stop()


async def test_a_broker_starts_though_the_disk_cannot_read_the_timer_that_came_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(small_config(tmp_path))
    await desk.start()
    client = desk.client()
    await make_topic(client)
    for key in ("first", "last"):
        await send_timer(client, key.encode(), key, TIMER_DELAY_SEC=3600)
    *_, last = [record for record in desk.records() if record.topic == TIMER_TOPIC]
    await eventually(lambda: desk.parts.delay.timer.follower.behind == 0, "entered")
    await desk.stop()
    read = CommitLog.read

    def read_some(log: CommitLog, physical_offset: int, size_bytes: int) -> memoryview:
        if physical_offset == last.physical_offset:
            raise DiskReadError(log.directory, physical_offset, "a bad sector")
        return read(log, physical_offset, size_bytes)

    monkeypatch.setattr(CommitLog, "read", read_some)
    await desk.start()
    assert desk.parts.delay.timer.follower.behind == 0
    await desk.stop()


async def test_a_broker_whose_timers_cannot_be_saved_stops_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(small_config(tmp_path))
    await desk.start()
    await make_topic(desk.client())
    await send_timer(desk.client(), b"x", "K", TIMER_DELAY_SEC=3600)

    def fails(_: TimerIndex) -> None:
        raise DiskFailedError(tmp_path / "timerwheel", "sync failed")

    with monkeypatch.context() as patch:
        patch.setattr(TimerIndex, "close", fails)
        await desk.stop()
    assert not (tmp_path / "abort").exists()


async def test_a_timer_beyond_the_window_is_rolled_on_until_it_fires(tmp_path: Path) -> None:
    desk = Desk(small_config(tmp_path, timer_precision_ms=100, timer_roll_window_slots=6))
    await desk.start()
    client = desk.client()
    await make_topic(client)
    due = now_ms() + 2000
    await send_timer(client, b"odd", "L", TIMER_DELAY_MS=2000, TIMER_ROLL_TIMES="9" * 5000)
    await send_timer(client, b"far", "K", TIMER_DELAY_MS=2000)
    odd, record = sorted(await arrive(desk, 2), key=lambda one: bytes(one.body), reverse=True)
    assert (bytes(odd.body), bytes(record.body)) == (b"odd", b"far")
    assert record.store_timestamp >= due
    assert int(record.property_map["TIMER_ROLL_TIMES"]) >= 2
    await desk.stop()


async def test_the_timers_progress_and_counts_can_be_asked_for(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send_timer(client, b"x", "K", TIMER_DELAY_SEC=3600)
    check = await client.ask(RequestCode.GET_TIMER_CHECK_POINT)
    assert struct.unpack(">7q", check.body)[2] == 1
    metrics = await client.ask(RequestCode.GET_TIMER_METRICS)
    assert orjson.loads(metrics.body)["timingCount"]["T"]["count"] == 1


async def test_nobody_sends_to_the_timer_topic(client: MemoryClient) -> None:
    answer = await client.ask(RequestCode.SEND_MESSAGE_V2, send_fields(TIMER_TOPIC), b"x")
    assert answer.code == 16


def far_timers(count: int) -> list[Command]:
    due = now_ms() + 3_600_000
    return [
        Command(
            RequestCode.SEND_MESSAGE_V2,
            number,
            flag=2,
            ext=send_fields(i=f"UNIQ_KEY\x01K{number}\x02TIMER_DELIVER_MS\x01{due + number}\x02"),
            body=b"x",
        )
        for number in range(count)
    ]


async def test_a_new_leader_need_not_look_at_all_that_came_since_the_last_delivery(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client)
    await send_timer(client, b"first", "first", TIMER_DELAY_MS=100)
    await arrive(desk, 1)
    client.give(*far_timers(6000))
    index = desk.parts.delay.timer.index
    await eventually(lambda: index.queue_offset == 6001, "in the index")

    # Progress is also recorded when the first timer's slot ends, with whatever is in the index by then.
    def unseen() -> int:
        progress = desk.parts.context.state.offsets.get(TIMER_PROGRESS_KEY, {})
        return index.queue_offset - progress.get(0, 0)

    await eventually(lambda: unseen() <= 5000, "progress")


async def test_a_new_leader_looks_at_what_came_since_the_last_delivery_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.delay.timer_service._SLICE_S", 0.0)
    desk = Desk(small_config(tmp_path))
    await desk.start()
    client = desk.client()
    await make_topic(client)
    client.give(*far_timers(300))
    await eventually(lambda: desk.parts.delay.timer.index.queue_offset == 300, "in the index")
    service = desk.parts.delay.timer
    service._run += 1
    service._is_leading = False
    service._add_late(service._run, 0)
    assert not service._is_leading, "others had their turn"
    await eventually(lambda: service._is_leading, "it leads")
    await desk.stop()


async def test_a_timer_that_cannot_be_read_holds_up_no_other_and_comes_when_it_can_be(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(client)
    second = (now_ms() // 1000 + 4) * 1000
    for body, due in ((b"bad", second + 300), (b"same second", second + 100), (b"later", second + 1100)):
        await send_timer(client, body, body.decode(), TIMER_DELIVER_MS=due)
    bad = next(record for record in desk.records() if record.body == b"bad").physical_offset
    look_up, tries = desk.store.reader.look_up, []

    def fails(physical_offset: int) -> memoryview | None:
        if physical_offset != bad:
            return look_up(physical_offset)
        tries.append(physical_offset)
        raise DiskReadError(desk.config.store.root, bad, "[Errno 5] Input/output error")

    monkeypatch.setattr(desk.store.reader, "look_up", fails)
    assert [record.body for record in await arrive(desk, 2)] == [b"same second", b"later"]
    await eventually(lambda: len(tries) > 3, "many tries")
    assert desk.parts.delay.timer.index.read_ms <= second
    monkeypatch.undo()
    assert [record.body for record in await arrive(desk, 3)] == [b"same second", b"later", b"bad"]
    await eventually(lambda: desk.parts.delay.timer.index.read_ms > second + 1000, "the read time")


async def test_a_part_of_the_timer_log_that_cannot_be_read_holds_up_no_other_slot_and_comes_when_it_can_be(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(client)
    timer = desk.parts.delay.timer
    second = (now_ms() // 1000 + 4) * 1000
    for body, due in ((b"oldest", 300), (b"bad", 200), (b"newest", 100), (b"later", 1100)):
        await send_timer(client, body, body.decode(), TIMER_DELIVER_MS=second + due)
    await eventually(lambda: timer.follower.behind == 0)
    bad = timer.index.newest_at(second) - UNIT_SIZE
    unit, tries = TimerLog.unit, []

    def fails(timer_log: TimerLog, position: int) -> TimerUnit | None:
        if position != bad:
            return unit(timer_log, position)
        tries.append(position)
        raise DiskReadError(desk.config.store.root, bad, "[Errno 5] Input/output error")

    monkeypatch.setattr(TimerLog, "unit", fails)
    lead_anew(desk)  # nothing is loaded yet
    assert [record.body for record in await arrive(desk, 2)] == [b"newest", b"later"]
    await eventually(lambda: len(tries) > 1, "tried again")
    assert timer.index.read_ms <= second
    monkeypatch.undo()
    assert {record.body for record in await arrive(desk, 4)} == {b"oldest", b"bad", b"newest", b"later"}
    await eventually(lambda: timer.index.read_ms > second + 1000)
    assert len(delivered(desk)) == 4


async def test_a_timer_whose_properties_have_no_room_for_more_comes_all_the_same(tmp_path: Path) -> None:
    desk = Desk(small_config(tmp_path, timer_precision_ms=100, timer_roll_window_slots=6))
    await desk.start()
    client = desk.client()
    await make_topic(client)
    await send_timer(client, b"x", "K", TIMER_DELAY_MS=300)
    (parked,) = [record for record in desk.records() if record.topic == TIMER_TOPIC]
    room = PROPERTIES_LENGTH_MAX - len(parked.properties) - len("p\x01\x02")
    for body, delay_ms in ((b"near", 300), (b"far!", 1200)):
        filler = "v" * (room + len("300") - len(str(delay_ms)))
        await send_timer(client, body, body.decode()[:1], TIMER_DELAY_MS=delay_ms, p=filler)
    assert sorted(record.body for record in await arrive(desk, 3)) == [b"far!", b"near", b"x"]
    await desk.stop()
