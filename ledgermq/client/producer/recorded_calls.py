"""Records the outcome of each message of a producer, for `ledgermq pipeline audit`. See `ledgermq.history`.

A message that is sent while no other one to its topic is under way has a sequence; sends that overlap have none, since
they may be stored in any order. The place of a delayed or transactional message is not known when it is acknowledged,
so it is recorded as `info`.
"""

import io
from collections import Counter
from pathlib import Path
from typing import Final

from ledgermq.client.core.calls import Answered, Calls
from ledgermq.client.errors import DeadlineExceededError, InvalidArgumentError, LedgerMQError
from ledgermq.client.producer.send_request import SendPlan, SendStatus
from ledgermq.history import Outcome, Send

_ELSEWHERE: Final = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TRAN_MSG")


class RecordedCalls:
    """Runs sends as `Calls` does, and appends their outcomes to a file.

    Args:
        calls: runs the sends.
        path: path of the file, which is created or continued.
        producer: the producer's name in the history.

    Raises:
        InvalidArgumentError: the file cannot be opened.
    """

    def __init__(self, calls: Calls, path: str | Path, producer: str) -> None:
        self._calls = calls
        self._producer = producer
        self._sequence = 0
        self._under_way: Counter[str] = Counter()
        try:
            self._file: io.RawIOBase = Path(path).open("ab", buffering=0)  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise InvalidArgumentError(f"history {str(path)!r}: {error.strerror}") from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    async def run(
        self, plan: SendPlan, *, deadline_s: float | None = None, attempts_max: int | None = None
    ) -> Answered:
        """Run a plan; see `Calls.run`."""
        is_alone = not self._under_way[plan.topic]
        self._under_way[plan.topic] += 1
        first = self._sequence
        self._sequence += len(plan.message_ids)
        tries, outcome = 1, Outcome.INFO
        answered: Answered | None = None
        try:
            answered = await self._calls.run(plan, deadline_s=deadline_s, attempts_max=attempts_max)
            tries = answered.attempts
        except LedgerMQError as error:
            outcome = Outcome.FAIL if error.outcome_known else Outcome.INFO
            tries = error.attempts if isinstance(error, DeadlineExceededError) else tries
            raise
        finally:
            self._under_way[plan.topic] -= 1
            if answered is None or answered.response.code != SendStatus.OK.value or _is_elsewhere(plan):
                lines = [
                    Send(self._producer, None, key, plan.topic, outcome, tries=tries).line() for key in plan.message_ids
                ]
            else:
                lines = [
                    Send(
                        self._producer, first + number if is_alone else None, result.message_id, plan.topic, Outcome.OK,
                        result.queue.queue_id, result.queue_offset, tries=tries,
                    ).line()
                    for number, result in enumerate(plan.results(answered))
                ]  # fmt: skip
            if not self._file.closed:
                self._file.write(b"".join(lines))
        return answered


def _is_elsewhere(plan: SendPlan) -> bool:
    properties = plan.ext.get("i", "")
    return any(f"{name}\x01" in properties for name in _ELSEWHERE)
