"""The search for linearizable orders: known examples, and agreement with the judge of long histories on random ones."""

import contextlib
import tracemalloc
from pathlib import Path
from random import Random

import pytest

from chaos.checkers.linear import Append, Call, Linearity, QueuePrefix, Read, check_queues, linearizable, queue_model
from chaos.checkers.operations import Judge
from cli.main import main
from ledgermq.history import Op, Operation

NEVER = float("inf")


def register(state: int, what: tuple[str, int]) -> int | None:
    kind, value = what
    return value if kind == "write" else state if state == value else None


@pytest.mark.parametrize(
    ("calls", "answer"),
    [
        ([], Linearity.YES),
        ([(0, 9, "write", 1), (1, 2, "read", 0), (3, 4, "read", 1)], Linearity.YES),
        ([(0, 9, "write", 1), (1, 2, "read", 1), (3, 4, "read", 0)], Linearity.NO),
        ([(0, 1, "write", 1), (2, 3, "read", 0)], Linearity.NO),
        ([(0, NEVER, "write", 1), (2, 3, "read", 0), (4, 5, "read", 1)], Linearity.YES),
        ([(0, NEVER, "write", 1), (2, 3, "read", 0)], Linearity.YES),
        ([(0, NEVER, "write", 1), (2, 3, "read", 1), (4, 5, "read", 0)], Linearity.NO),
        ([(0, 2, "write", 1), (1, 3, "write", 2), (4, 5, "read", 1), (6, 7, "read", 2)], Linearity.NO),
        ([(0, 2, "write", 1), (2, 3, "read", 0)], Linearity.YES),  # equal moments overlap
    ],
)
def test_known_histories_of_a_register(calls: list[tuple[float, float, str, int]], answer: Linearity) -> None:
    assert linearizable([Call(begin, end, (kind, value)) for begin, end, kind, value in calls], register, 0) is answer


def test_a_search_that_takes_too_long_says_that_it_does_not_know() -> None:
    calls = [Call(0.0, 100.0, ("write", number)) for number in range(12)] + [Call(101.0, 102.0, ("read", 99))]
    assert linearizable(calls, register, 0, steps_max=500) is Linearity.UNKNOWN


def a_run(rng: Random) -> list[Operation]:
    """Four senders to one queue: each append happens between call and answer; then all is read."""
    log: list[int] = []
    operations: list[Operation] = []
    under_way: dict[int, int | None] = {}
    for step in range(40):
        at_s, waiting = float(step), [number for number, offset in under_way.items() if offset is None]
        choice = rng.random()
        if choice < 0.4 and len(under_way) < 4:
            number = sum(one.op is Op.INVOKE for one in operations)
            operations.append(Operation(Op.INVOKE, at_s, number))
            under_way[number] = None
        elif choice < 0.7 and waiting:
            number = rng.choice(waiting)
            under_way[number] = len(log)
            log.append(number)
        elif stored := [number for number, offset in under_way.items() if offset is not None]:
            number = rng.choice(stored)
            offset = under_way.pop(number)
            assert offset is not None
            is_told = rng.random() < 0.8
            operations.append(
                Operation(Op.OK if is_told else Op.INFO, at_s, number, *(("q", offset) if is_told else ()))
            )
    operations += [Operation(Op.INFO, 50.0, number) for number in under_way]
    return operations + [Operation(Op.DELIVER, 51.0 + offset, number, "q", offset) for offset, number in enumerate(log)]


def sound_by_judge(operations: list[Operation]) -> bool:
    with contextlib.closing(Judge()) as judge:
        for one in operations:
            judge.feed(one)
        return judge.findings().is_sound


@pytest.mark.parametrize("seed", range(40))
def test_the_search_and_the_judge_agree_on_clean_and_on_spoiled_histories(seed: int) -> None:
    rng = Random(seed)
    operations = a_run(rng)
    assert sound_by_judge(operations) and set(check_queues(operations).values()) <= {Linearity.YES}
    read = [number for number, one in enumerate(operations) if one.op is Op.DELIVER]
    if len(read) < 2:
        return
    first, second = rng.sample(read, 2)
    one, other = operations[first], operations[second]
    operations[first] = Operation(Op.DELIVER, one.at_s, other.number, "q", one.offset)
    operations[second] = Operation(Op.DELIVER, other.at_s, one.number, "q", other.offset)
    told = {one.number for one in operations if one.op is Op.OK}
    assert not sound_by_judge(operations) or not {one.number, other.number} & told
    if not sound_by_judge(operations):
        assert check_queues(operations)["q"] is Linearity.NO


def test_a_queue_gives_its_messages_and_is_one_object_however_it_was_made() -> None:
    queue, rng = QueuePrefix(), Random(3)
    for number in range(300):
        queue = queue.with_last(1000 + number)
    assert [queue.number_at(offset) for offset in (0, 299, 300)] == [1000, 1299, None]
    for offset in rng.sample(range(300), 50):
        assert queue.number_at(offset) == 1000 + offset
    assert QueuePrefix().with_last(1) is not QueuePrefix().with_last(1)
    empty = QueuePrefix()
    assert empty.with_last(1).with_last(2) is empty.with_last(1).with_last(2)
    assert empty.with_last(2).with_last(1) is not empty.with_last(1).with_last(2)


def test_memory_of_a_long_search_grows_with_its_steps_only() -> None:
    """2,000 messages, each known only from being read; the last read is wrong, so that all orders are tried in vain."""
    count = 2000
    calls = [Call(number, number + 1.5, Append(number, None)) for number in range(count)]
    calls += [Call(count + 9.0, count + 9.0, Read(count, count - 1))]
    steps = 20_000
    tracemalloc.start()
    try:
        assert linearizable(calls, queue_model, QueuePrefix(), steps) is Linearity.UNKNOWN
        assert tracemalloc.get_traced_memory()[1] < steps * 1000
    finally:
        tracemalloc.stop()


def test_the_command_says_of_a_small_history_whether_it_is_linearizable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "history"
    path.write_bytes(b"".join(one.line() for one in a_run(Random(1))))
    assert main(["chaos", "check", str(path)]) == 0
    assert "ok   LIN  appends and reads of each queue are linearizable: 1 of 1 queues" in capsys.readouterr().out
