"""POP's tables against simple models: sets of messages, and a log that loses the end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.pop.assignment_requests import STRATEGIES, assign
from broker.pop.handles import handle_text, parse_handle, real_topic
from broker.state.pop_core import Checkpoint, Checkpoints
from broker.state.pop_order import OrderedBatch, Orders
from broker.state.pop_tables import POP, PULL, PopChange, PopTables, RequestMode
from ledgermq.message.pop_handle import PopHandle, retry_flag, retry_topic
from ledgermq.remoting.refusal import Refusal
from ledgermq.remoting.route import MessageQueue
from tests.limits import IS_WHOLE

QUEUES = st.sampled_from(["T", "%RETRY%g_T"])


class CheckpointMachine(RuleBasedStateMachine):
    """The model: every open message with the time it is due, and what a follower has."""

    @initialize()
    def begin(self) -> None:
        self.now = 1_000
        self.table = Checkpoints()
        self.model: dict[tuple[str, int], int] = {}
        self.log = PopTables()
        self.refused: list[dict[str, Checkpoint | None]] = []

    @rule(
        topic=QUEUES,
        start=st.integers(0, 20),
        distances=st.sets(st.integers(0, 31), min_size=1, max_size=8),
        invisible=st.integers(0, 50),
    )
    def take(self, topic: str, start: int, distances: set[int], invisible: int) -> None:
        self.now += 1
        offsets = tuple(start + distance for distance in sorted(distances))
        checkpoint = Checkpoint(topic, "g", 0, start, self.now, invisible, offsets)
        self.table.add(checkpoint)
        self.model.update({(checkpoint.key, offset): checkpoint.due_ms for offset in offsets})

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        if self.model:
            key, offset = data.draw(st.sampled_from(sorted(self.model)))
            assert self.table.ack(key, offset)
            assert not self.table.ack(key, offset)
            del self.model[key, offset]

    @rule(data=st.data(), distances=st.sets(st.integers(0, 40)))
    def ack_many(self, data: st.DataObject, distances: set[int]) -> None:
        if self.model:
            key = data.draw(st.sampled_from(sorted({key for key, _ in self.model})))
            start = int(key.split("@")[3])
            mine = {pair for pair in self.model if pair[0] == key and pair[1] - start in distances}
            assert self.table.ack_all(key, sum(1 << distance for distance in distances)) == len(mine)
            for pair in mine:
                del self.model[pair]

    @rule()
    def ack_what_nobody_took(self) -> None:
        assert not self.table.ack("T@g@0@0@0", 0)
        assert not self.table.ack_all("T@g@0@0@0", 1)

    @rule(wait=st.integers(0, 60), is_stored=st.booleans())
    def come_again(self, wait: int, is_stored: bool) -> None:
        self.now += wait
        due = {pair for pair, due_ms in self.model.items() if due_ms <= self.now}
        taken = self.table.take_due(self.now, 1000)
        assert {(checkpoint.key, offset) for checkpoint in taken for offset in checkpoint.open_offsets} == due
        assert [checkpoint.due_ms for checkpoint in taken] == sorted(checkpoint.due_ms for checkpoint in taken)
        for checkpoint in taken:
            for offset in checkpoint.open_offsets:
                if is_stored:
                    del self.model[checkpoint.key, offset]
                else:
                    self.model[checkpoint.key, offset] = self.now + 7
            if not is_stored:
                self.table.put_back(checkpoint, self.now + 7)

    @rule(outcome=st.sampled_from(["stored", "refused", "stored but unheard of"]))
    def send(self, outcome: str) -> None:
        changes = self.table.take_changes()
        if outcome != "refused":
            self.log.apply(PopChange.from_json(PopChange(checkpoints=changes).to_json()))
        if outcome != "stored":
            self.table.send_again(changes)

    @rule()
    def lead_elsewhere(self) -> None:
        """What was sent is all that the next leader knows."""
        self.table.load(self.log.checkpoints)
        self.model = {
            (key, offset): checkpoint.due_ms
            for key, checkpoint in self.log.checkpoints.items()
            for offset in checkpoint.open_offsets
        }

    @invariant()
    def the_table_is_as_the_model(self) -> None:
        if not hasattr(self, "table"):
            return
        found = {(one.key, offset): one.due_ms for one in self.table for offset in one.open_offsets}
        assert found == self.model
        for topic in ("T", "%RETRY%g_T"):
            expected = sum(key.startswith(f"{topic}@") for key, _ in self.model)
            assert self.table.open_count(topic, "g", 0) == expected
        assert self.table.next_due_ms == min(self.model.values(), default=None)
        if not self.table.has_changes():
            assert self.log.checkpoints == {one.key: one for one in self.table}


TestCheckpoints = CheckpointMachine.TestCase
TestCheckpoints.settings = settings(max_examples=40 if IS_WHOLE else 20, stateful_step_count=30, deadline=None)


def test_what_came_and_went_before_it_was_sent_is_never_told() -> None:
    table = Checkpoints()
    checkpoint = Checkpoint("T", "g", 0, 5, 100, 10, (5, 7))
    table.add(checkpoint)
    assert table.ack(checkpoint.key, 5)
    assert table.ack(checkpoint.key, 7)
    assert table.take_changes() == {}
    table.add(checkpoint)
    assert table.take_changes() == {checkpoint.key: checkpoint}
    assert [one.open_offsets for one in table.take_due(110, 1)] == [[5, 7]]
    assert table.take_changes() == {checkpoint.key: None}


@given(
    st.lists(
        st.tuples(st.sampled_from(["give", "ack", "wait", "visible"]), st.integers(0, 6), st.integers(1, 30)),
        max_size=40,
    )
)
def test_a_queue_in_order_never_gives_what_lies_behind_an_open_message(steps: list[tuple[str, int, int]]) -> None:
    orders, now, start, pop_ms = Orders(), 1000, 0, 0
    open_until: dict[int, int] = {}
    for what, number, time in steps:
        blocked = any(until > now for until in open_until.values())
        assert orders.is_blocked("k", "", now) == blocked
        if what == "wait":
            now += time
        elif what == "give" and not blocked:
            pop_ms = now = now + 1
            offsets = list(range(start, start + number + 1))
            orders.give("k", "", pop_ms, time, offsets)
            open_until = dict.fromkeys(offsets, pop_ms + time)
        elif what == "ack" and start + number in open_until:
            del open_until[start + number]
            following = orders.ack("k", start + number, pop_ms)
            given_now = orders.get("k")
            assert given_now is not None
            expected = min(open_until, default=given_now.offsets[-1] + 1)
            assert following == expected
            if not open_until:
                start = expected
        elif what == "visible" and start + number in open_until:
            orders.set_visible("k", start + number, pop_ms, now + time)
            open_until[start + number] = now + time


def test_what_was_given_before_is_counted_and_an_attempt_made_again_is_not() -> None:
    orders = Orders()
    orders.give("k", "a", 1, 10, [3, 4])
    assert orders.give("k", "a", 2, 10, [3, 4]).counts == {}
    assert orders.give("k", "b", 3, 10, [4, 5]).counts == {4: 1}
    assert orders.give("k", "b", 4, 10, [4, 5]).counts == {4: 1}
    assert orders.give("k", "", 5, 10, [4, 5, 6]).counts == {4: 2, 5: 1}
    with pytest.raises(LookupError):
        orders.ack("k", 9, 5)
    assert orders.ack("k", 4, 1) is None
    assert orders.ack("other", 4, 1) == 5
    orders.expire(5 + 24 * 3_600_000 + 1)
    assert orders.take_changes() == {"k": None}


def test_a_given_batch_survives_the_log() -> None:
    given_ = OrderedBatch("a", 1, 2, (5, 7, 9), {7: 30}, {5: 1}, 0b10)
    assert OrderedBatch.from_json(given_.to_json()) == given_


@given(st.integers(0, 1 << 62), st.integers(0, 1 << 62), st.sampled_from(["T", "%RETRY%g_T", "%RETRY%g+T"]))
def test_a_handle_is_read_as_it_was_written(start: int, pop_ms: int, topic: str) -> None:
    handle = PopHandle(start, pop_ms, 30_000, 999, retry_flag(topic), "broker", 3)
    assert parse_handle(handle_text(handle, topic, start + 1)) == handle._replace(offset=start + 1)
    assert handle.is_ordered
    assert real_topic("T", "g", handle.retry) == topic


@pytest.mark.parametrize("bad", ["", "1 2 3 4 0 b", "x 2 3 4 0 b 0", "1 2 3 4 0 b y", f"{1 << 70} 2 3 4 0 b 0"])
def test_a_handle_that_is_none_is_refused(bad: str) -> None:
    with pytest.raises(Refusal, match="no POP handle"):
        parse_handle(bad)
    with pytest.raises(Refusal, match="retry flag"):
        real_topic("T", "g", bad)


def test_retry_topics_are_called_as_rocketmq_calls_them() -> None:
    assert retry_topic("T", "g", is_v2=False) == "%RETRY%g_T"
    assert retry_topic("T", "g", is_v2=True) == "%RETRY%g+T"


QUEUES_OF_T = [MessageQueue("T", broker, number) for broker in ("a", "b") for number in range(4)]


@given(st.integers(1, 12), st.integers(-1, 12), st.sampled_from(sorted(STRATEGIES)))
def test_in_every_mode_somebody_reads_every_queue(members: int, shared: int, strategy: str) -> None:
    names = [f"m{number}" for number in range(members)]
    allocate = STRATEGIES[strategy]
    pulled = [assign(allocate, RequestMode(PULL), name, names, QUEUES_OF_T) for name in names]
    assert sorted(queue for queues in pulled for queue in queues) == sorted(QUEUES_OF_T)
    popped = [assign(allocate, RequestMode(POP, shared), name, names, QUEUES_OF_T) for name in names]
    everything = set().union(*popped)
    if shared <= 0 or shared >= members - 1:
        assert everything == {MessageQueue("T", "a", -1), MessageQueue("T", "b", -1)}
    else:
        assert everything == set(QUEUES_OF_T)
        assert all(popped)
    assert assign(allocate, RequestMode(PULL), "stranger", names, QUEUES_OF_T) == set()
