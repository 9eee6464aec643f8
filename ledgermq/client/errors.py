"""The errors of the client, and what the caller can do about each.

    LedgerMQError                    .action, .code, .outcome_known
    ├── UnreachableError             RETRY     no answer from an address
    │   ├── ConnectFailedError                 nothing was sent
    │   ├── ConnectionLostError                the request may have been carried out
    │   └── AnswerTimeoutError                 the request may have been carried out
    ├── RefusedError                 by code   a broker or nameserver answered with an error code
    │   ├── NotLeaderError           REDIRECT  14; `leader_hint` says where to, if known
    │   ├── UnavailableError         RETRY     14, 1500: recovering, no quorum, disk full, shutting down
    │   ├── BusyError                RETRY     2, 215
    │   ├── ServerError              RETRY     1, and codes that this client does not know
    │   ├── TopicNotFoundError       GIVE_UP   17
    │   ├── GroupNotFoundError       GIVE_UP   26
    │   ├── NotFoundError            GIVE_UP   22: no such offset, message or key
    │   ├── MessageRejectedError     GIVE_UP   13
    │   ├── PermissionDeniedError    GIVE_UP   16
    │   ├── InvalidRequestError      GIVE_UP   29, 23, 24, 25, 604
    │   └── NotSupportedError        GIVE_UP   3
    ├── NoRouteError                 GIVE_UP   no nameserver knows the topic, or none could be asked
    ├── NoBrokerError                RETRY     no broker has registered at the nameservers
    ├── DeadlineExceededError        RETRY     the whole call's time is over; `failures` lists every attempt
    ├── NoReplyError                 RETRY     no reply to a request came in time
    ├── HalfMessageError             RETRY     a transaction could not begin: its block was not run
    ├── TransactionUndecidedError    GIVE_UP   a decision has not reached the broker, which will ask for it
    ├── SendManyError                by cause  an exception group of what failed; `outcomes` has every message's
    ├── InvalidArgumentError         GIVE_UP   refused here, nothing was sent
    ├── UndecodableError             GIVE_UP   an answer or a message that this client cannot read
    │   └── CompressionUnavailableError        the module that inflates it is not installed
    └── ClosedError                  GIVE_UP   the producer, consumer or admin is not open

The client has already retried what can be retried, until the call's deadline; `action` says what is left to the
caller. `outcome_known` is False when the request may have been carried out all the same (a message may be stored).
"""

import copyreg
import enum
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ledgermq.remoting.errors import ConnectError, RemotingError, RequestTimeoutError


class Action(enum.Enum):
    """The action that can help after an error."""

    RETRY = "retry"  # the same request, a little later
    REDIRECT = "redirect"  # the same request, to another broker
    GIVE_UP = "give up"  # the same request would fail again


