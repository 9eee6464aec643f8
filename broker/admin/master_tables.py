"""Copies topics, groups, progress and modes from RocketMQ's master to a slave: they are not in the master's log.

    every few seconds: 21 topics, 201 groups, 43 offsets, 45 delay levels, 402 POP modes, 60 timers --> what differs is
    applied

A slave of ours needs none of it, since its master's log has them all. What the master has removed is removed here, too;
RocketMQ's slave also asks how many timers wait (61): ours counts them as it takes them into its own index.
RocketMQ's slave drops its whole tables and puts the master's in their place, and has none in between.

Source: apache/rocketmq `broker/.../slave/SlaveSynchronize.java` (5.3.3).
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from broker.delay.levels import PROGRESS_KEY
from broker.forwarding import Forward
from broker.state.pop_tables import PopChange, modes_from_json
from broker.state.settings import GroupConfig, TopicConfig
from broker.state.tables import TIMER_OFFSET, TIMER_PROGRESS_KEY, TIMER_READ_TIME, ReplicatedState, StateChange
from broker.timers import Spawn
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.java_json import load_json
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.rate_limited_log import RateLimitedLog
from ledgermq.remoting.refusal import Refusal
from store.timer.checkpoint import TimerCheck

POLL_SECONDS: Final = 3.0

_V = TypeVar("_V")
_log = RateLimitedLog(logging.getLogger(__name__))


class MasterTables:
    """Asks the master; call `poll` periodically.

    Args:
        state: the tables.
        apply: applies a change to them, and notifies the subsystems.
        spawn: runs a coroutine until the broker stops.
        master: returns the `host:port` at which the master serves clients; empty while no master is to be asked.
    """

    def __init__(
        self,
        state: ReplicatedState,
        apply: Callable[[StateChange], None],
        spawn: Spawn,
        master: Callable[[], str],
    ) -> None:
        self._master = master
        self.forward: Forward | None = None
        self._state = state
        self._apply = apply
        self._spawn = spawn
        self._is_asking = False

    def poll(self) -> None:
        """Begin to ask, unless the last round is under way, or no master is known."""
        master = self._master()
        if master and self.forward is not None and not self._is_asking:
            self._is_asking = True
            self._spawn(self._ask_all(self.forward, master))

    async def _ask_all(self, forward: Forward, master: str) -> None:
        try:
            for code, read in _READ.items():
                told = await _ask(forward, master, code)
                if self._master() != master:  # perhaps this node is master by now
                    return
                change = read(self._state, told)
                if change != StateChange():
                    self._apply(change)
        except (RemotingError, Refusal, LookupError, ValueError, TypeError, AttributeError) as error:
            _log.warning("the tables of the master at %s cannot be copied: %s", master, error)
        finally:
            self._is_asking = False


async def _ask(forward: Forward, broker: str, code: int) -> Any:
    """Return what a broker answers: the bytes of timers' progress, else what the JSON holds."""
    answer = await forward(broker, Command(code))
    if answer.code != ResponseCode.SUCCESS:
        raise ValueError(f"request {code} is answered with {answer.code}: {answer.remark}")
    body = bytes(answer.body)
    return body if code == RequestCode.GET_TIMER_CHECK_POINT else load_json(body)


def _topics(state: ReplicatedState, body: Any) -> StateChange:
    theirs = {name: TopicConfig.from_json(value) for name, value in body["topicConfigTable"].items()}
    return StateChange(topics=_differing(state.topics, theirs))


def _groups(state: ReplicatedState, body: Any) -> StateChange:
    theirs = {name: GroupConfig.from_json(value) for name, value in body["subscriptionGroupTable"].items()}
    return StateChange(groups=_differing(state.groups, theirs))


def _offsets(state: ReplicatedState, body: Any) -> StateChange:
    theirs = {key: {int(queue): int(at) for queue, at in queues.items()} for key, queues in body["offsetTable"].items()}
    return StateChange(offsets={key: queues for key, queues in theirs.items() if not _has(state, key, queues)})


def _delay_levels(state: ReplicatedState, body: Any) -> StateChange:
    theirs = {int(level) - 1: int(at) for level, at in body["offsetTable"].items()}
    return StateChange(offsets={} if _has(state, PROGRESS_KEY, theirs) else {PROGRESS_KEY: theirs})


def _modes(state: ReplicatedState, body: Any) -> StateChange:
    return StateChange(pop=PopChange(modes=_differing(state.pop.modes, modes_from_json(body))))


def _timers(state: ReplicatedState, body: bytes) -> StateChange:
    """Return the master's progress of timers, so that this node as the next master delivers none of them again."""
    check = TimerCheck.decode(body)
    theirs = {TIMER_OFFSET: check.queue_offset, TIMER_READ_TIME: check.read_ms}
    is_known = not check.read_ms or _has(state, TIMER_PROGRESS_KEY, theirs)
    return StateChange(offsets={} if is_known else {TIMER_PROGRESS_KEY: theirs})


_READ: Final[Mapping[int, Callable[[ReplicatedState, Any], StateChange]]] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: _topics,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _groups,
    RequestCode.GET_ALL_CONSUMER_OFFSET: _offsets,
    RequestCode.GET_ALL_DELAY_OFFSET: _delay_levels,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: _modes,
    RequestCode.GET_TIMER_CHECK_POINT: _timers,
}


async def progress_of(forward: Forward, slave: str, state: ReplicatedState) -> StateChange:
    """Ask RocketMQ's slave, which stood in for this master, for its progress; return what is ahead of the tables.

    Raises:
        RemotingError: no answer.
        ValueError: an answer that cannot be read.
    """
    offsets: dict[str, dict[int, int]] = {}
    for code in (
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_TIMER_CHECK_POINT,
    ):
        try:
            theirs = _READ[code](state, await _ask(forward, slave, code)).offsets
        except (Refusal, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"the answer to request {code} cannot be read: {error}") from error
        for key, queues in theirs.items():
            ours = state.offsets.get(key, {})
            ahead = {queue: at for queue, at in (queues or {}).items() if at > ours.get(queue, 0)}
            if ahead:
                offsets[key] = ahead
    return StateChange(offsets=offsets)


def _has(state: ReplicatedState, key: str, queues: Mapping[int, int]) -> bool:
    return queues.items() <= state.offsets.get(key, {}).items()


def _differing(ours: Mapping[str, _V], theirs: Mapping[str, _V]) -> dict[str, _V | None]:
    """Return the changes that make our table equal to theirs; None as a value removes the entry."""
    changed: dict[str, _V | None] = {name: value for name, value in theirs.items() if ours.get(name) != value}
    return changed | dict.fromkeys(ours.keys() - theirs.keys())
