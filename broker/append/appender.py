"""The batch of everything that this broker appends in one turn of the event loop, in the order of arrival.

    frames of this turn -> drafts, answers, listeners --(end of turn)--> store.put(drafts) --(commit)--> answers

Messages and state records share the batch, so a topic's creation is in the log before its first message. State records
are applied in the order of the log, so every node changes its tables at the same place between the messages around it.
A commit costs one call per batch, not per message.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from broker.append.answers import Answer
from broker.state.tables import ChangeDone, StateChange
from ledgermq.remoting.refusal import Cause, Refusal
from store.log.drafts import QueuedDraft
from store.queues.queue_offsets import NotYetError
from store.replicated_log import AppendReceipt, Done

log = logging.getLogger(__name__)

Put = Callable[[Sequence[QueuedDraft], Done, float], None]
"""See `MessageStore.put`."""
_QUEUE_FILES_S: Final = 0.005
"""Seconds in which one turn makes files of queues at most; messages to further new queues wait for later turns."""

_EARLY_DRAFTS: Final = 128
"""Number of drafts that are placed before the turn ends, if slaves copy the log: they copy while the turn goes on."""

_PLACED: Final = AppendReceipt(generation=0, copies=1, durable_copies=0)
"""Outcome for senders that wait only until their message is placed."""

_LEADS_NO_MORE: Final = (Cause.NOT_LEADER, Cause.RECOVERING)
"""Causes for which this log placed nothing; another node, or this one later, may place it."""

AnswerAll = Callable[[Sequence[Answer], AppendReceipt | Refusal], None]
Settled = Callable[[Sequence[QueuedDraft], Sequence[Answer], AppendReceipt | Refusal, float], None]
"""Called for every batch with its drafts, the senders that waited, its outcome and its begin in monotonic seconds."""


class Appender:
    """The batch of the present turn of the loop.

    The hot path fills the lists itself: `begin()`, then `drafts.append`, `answers.append`.

    Args:
        state_draft: returns the draft of a state record with that body.

    Attributes:
        drafts: drafts to be placed, in order.
        answers: senders that wait for this batch.
        listeners: others that wait for it; each is called once with the outcome.
        unwaited: senders that wait only until it is placed, for no flush and no other node (property WAIT=false).
        unsettled_bytes: bytes of changes of the tables that are neither committed nor refused.
        has_slaves: whether slaves copy the log.
        take_back: called with the senders of a batch of which nothing was placed, since this node ceased to lead;
            returns whether their requests are served elsewhere. If not, or if it is None, they are refused.
        look_for: called with the senders of a batch that was placed and is not decided, since this node ceased to lead,
            with the refusal and the batch's begin; returns those that are to be refused: all, if it is None.
        on_change_refused: called whenever a change of the tables is refused.
    """

    def __init__(
        self,
        put: Put,
        answer_all: AnswerAll,
        settled: Settled,
        loop: asyncio.AbstractEventLoop,
        state_draft: Callable[[bytes], QueuedDraft],
    ) -> None:
        self._put = put
        self._answer_all = answer_all
        self._settled = settled
        self._since = 0.0
        self._loop = loop
        self._state_draft = state_draft
        self._is_scheduled = False
        self._is_late = False  # files of queues are made; the batch is tried again when the turn ends
        self.drafts: list[QueuedDraft] = []
        self.answers: list[Answer] = []
        self.listeners: list[Done] = []
        self.unwaited: list[Done] = []
        self.unsettled_bytes = 0
        self.has_slaves = False
        self.take_back: Callable[[list[Answer]], bool] | None = None
        self.look_for: Callable[[list[Answer], Refusal, float], list[Answer]] | None = None
        self._sought: set[QueuedDraft] = set()  # of the batch whose senders are answered at present
        self.on_change_refused: Callable[[], None] = lambda: None

    def begin(self) -> None:
        """Make sure that this turn's batch is placed when the turn ends."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._since = time.monotonic()
            self._loop.call_soon(self._end_of_turn)

    def begin_plain(self) -> None:
        """Begin a batch for a single message as `begin` does; what earlier requests left may be placed before it.

        So a slave copies while this turn goes on, and senders that wait for it do not all wait for the whole turn.
        """
        if self.has_slaves and len(self.drafts) >= _EARLY_DRAFTS and not self._is_late:
            self._end_of_turn()
        if not self._is_scheduled:
            self.begin()

    def add(self, draft: QueuedDraft, done: Done | None = None, *, waits: bool = True) -> None:
        """Add a draft to the batch; `done` gets the outcome, or, if not `waits`, is called when the draft is placed."""
        self.begin()
        self.drafts.append(draft)
        if done is not None:
            (self.listeners if waits else self.unwaited).append(done)

    def propose(self, change: StateChange, done: ChangeDone) -> None:
        """Append a change of the tables; `done` gets None when it is committed and applied, else the refusal."""

        def settle(outcome: AppendReceipt | Refusal) -> None:
            self.unsettled_bytes -= len(body)
            if isinstance(outcome, Refusal):
                self.on_change_refused()
                done(outcome)
            else:
                done(None)

        body = change.encode()
        self.unsettled_bytes += len(body)
        self.add(self._state_draft(body), settle)

    def is_looked_for(self, answer: Answer, outcome: AppendReceipt | Refusal, since: float) -> bool:
        """Have a send looked for (`look_for`) whose sender is a listener of its batch; return whether that is done."""
        is_placed = hasattr(answer[2], "physical_offset")
        return is_placed and not self._not_looked_for([answer], outcome, since)

    def _not_looked_for(self, answers: list[Answer], outcome: AppendReceipt | Refusal, since: float) -> list[Answer]:
        """Have placed sends of a deposed leader looked for; return the senders that are to be answered now."""
        if self.look_for is None or not isinstance(outcome, Refusal) or outcome.cause is not Cause.LEADER_CHANGED:
            return answers
        told = self.look_for(answers, outcome, since)
        self._sought |= {answer[2] for answer in answers} - {answer[2] for answer in told}
        return told

    def _end_of_turn(self) -> None:
        drafts, answers, listeners, unwaited = self.drafts, self.answers, self.listeners, self.unwaited
        self._is_late = self._is_scheduled = False
        if not (drafts or answers or listeners or unwaited):  # placed before
            return
        self.drafts, self.answers, self.listeners = [], [], []
        if unwaited:
            self.unwaited = []
        since = self._since

        def done(outcome: AppendReceipt | Refusal, *, is_placed: bool = True) -> None:
            told = self._not_looked_for(answers, outcome, since) if is_placed else answers
            if told:
                self._answer_all(told, outcome)
            for listener in listeners:
                try:
                    listener(outcome)
                except Exception:  # the others still hear of it
                    log.exception("one that waited for a batch of %d records failed", len(drafts))
            settled = drafts
            if self._sought:  # these are counted when they are told
                settled, self._sought = [draft for draft in drafts if draft not in self._sought], set()
            self._settled(settled, told, outcome, since)

        try:
            self._put(drafts, done, time.monotonic() + _QUEUE_FILES_S)
            outcome: AppendReceipt | Refusal = _PLACED
        except NotYetError:
            self._wait(drafts, answers, listeners, since)
            self.unwaited = unwaited
            return
        except Refusal as refusal:
            outcome = refusal
            if self.take_back is not None and refusal.cause in _LEADS_NO_MORE and self.take_back(answers):
                answers = []
        except Exception as error:  # senders must be answered, whatever the error is
            log.exception("appending a batch of %d records failed", len(drafts))
            outcome = Refusal(Cause.SYSTEM_ERROR, f"append failed: {type(error).__name__}: {error}")
        for tell in unwaited:
            tell(outcome)
        if outcome is not _PLACED:
            done(outcome, is_placed=False)

    def _wait(self, drafts: list[QueuedDraft], answers: list[Answer], listeners: list[Done], since: float) -> None:
        """Put drafts that could not be placed yet before those that arrived meanwhile."""
        self.begin()
        self._is_late = True
        self._since = since
        self.drafts, self.answers, self.listeners = drafts, answers, listeners