class LedgerMQError(Exception):
    """Base class of the client's errors.

    Attributes:
        action: what can help.
        code: RocketMQ's response code; None if no server answered.
        outcome_known: False when the request may have been carried out all the same.
    """

    action: ClassVar[Action] = Action.GIVE_UP

    def __init__(self, message: str, *, code: int | None = None, outcome_known: bool = True) -> None:
        super().__init__(message)
        self.code = code
        self.outcome_known = outcome_known

    def __reduce__(self) -> tuple[object, ...]:
        """Have copies and pickles keep text and attributes, whatever the arguments of the class are."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined] # typeshed lacks it

    @property
    def is_retryable(self) -> bool:
        """Whether the same request can succeed later or elsewhere."""
        return self.action is not Action.GIVE_UP


class UnreachableError(LedgerMQError):
    """No answer came from `address` (`host:port`)."""

    action = Action.RETRY

    def __init__(self, address: str, detail: str, *, outcome_known: bool) -> None:
        super().__init__(detail, outcome_known=outcome_known)
        self.address = address


class ConnectFailedError(UnreachableError):
    """No connection could be made; nothing was sent. Retry, at another address if there is one."""

    def __init__(self, address: str, detail: str) -> None:
        super().__init__(address, detail, outcome_known=True)


class ConnectionLostError(UnreachableError):
    """The connection closed before the answer: the request may have been carried out."""

    def __init__(self, address: str, detail: str) -> None:
        super().__init__(address, detail, outcome_known=False)


class AnswerTimeoutError(UnreachableError):
    """No answer came in time: the request may have been carried out, or may be carried out later."""

    def __init__(self, address: str, timeout_s: float) -> None:
        super().__init__(address, f"{address} did not answer within {timeout_s:.3g} s", outcome_known=False)
        self.timeout_s = timeout_s


class RefusedError(LedgerMQError):
    """A server answered with an error code.

    Attributes:
        address: `host:port` of the server.
        remark: the server's text.
        cause: LedgerMQ's name of the cause (`not-leader`, `disk-full`); None from other brokers.
        retry_after_s: seconds after which a retry may succeed; None if the server did not say.
        leader_hint: address of the leader as the server knows it; None if the server did not say.
    """

    def __init__(self, address: str, code: int, remark: str, ext: Mapping[str, str] | None = None) -> None:
        ext = ext or {}
        self.cause = ext.get("cause") or None
        super().__init__(
            f"{address} answered {code}: {remark or 'no remark'}",
            code=code,
            outcome_known=code not in MAYBE_DONE_CODES and self.cause not in MAYBE_DONE_CAUSES,
        )
        self.address = address
        self.remark = remark
        retry_ms = ext.get("retryAfterMs", "")
        self.retry_after_s = int(retry_ms) / 1000 if retry_ms.isdecimal() and len(retry_ms) <= 9 else None
        self.leader_hint = _leader_hint(ext)


class NotLeaderError(RefusedError):
    """The node does not lead the queue's broker name. Ask `leader_hint`, or the leader that the next route names."""

    action = Action.REDIRECT


class UnavailableError(RefusedError):
    """The node cannot serve now (recovering, no quorum, disk full, shutting down). Retry later."""

    action = Action.RETRY


class BusyError(RefusedError):
    """The node has too many requests under way. Retry after `retry_after_s`."""

    action = Action.RETRY


class ServerError(RefusedError):
    """The node failed to serve the request, or answered with a code that this client does not know. Retry later."""

    action = Action.RETRY


class TopicNotFoundError(RefusedError):
    """The server does not know the topic, and a broker may not create it. Create it (`Admin.create_topic`)."""


class GroupNotFoundError(RefusedError):
    """The broker does not know the consumer group and may not create it."""


class NotFoundError(RefusedError):
    """There is no such offset, message or key."""


class MessageRejectedError(RefusedError):
    """The broker does not accept the message: it is too large, or malformed."""


class PermissionDeniedError(RefusedError):
    """The topic, the broker or the account does not permit it."""


class InvalidRequestError(RefusedError):
    """A value of the request is wrong (queue id, name, subscription); the remark names it."""


class NotSupportedError(RefusedError):
    """The server does not serve this kind of request."""


class NoRouteError(LedgerMQError):
    """No nameserver returned a route for the topic; the text says whether it is unknown or none could be asked.

    Attributes:
        topic: the topic's name.
        answers: the error of each nameserver that was asked, by its address.
    """

    def __init__(self, topic: str, answers: Mapping[str, LedgerMQError]) -> None:
        self.topic = topic
        self.answers = dict(answers)
        if self.is_topic_unknown:
            reason = "it does not exist, or its brokers are not registered"
        elif self.was_answered:
            reason = "no address given is a nameserver's: give host:port of a nameserver (usually port 9876)"
        else:
            reason = "no nameserver answered: check that the addresses are right and the nameservers run"
        details = "; ".join(map(_route_answer, self.answers.values())) or "no nameserver was asked"
        super().__init__(f"no route for topic {topic!r}: {reason} ({details})")

    @property
    def is_topic_unknown(self) -> bool:
        """Whether a nameserver answered that it does not know the topic; the others may just be down."""
        return any(isinstance(answer, TopicNotFoundError) for answer in self.answers.values())

    @property
    def was_answered(self) -> bool:
        """Whether asking again is pointless.

        That is so when a nameserver does not know the topic, and when every address belongs to a server that does not
        serve routes. Nameservers that do not answer may just be down.
        """
        answers = self.answers.values()
        return self.is_topic_unknown or (bool(answers) and all(isinstance(one, NotSupportedError) for one in answers))


