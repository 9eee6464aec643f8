"""Consumer offsets, and questions about queues and messages."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from broker.forwarding import LeaderForwarding
from broker.groups.kept_offsets import KeptOffsets
from broker.role import Role
from broker.state import offsets as offsets_module
from broker.state.names import STATE_TOPIC
from broker.state.offsets import ConsumerOffsets
from broker.state.tables import ReplicatedState, StateChange
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import ONEWAY_FLAG, Command
from ledgermq.remoting.refusal import Cause, LeaderHint, Refusal
from store.replicated_log import LogRole, LogState
from tests.broker.conftest import Desk, MemoryClient, eventually, log_state, make_topic, pull_fields, send, small_config

QUERY, UPDATE = RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET


def key(**changes: str) -> dict[str, str]:
    return {"consumerGroup": "g", "topic": "T", "queueId": "0", **changes}


async def make_group(client: MemoryClient, name: str = "g") -> None:
    body = b'{"groupName":"%b"}' % name.encode()
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)).code == 0


async def test_a_stored_offset_is_read_back_at_once_and_a_lower_one_replaces_it(client: MemoryClient) -> None:
    await make_topic(client)
    await make_group(client)
    for offset in ("9", "4"):
        assert (await client.ask(UPDATE, key(commitOffset=offset))).code == 0
        assert (await client.ask(QUERY, key())).ext == {"offset": offset}


async def test_offsets_are_gathered_into_few_records(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "T", 8)
    await make_group(client)
    before = len(desk.records())
    for offset in range(50):
        for queue in range(8):
            client.give(Command(UPDATE, ext=key(queueId=str(queue), commitOffset=str(offset)), flag=ONEWAY_FLAG))
    await eventually(lambda: desk.parts.context.state.offsets.get("T@g", {}) == dict.fromkeys(range(8), 49))
    records = desk.records()[before:]
    assert [record.topic for record in records] == [STATE_TOPIC]


async def test_who_waits_for_the_answer_hears_of_it_when_the_log_has_the_offset(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client, "T", 2)
    await make_group(client)
    before = len(desk.records())
    asked = [client.start(UPDATE, key(queueId=queue, commitOffset="6")) for queue in ("0", "1", "0")]
    assert "T@g" not in desk.parts.context.state.offsets
    for opaque in asked:
        assert (await client.answer_to(opaque)).code == 0
        assert desk.parts.context.state.offsets["T@g"] == {0: 6, 1: 6}
    assert (await client.ask(UPDATE, key(commitOffset="6"))).code == 0
    assert len(desk.records()) == before + 1


async def test_an_offset_whose_topic_goes_meanwhile_is_answered(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await make_group(client)
    asked = client.start(UPDATE, key(commitOffset="6"))
    desk.parts.context.offsets.forget_topic("T")
    assert (await client.answer_to(asked)).code == 17


async def test_a_pull_reports_an_offset_too(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send(client)
    await client.ask(RequestCode.PULL_MESSAGE, pull_fields(sysFlag=4 | 1, commitOffset=1))
    assert desk.parts.context.offsets.get("T", "g", 0) == 1
    await client.ask(RequestCode.PULL_MESSAGE, pull_fields(sysFlag=4, commitOffset=7))
    assert desk.parts.context.offsets.get("T", "g", 0) == 1


async def test_a_group_that_never_stored_one_starts_at_0_unless_it_asks_otherwise(client: MemoryClient) -> None:
    await make_topic(client)
    await send(client)
    assert (await client.ask(QUERY, key())).ext == {"offset": "0"}
    answer = await client.ask(QUERY, key(setZeroIfNotFound="false"))
    assert answer.code == 22
    assert answer.remark


async def test_negative_offsets_and_queues_are_stored_as_they_come(client: MemoryClient) -> None:
    await make_topic(client)
    await make_group(client)
    for queue, offset in (("0", "-1"), ("-3", "5")):
        assert (await client.ask(UPDATE, key(queueId=queue, commitOffset=offset))).code == 0
        assert (await client.ask(QUERY, key(queueId=queue))).ext["offset"] == offset


@pytest.mark.parametrize(
    ("changes", "code", "part"),
    [
        ({"topic": "none"}, 17, "none"),
        ({"consumerGroup": "none"}, 26, "none"),
        ({"commitOffset": "x"}, 29, "commitOffset"),
        ({"queueId": "x"}, 29, "queueId"),
    ],
)
async def test_an_offset_that_cannot_be_stored_is_refused(
    client: MemoryClient, changes: dict[str, str], code: int, part: str
) -> None:
    await make_topic(client)
    await make_group(client)
    answer = await client.ask(UPDATE, key(**{"commitOffset": "1", **changes}))
    assert answer.code == code
    assert part in (answer.remark or "")


async def test_the_whole_table_has_numeric_keys_unquoted(client: MemoryClient) -> None:
    await make_topic(client, "T", 2)
    await make_group(client)
    for queue, offset in (("0", "5"), ("1", "7")):
        await client.ask(UPDATE, key(queueId=queue, commitOffset=offset))
    answer = await client.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert b'"T@g":{0:5,1:7}' in bytes(answer.body)


async def test_what_a_deposed_leader_had_not_logged_counts_no_more(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await make_group(client)
    await client.ask(UPDATE, key(commitOffset="5"))
    client.give(Command(UPDATE, ext=key(commitOffset="8"), flag=ONEWAY_FLAG))
    waiting = client.start(UPDATE, key(queueId="1", commitOffset="3"))
    assert desk.parts.context.offsets.get("T", "g", 0) == 8
    desk.parts.on_role_change(log_state(writable=False, generation=2))
    assert (await client.answer_to(waiting)).code == 14
    assert (await client.ask(QUERY, key())).ext == {"offset": "5"}
    refused = await client.ask(UPDATE, key(commitOffset="9"))
    assert refused.code == 14


@pytest.mark.parametrize("is_in_the_log", [True, False])
async def test_removing_a_group_with_its_offsets_forgets_them(
    desk: Desk, client: MemoryClient, is_in_the_log: bool
) -> None:
    await make_topic(client)
    await make_group(client)
    await client.ask(UPDATE, key(commitOffset="5"))
    if is_in_the_log:
        await desk.parts.context.offsets.drain()
    await client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": "true"})
    await desk.parts.context.offsets.drain()
    assert desk.parts.context.offsets.get("T", "g", 0) is None
    assert "g" not in desk.parts.context.state.groups


async def test_bounds_times_and_records_of_a_queue(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    empty = {"topic": "T", "queueId": "0"}
    assert (await client.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, empty)).ext == {"timestamp": "-1"}
    first = await send(client, b"one")
    await send(client, b"two")
    record = next(record for record in desk.records() if record.body == b"one")
    assert (await client.ask(RequestCode.GET_MAX_OFFSET, empty)).ext == {"offset": "2"}
    assert (await client.ask(RequestCode.GET_MIN_OFFSET, empty)).ext == {"offset": "0"}
    assert (await client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "77"})).ext == {"offset": "0"}
    earliest = await client.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, empty)
    assert earliest.ext == {"timestamp": str(record.store_timestamp)}
    late = {**empty, "timestamp": str(record.store_timestamp + 100_000)}
    assert (await client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, late)).ext == {"offset": "2"}
    upper = {**late, "boundaryType": "upper"}
    assert (await client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, upper)).ext == {"offset": "1"}
    view = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(int(first.ext["msgId"][16:], 16))})
    assert b"one" in bytes(view.body)


@pytest.mark.parametrize(
    ("code", "fields", "expected", "part"),
    [
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "3"}, 1, "can not find message by the offset, 3"),
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "-9"}, 1, "-9"),
        (RequestCode.VIEW_MESSAGE_BY_ID, {}, 1, "field offset is missing"),
        (RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "q"}, 1, "queueId"),
        (
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            {"topic": "T", "queueId": "0", "timestamp": "0", "boundaryType": "MIDDLE"},
            29,
            "MIDDLE",
        ),
    ],
)
async def test_a_bad_question_is_refused_by_what_is_bad(
    client: MemoryClient, code: int, fields: dict[str, str], expected: int, part: str
) -> None:
    await make_topic(client)
    await send(client)
    answer = await client.ask(code, fields)
    assert answer.code == expected
    assert part in (answer.remark or "")


class SlowLog:
    """Takes proposed changes, and has each in the state when `settle` says so, in their order."""

    def __init__(self) -> None:
        self.state = ReplicatedState()
        self.waiting: deque[tuple[StateChange, Callable[[Refusal | None], None]]] = deque()

    def propose(self, change: StateChange, done: Callable[[Refusal | None], None]) -> None:
        self.waiting.append((change, done))

    def settle(self, refusal: Refusal | None = None) -> None:
        change, done = self.waiting.popleft()
        if refusal is None:
            self.state.apply(change, 0)
        done(refusal)


def slow_offsets(log: SlowLog, directory: Path) -> ConsumerOffsets:
    role = Role(small_config(directory).broker, log_state(writable=True, generation=1))
    return ConsumerOffsets(log.state, role, log.propose, lambda _topic, _group: False, asyncio.get_running_loop())


async def test_an_offset_that_comes_back_while_the_log_is_slow_is_the_one_that_stays(tmp_path: Path) -> None:
    log = SlowLog()
    offsets = slow_offsets(log, tmp_path)
    for offset in (5, 6):
        offsets.commit("T", "g", 0, offset)
        offsets.send()
    offsets.commit("T", "g", 0, 5)
    log.settle()
    log.settle()
    assert offsets.get("T", "g", 0) == 5
    offsets.send()
    log.settle()
    assert log.state.offsets == {"T@g": {0: 5}}


async def test_who_waits_hears_that_this_node_stopped_leading(tmp_path: Path) -> None:
    offsets, outcomes = slow_offsets(SlowLog(), tmp_path), list[Refusal | None]()
    offsets.commit_and_tell("T", "g", {0: 5}, outcomes.append)
    offsets.forget_ahead()
    assert [outcome and outcome.cause for outcome in outcomes] == [Cause.LEADER_CHANGED]


async def test_a_reset_is_told_once_and_nothing_reported_before_it_counts(tmp_path: Path) -> None:
    log = SlowLog()
    offsets, outcomes = slow_offsets(log, tmp_path), list[Refusal | None]()
    offsets.reset("T", "g", {0: 1}, outcomes.append)
    offsets.commit("T", "g", 0, 5)  # of before the reset
    offsets.send()
    log.settle()
    offsets.commit("T", "g", 0, 6)
    assert (outcomes, offsets.get("T", "g", 0), log.state.resets) == ([None], 1, {"T@g": {0: 1}})
    assert [offsets.take_reset("T", "g", 0) for _ in range(2)] == [1, None]
    log.settle()
    assert (log.state.resets, log.state.offsets, offsets.has_resets) == ({}, {"T@g": {0: 1}}, False)


@pytest.mark.parametrize("seed", range(20))
async def test_what_was_reported_last_is_in_the_log_in_the_end(tmp_path: Path, seed: int) -> None:
    dice, log = random.Random(seed), SlowLog()
    offsets = slow_offsets(log, tmp_path)
    told: list[Refusal | None] = []
    last: dict[int, int] = {}
    for _ in range(200):
        match dice.randrange(4):
            case 0:
                queue, last[queue] = dice.randrange(2), dice.randrange(3)
                offsets.commit("T", "g", queue, last[queue])
            case 1:
                queue, last[queue] = dice.randrange(2), dice.randrange(3)
                offsets.commit_and_tell("T", "g", {queue: last[queue]}, told.append)
            case 2:
                offsets.send()
            case _ if log.waiting:
                log.settle(Refusal(Cause.DISK_FULL, "") if dice.random() < 0.2 else None)
        assert offsets.queues("T", "g") == last
    while log.waiting or log.state.offsets != {"T@g": last}:
        offsets.send()
        log.settle()
    assert offsets.all() == {"T@g": last}


def at_slave(
    directory: Path, propose: Callable[[StateChange, Any], None] = lambda *_: None
) -> tuple[ReplicatedState, ConsumerOffsets, Role]:
    leader = LeaderHint("b/0", "m:1")
    refusal = Refusal(Cause.NOT_LEADER, "a slave", leader_hint=leader)
    role = Role(small_config(directory).broker, LogState(LogRole.SLAVE, 0, leader, refusal))
    state = ReplicatedState()
    offsets = ConsumerOffsets(state, role, propose, lambda *_: False, asyncio.get_running_loop())
    return state, offsets, role


def apply(state: ReplicatedState, offsets: ConsumerOffsets, change: StateChange) -> None:
    state.apply(change, 0)
    offsets.on_applied(change)


async def test_progress_kept_at_a_slave_does_not_undo_a_reset(tmp_path: Path) -> None:
    state, offsets, _ = at_slave(tmp_path)
    apply(state, offsets, StateChange(offsets={"T@g": {0: 5}}))
    offsets.keep("T", "g", 0, 9)
    offsets.keep("T", "g", 1, 9)
    apply(state, offsets, StateChange(offsets={"T@g": {0: 6}}))
    assert offsets.kept() == [("T", "g", 0, 9), ("T", "g", 1, 9)]
    apply(state, offsets, StateChange(offsets={"T@g": {0: 2}}, resets={"T@g": {0: 2}}))
    offsets.keep("T", "g", 0, 10)  # of before the reset
    assert (offsets.kept(), offsets.get("T", "g", 0)) == ([("T", "g", 1, 9)], 2)
    apply(state, offsets, StateChange(resets={"T@g": {0: None}}))
    offsets.keep("T", "g", 0, 3)
    assert offsets.kept() == [("T", "g", 0, 3), ("T", "g", 1, 9)]
    apply(state, offsets, StateChange(offsets={"T@g": {0: 1}}))
    assert offsets.kept() == [("T", "g", 1, 9)], "an offset lower than before takes back what was kept"


async def test_a_slave_keeps_the_progress_of_so_many_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_module, "KEPT_MAX", 2)
    _, offsets, _ = at_slave(tmp_path)
    for queue_id in (0, 1, 2):
        offsets.keep("T", "g", queue_id, 9)
    offsets.keep("T", "g", 1, 10)
    assert offsets.kept() == [("T", "g", 0, 9), ("T", "g", 1, 10)]


async def test_progress_that_the_master_refuses_does_not_keep_the_rest_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.groups.kept_offsets._AT_ONCE", 2)
    _, offsets, role = at_slave(tmp_path)
    told: list[str] = []

    async def refuse(_master: str, command: Command) -> Command:
        told.append(command.ext["queueId"])
        return Command(1)

    def spawn(work: Coroutine[Any, Any, None]) -> None:
        tasks.append(asyncio.ensure_future(work))

    tasks: list[asyncio.Future[None]] = []
    forwarding = LeaderForwarding(role, spawn)
    forwarding.forward = refuse
    kept = KeptOffsets(offsets, role, forwarding, spawn)
    for queue_id in range(5):
        offsets.keep("T", "g", queue_id, 9)
    for _ in range(3):
        kept.hand_over()
        await tasks[-1]
    assert told == ["0", "1", "2", "3", "4", "0"]


async def test_progress_of_a_deposed_master_is_kept_for_the_next_one(tmp_path: Path) -> None:
    state, offsets, role = at_slave(tmp_path)
    role.update(LogState(LogRole.MASTER, 1, None, None))
    offsets.commit("T", "g", 0, 9)
    role.update(LogState(LogRole.SLAVE, 2, None, Refusal(Cause.NOT_LEADER, "a slave")))
    offsets.forget_ahead()
    assert offsets.kept() == [("T", "g", 0, 9)]
    apply(state, offsets, StateChange(offsets={"T@g": {0: 9}}))
    assert offsets.kept() == [] and offsets.get("T", "g", 0) == 9


async def test_progress_kept_at_a_slave_is_let_go_when_it_is_master_and_its_log_has_it(tmp_path: Path) -> None:
    told: list[Any] = []
    state, offsets, role = at_slave(tmp_path, lambda _change, done: told.append(done))
    offsets.keep("T", "g", 0, 9)
    role.update(LogState(LogRole.MASTER, 1, None, None))
    offsets.send()
    [done] = told
    apply(state, offsets, StateChange(offsets={"T@g": {0: 9}}))
    done(None)
    apply(state, offsets, StateChange(offsets={"T@g": {0: 2}}))
    assert offsets.get("T", "g", 0) == 2


async def test_a_group_without_a_name_is_served_as_rocketmq_serves_it(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send(client)
    assert (await client.ask(RequestCode.PULL_MESSAGE, pull_fields(consumerGroup=""))).code == 0
    assert desk.parts.context.metadata.group("") is not None
    forbid = {"group": "", "topic": "T", "readable": "false"}
    assert (await client.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, forbid)).code == 0
    assert (await client.ask(RequestCode.PULL_MESSAGE, pull_fields(consumerGroup=""))).code == 0
    assert (await client.ask(UPDATE, key(consumerGroup="", commitOffset="1"))).code == 26
    await make_group(client)
    await client.ask(UPDATE, key(commitOffset="1"))
    clone = {"srcGroup": "g", "topic": "T", "offline": "true"}
    assert (await client.ask(RequestCode.CLONE_GROUP_OFFSET, clone)).code == 0
    assert desk.parts.context.state.offsets["T@null"] == {0: 1}
    await desk.stop()
    await desk.start()
    assert desk.parts.context.metadata.group("") is not None
