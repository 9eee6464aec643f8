"""Long requests: served in steps, one of a connection at a time, within the turns that all long work shares.

    begin -> in progress: at most 16, a slice each in turn -> the last step answers
          '-> waiting: behind earlier ones of the same connection, or for one of the 16 places

An answer is gathered while a request is in progress, so the number of these limits memory. A request whose connection
has closed ends without another step. One that changes tables pauses while much of that is not committed: each node
applies in one go what is committed in one go.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from broker.subsystem import Steps
from broker.turns import TurnQueue
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from store.queues.queue_reader import FILTER_SLICE_S
from store.time_slice import TimeSlice

_IN_PROGRESS_MAX: Final = 16
_COUNT_MAX: Final = 1024
_BYTES_MAX: Final = 64 << 20
_UNSETTLED_MAX_BYTES: Final = 64 << 10
"""Bytes of changes that are applied in about 5 ms."""
_PAUSE_S: Final = 0.002
_PAUSES_MAX: Final = 250
"""Number of pauses before each step, half a second in all: others may have as much uncommitted, again and again."""
_END: Final = object()


@dataclass(frozen=True, slots=True)
class _Long:
    connection: Connection
    command: Command
    steps: Steps


class LongRequests:
    """Takes the steps of requests.

    Args:
        turns: shared with other long work.
        failed: called with what a step raised, or with a refusal if the connection has closed.
        created: returns how many queues and groups were created, and not counted, until now.
        count_created: called with a connection whose request has created some, and with their number before.
        unsettled: returns how many bytes of changes of the tables are neither committed nor refused.
    """

    def __init__(
        self,
        turns: TurnQueue,
        failed: Callable[[Connection, Command, Exception], None],
        created: Callable[[], int],
        count_created: Callable[[Connection, int], None],
        unsettled: Callable[[], int],
    ) -> None:
        self._turns = turns
        self._failed = failed
        self._created = created
        self._count_created = count_created
        self._unsettled = unsettled
        self._in_progress: set[Connection] = set()
        self._waiting: deque[_Long] = deque()
        self._bytes = 0  # of the bodies of all of them

    def begin(self, connection: Connection, command: Command, steps: Steps) -> None:
        """Take the first steps now, if nothing is before it, and the others in later turns.

        Raises:
            Refusal: BUSY, 1,024 requests or 64 MiB of their bodies are here already.
        """
        count = len(self._in_progress) + len(self._waiting)
        if count >= _COUNT_MAX or self._bytes + len(command.body) > _BYTES_MAX:
            remark = f"[OVERLOAD]system busy: {count} long requests are being served"
            raise Refusal(Cause.BUSY, remark, retry_after_ms=1000)
        self._bytes += len(command.body)
        request = _Long(connection, command, steps)
        if connection in self._in_progress or len(self._in_progress) >= _IN_PROGRESS_MAX:
            self._waiting.append(request)
        else:
            self._in_progress.add(connection)
            self._turns.run(partial(self._take, request))

    def _take(self, request: _Long) -> None:
        """Take steps for a slice."""
        time_slice = TimeSlice(FILTER_SLICE_S)
        connection = request.connection
        created = self._created()
        before = self._unsettled()
        try:
            while not connection.is_closed:
                if next(request.steps, _END) is _END:
                    break
                unsettled = self._unsettled()
                if before < unsettled > _UNSETTLED_MAX_BYTES:
                    self._turns.run_after(_PAUSE_S, partial(self._go_on, request))
                    return
                before = unsettled
                if time_slice.is_over():
                    self._turns.run_later(partial(self._take, request))
                    return
            else:
                raise Refusal(Cause.SYSTEM_ERROR, "the client's connection has closed")
        except Exception as error:
            self._failed(connection, request.command, error)  # the member that passed it on still waits
        finally:
            if self._created() != created:
                self._count_created(connection, created)
        self._bytes -= len(request.command.body)
        self._in_progress.remove(connection)
        self._begin_next()

    def _go_on(self, request: _Long, pauses_left: int = _PAUSES_MAX) -> None:
        """Take further steps, unless too much is still uncommitted."""
        if pauses_left and self._unsettled() > _UNSETTLED_MAX_BYTES and not request.connection.is_closed:
            self._turns.run_after(_PAUSE_S, partial(self._go_on, request, pauses_left - 1))
        else:
            self._take(request)

    def _begin_next(self) -> None:
        for index, request in enumerate(self._waiting):
            if request.connection not in self._in_progress:
                del self._waiting[index]
                self._in_progress.add(request.connection)
                self._turns.run_later(partial(self._take, request))
                return