class NoBrokerError(LedgerMQError):
    """No broker has registered at the nameservers: nothing was done. Retry once a broker runs."""

    action = Action.RETRY

    def __init__(self, nameservers: Sequence[str]) -> None:
        names = ", ".join(nameservers)
        super().__init__(f"no nameserver of {names} names a broker: check that brokers run and know the nameservers")


class DeadlineExceededError(LedgerMQError):
    """The deadline of the whole call has passed: the cluster does not serve it now. Retry when it is healthy again.

    The text and `code` are those of the last refusal, if a server refused at all: a later attempt that was not
    answered is added, and does not hide it.

    Attributes:
        attempts: how often the request was tried.
        failures: the last failures, oldest first (the earlier ones of a long series are dropped).
    """

    action = Action.RETRY

    def __init__(self, what: str, seconds: float, attempts: int, failures: Sequence[LedgerMQError]) -> None:
        refusal = next((failure for failure in reversed(failures) if isinstance(failure, RefusedError)), None)
        last = failures[-1] if failures else None
        nobody = "no broker to ask: no nameserver has returned a route, or no queue of the topic has a leader"
        reason = nobody if last is None else str(refusal or last)
        if refusal is not None and last is not refusal:
            reason += f"; after that: {last}"
        known = all(failure.outcome_known for failure in failures)
        super().__init__(
            f"{what}: gave up after {seconds:.3g} s and {attempts} attempts; last: {reason}"
            + ("" if known else " (an attempt without an answer may have been carried out)"),
            code=None if refusal is None else refusal.code,
            outcome_known=known,
        )
        self.attempts = attempts
        self.failures = tuple(failures)


class NoReplyError(LedgerMQError):
    """No reply came in time; the request may have been carried out, or may be carried out later.

    Attributes:
        correlation_id: the id that the request and its reply share.
    """

    action = Action.RETRY

    def __init__(self, topic: str, correlation_id: str, timeout_s: float) -> None:
        what = f"request {correlation_id} to topic {topic!r}: no reply within {timeout_s:.3g} s"
        super().__init__(what, outcome_known=False)
        self.correlation_id = correlation_id


class HalfMessageError(LedgerMQError):
    """The half message was not stored as durably as the cluster promises: it was rolled back, and the block not run."""

    action = Action.RETRY


class TransactionUndecidedError(LedgerMQError):
    """The broker did not accept the decision in time. The decision is final: the broker will ask for it in a check.

    This producer answers as long as it is open; after that the `checker` of any producer of its group does.

    Attributes:
        message_id: id of the transaction's message.
    """

    def __init__(self, message_id: str, cause: LedgerMQError) -> None:
        super().__init__(
            f"transaction {message_id}: the decision has not arrived, the broker will ask for it: {cause}",
            code=cause.code,
            outcome_known=False,
        )
        self.message_id = message_id


class SendManyError(LedgerMQError, ExceptionGroup[LedgerMQError]):
    """Some of many messages were not acknowledged.

    Attributes:
        exceptions: the errors, one for each failed request.
        outcomes: for every message, in order: its `SendResult`, or the error of its request.
    """

    outcomes: tuple[object, ...]

    def __new__(cls, failures: Sequence[LedgerMQError], outcomes: Sequence[object]) -> "SendManyError":
        failed = sum(isinstance(outcome, LedgerMQError) for outcome in outcomes)
        made = super().__new__(cls, f"{failed} of {len(outcomes)} messages were not acknowledged", failures)
        made.outcomes = tuple(outcomes)
        return made

    def __init__(self, failures: Sequence[LedgerMQError], outcomes: Sequence[object]) -> None:
        self.code = failures[0].code
        self.outcome_known = all(failure.outcome_known for failure in failures)

    def __reduce__(self) -> tuple[object, ...]:
        """See `LedgerMQError.__reduce__`; the parts of a group are set by its class."""
        return SendManyError, (self.exceptions, self.outcomes)

    def derive(self, excs: Sequence[LedgerMQError]) -> "SendManyError":  # type: ignore[override]
        """Return the group of a subset of the errors, for `except*`."""
        return SendManyError(excs, self.outcomes)

    @property
    def is_retryable(self) -> bool:
        """Whether all of the failed messages can succeed later or elsewhere."""
        return all(failure.is_retryable for failure in self.exceptions)  # type: ignore[union-attr]


