"""A slave of RocketMQ's master copies its tables by asking for them."""

import asyncio
import struct
from collections.abc import Coroutine
from typing import Any

import orjson
import pytest

from broker.admin.master_tables import MasterTables
from broker.state.tables import TIMER_PROGRESS_KEY, ReplicatedState, StateChange
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.java_json import java_json
from store.timer.checkpoint import TimerCheck
from tests.broker.conftest import eventually

TOPIC = {"topicName": "T", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
BODIES: dict[int, Any] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: {"topicConfigTable": {"T": TOPIC}},
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {"subscriptionGroupTable": {"g": {"groupName": "g"}}},
    RequestCode.GET_ALL_CONSUMER_OFFSET: {"offsetTable": {"T@g": {"0": 5, "1": 7}}},
    RequestCode.GET_ALL_DELAY_OFFSET: {"offsetTable": {"3": 9}},
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: {"messageRequestModeMap": {}},
    RequestCode.GET_TIMER_CHECK_POINT: TimerCheck(read_ms=5000, queue_offset=3).encode(),
}


class Master:
    """RocketMQ's, as its slave asks it."""

    def __init__(self) -> None:
        self.bodies = dict(BODIES)
        self.state = ReplicatedState()
        self.changes: list[StateChange] = []
        self.address = ""
        self.tables = MasterTables(self.state, self.apply, self.spawn, lambda: self.address)
        self.tables.forward = self.answer
        self.tasks: set[asyncio.Task[None]] = set()

    def apply(self, change: StateChange) -> None:
        self.changes.append(change)
        self.state.apply(change, 1)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.add(asyncio.ensure_future(work))

    async def answer(self, address: str, command: Command) -> Command:
        assert address == "m:1"
        code = 0 if command.code in self.bodies else 1
        body = self.bodies.get(command.code)
        return Command(code, body=body if isinstance(body, bytes) else orjson.dumps(body), remark="no")

    async def poll(self) -> None:
        self.tables.poll()
        await eventually(lambda: all(task.done() for task in self.tasks), "the round is over")


@pytest.fixture
async def master() -> Master:
    made = Master()
    made.address = "m:1"
    return made


async def test_what_the_master_has_is_taken_and_only_once(master: Master) -> None:
    await master.poll()
    state = master.state
    assert (state.topics["T"].read_queues, list(state.groups), state.offsets["T@g"]) == (2, ["g"], {0: 5, 1: 7})
    assert {2: 9} in state.offsets.values(), "delay level 3 is queue 2"
    assert state.offsets[TIMER_PROGRESS_KEY] == {0: 3, 1: 5000}
    count = len(master.changes)
    await master.poll()
    assert len(master.changes) == count, "nothing has changed since"


async def test_what_the_master_has_no_more_goes_and_lower_offsets_are_taken(master: Master) -> None:
    await master.poll()
    master.bodies[RequestCode.GET_ALL_TOPIC_CONFIG] = {"topicConfigTable": {}}
    master.bodies[RequestCode.GET_ALL_CONSUMER_OFFSET] = {"offsetTable": {"T@g": {"0": 1}}}
    await master.poll()
    assert not master.state.topics and master.state.offsets["T@g"][0] == 1
    count = len(master.changes)
    await master.poll()
    assert len(master.changes) == count


async def test_the_progress_of_thousands_of_groups_is_taken_as_fastjson_writes_it(master: Master) -> None:
    table = {f"T@group-{number}": dict.fromkeys(range(8), 1_000_000 + number) for number in range(4000)}
    master.bodies[RequestCode.GET_ALL_CONSUMER_OFFSET] = java_json({"offsetTable": table})
    await master.poll()
    assert master.state.offsets["T@group-3999"] == table["T@group-3999"]
    assert {2: 9} in master.state.offsets.values(), "what is asked for afterwards is taken, too"


@pytest.mark.parametrize("body", [b"", TimerCheck().encode(), struct.pack(">4q", -1, 0, 0, 0)])
async def test_timers_of_which_the_master_tells_nothing_stay_as_they_are(master: Master, body: bytes) -> None:
    master.bodies[RequestCode.GET_TIMER_CHECK_POINT] = body
    await master.poll()
    assert TIMER_PROGRESS_KEY not in master.state.offsets and "T" in master.state.topics


@pytest.mark.parametrize("body", [None, [], {}, {"topicConfigTable": 7}, {"topicConfigTable": {"T": "x"}}])
async def test_an_answer_that_cannot_be_read_is_told_and_asked_for_again(
    master: Master, body: Any, caplog: pytest.LogCaptureFixture
) -> None:
    master.bodies[RequestCode.GET_ALL_TOPIC_CONFIG] = body
    await master.poll()
    assert not master.changes
    master.bodies = dict(BODIES)
    await master.poll()
    assert "T" in master.state.topics


async def test_what_a_former_master_answers_is_left_out(master: Master) -> None:
    master.tables.poll()
    master.address = "m:2"
    await eventually(lambda: all(task.done() for task in master.tasks), "the round is over")
    assert not master.changes


async def test_nobody_is_asked_while_the_master_is_not_known() -> None:
    made = Master()
    made.tables.poll()
    assert not made.tasks