class InvalidArgumentError(LedgerMQError, ValueError):
    """An argument is invalid (name, body, property, address); nothing was sent. The text names the argument."""


class UndecodableError(LedgerMQError):
    """An answer of a server, or a stored message, that this client cannot decode."""


class CompressionUnavailableError(UndecodableError):
    """The body is compressed with a codec whose module is not installed.

    Attributes:
        module: name of the Python module to install.
    """

    def __init__(self, codec: str, module: str) -> None:
        super().__init__(f"body is compressed with {codec}: install the Python module {module!r} to read it")
        self.module = module


class ClosedError(LedgerMQError):
    """The object is not open: use it inside `async with`, or between `start()` and `close()`."""


MAYBE_DONE_CODES = frozenset({1, 10, 11, 12})  # code 1 of RocketMQ may be a quorum time-out
MAYBE_DONE_CAUSES = frozenset({"leader-changed", "no-quorum", "disk-failed", "flush-timeout", "replica-timeout"})

NOT_LEADER_CODES = frozenset({14, 501})
BY_CODE: Mapping[int, type[RefusedError]] = {
    2: BusyError,
    3: NotSupportedError,
    13: MessageRejectedError,
    14: UnavailableError,
    16: PermissionDeniedError,
    17: TopicNotFoundError,
    22: NotFoundError,
    23: InvalidRequestError,
    24: InvalidRequestError,
    25: InvalidRequestError,
    26: GroupNotFoundError,
    29: InvalidRequestError,
    215: BusyError,
    604: InvalidRequestError,
    501: NotLeaderError,
    1500: UnavailableError,
}


def _route_answer(answer: LedgerMQError) -> str:
    """Return the first line of a nameserver's error; say so if the server seems not to be a nameserver."""
    text = str(answer).partition("\n")[0]
    return f"{text}: this may be a broker's port" if isinstance(answer, NotSupportedError) else text


def unreachable_from(address: str, error: RemotingError) -> UnreachableError:
    """Return the typed error for a request that got no answer."""
    if isinstance(error, RequestTimeoutError):
        return AnswerTimeoutError(address, error.timeout_s)
    if isinstance(error, ConnectError):
        return ConnectFailedError(address, str(error))
    return ConnectionLostError(address, str(error))


def refusal_from(address: str, code: int, remark: str | None, ext: Mapping[str, str] | None) -> RefusedError:
    """Return the typed error for an error answer; code 14 with a leader or the cause `not-leader` is a redirect."""
    ext = ext or {}
    is_redirect = code in NOT_LEADER_CODES and (_leader_hint(ext) is not None or ext.get("cause") == "not-leader")
    kind = NotLeaderError if is_redirect else BY_CODE.get(code, ServerError)
    return kind(address, code, remark or "", ext)


def _leader_hint(ext: Mapping[str, str]) -> str | None:
    """Return the hint as `host:port`, without a node id before it (`n0@host:port`); None if it has no port."""
    address = ext.get("leaderHint", "").rpartition("@")[2]
    return address if address.rpartition(":")[2].isdecimal() else None


def another(error: LedgerMQError) -> LedgerMQError:
    """Return a copy of an error, so that each caller raises its own: `raise` changes traceback and context."""
    made = type(error).__new__(type(error))
    made.args = error.args
    made.__dict__.update(error.__dict__)
    made.__cause__ = error.__cause__
    return made
