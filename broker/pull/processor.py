"""PULL_MESSAGE (11), LITE_PULL_MESSAGE (361): check, read, answer, or hold.

Leader and followers answer alike, from what is committed and dispatched on this node. A follower never refuses an
offset beyond its own end: the reader is sent to broker 0, or held. A leader holds it for a second first: it may have
stood still, and not know yet that another one leads, from which the reader comes.

Source: apache/rocketmq `broker/.../processor/PullMessageProcessor.java`, `DefaultPullMessageResultHandler.java`.
"""

import time
from dataclasses import replace
from typing import Final

from broker.context import BrokerContext
from broker.counting.departures import PullCounter
from broker.groups.clients import BROADCASTING, ClientTable, ConsumerGroup
from broker.groups.locks import GroupLocks
from broker.groups.subscription import TAG, Subscription, asked_subscription, check_usable
from broker.groups.subscription_refresh import SubscriptionRefresh
from broker.pull.cold_data import ColdReads
from broker.pull.forbidden import Forbidden, ForbiddenRefusal
from broker.pull.held_pulls import HeldPulls
from broker.pull.spread import MOVE_SECONDS, ReadSpread
from broker.state import names
from broker.state.settings import GroupConfig
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import Fields, integer, long, text
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.route import PERM_READ
from store.errors import DiskReadError
from store.log.refusals import refusal_of
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_reader import GetResult, GetStatus

COMMIT_OFFSET: Final = 1
SUSPEND: Final = 2
SUBSCRIPTION: Final = 4

BULK: Final = "bulk"
"""Field of a pull whose answer may be larger than usual; an answer has it, too, where the broker knows of it."""
BULK_COUNT_MAX: Final = 2048

DOUBT_SECONDS: Final = 1.0
"""How long an elected leader holds a pull beyond the end of its queue: until then it would hear of another leader."""

_SUSPEND_MAX_MS: Final = 60_000
_NAMED_BY_DEFAULT: Final = (GroupConfig(name="").broker_id, GroupConfig(name="").broker_id_when_slow)
_FOUND: Final = GetStatus.FOUND
_OFFSET_STATES: Final = frozenset({GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_TOO_SMALL})
_UNHEARD: Final = frozenset({Cause.SUBSCRIPTION_NOT_LATEST, Cause.SUBSCRIPTION_NOT_EXIST})
_EMPTY: Final = frozenset({GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_MATCHED_LOGIC_QUEUE})
_NO_NEWS: Final = frozenset({GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.OFFSET_FOUND_NULL})


class Pull:
    """A pull that is being served: its request, queue, subscription, limits and the offset reached so far.

    `is_pushed`: it is of a push consumer, whose heartbeat has its subscription. Such a consumer follows
    `suggestWhichBrokerId`, and no program waits for the single answer.
    """

    __slots__ = (
        "_processor",
        "asked_offset",
        "command",
        "connection",
        "count_max",
        "counter",
        "deadline",
        "fields",
        "is_held",
        "is_pushed",
        "offset",
        "queue",
        "size_max",
        "suggested",
        "wanted",
    )

    def __init__(
        self,
        processor: "PullProcessor",
        connection: Connection,
        command: Command,
        queue: ConsumeQueue,
        wanted: Subscription,
        limits: tuple[int, int],
        suggested: tuple[int, int] | None,
        counter: PullCounter,
        *,
        is_pushed: bool,
    ) -> None:
        self._processor = processor
        self.is_pushed = is_pushed
        self.counter = counter
        self.connection = connection
        self.command = command
        self.queue = queue
        self.wanted = wanted
        self.count_max, self.size_max = limits
        self.suggested = suggested
        self.asked_offset = self.offset = long(command.ext, "queueOffset")
        self.deadline = 0.0
        self.is_held = False
        self.fields = {"groupSysFlag": "0", "topicSysFlag": "0"}

    @property
    def is_gone(self) -> bool:
        return self.connection.is_closed

    @property
    def is_blocked(self) -> bool:
        return self.connection.is_full

    def retry(self) -> bool:
        return self._processor.run_again(self)

    def give_up(self) -> None:
        self._processor.run(self, may_hold=False)


class PullProcessor:
    """Serves pulls.

    Attributes:
        messages_out, bytes_out: delivered so far.
        found, missed: pulls that found messages, and that found none.
        refresh: asks for the subscription of a group of which this node has no heartbeat.
    """

    def __init__(
        self,
        context: BrokerContext,
        clients: ClientTable,
        locks: GroupLocks,
        held: HeldPulls,
        cold: ColdReads,
        spread: ReadSpread,
    ) -> None:
        self._spread = spread
        self._config = context.config
        self._identity = context.identity
        self._metadata = context.metadata
        self._clients = clients
        self._locks = locks
        self._offsets = context.offsets
        self._role = context.role
        self._store = context.store
        self._held = held
        self.refresh = SubscriptionRefresh(clients, context.loop.time)
        self._departures = context.counting.departures
        self._cold = cold
        self._turns = context.turns
        self.messages_out = 0
        self.bytes_out = 0
        self.found = 0
        self.missed = 0

    def pull(self, connection: Connection, command: Command) -> None:
        """Answer or hold one request. If its subscription is unknown, the client or the leader is asked first."""
        try:
            self._serve(connection, command)
        except Refusal as refusal:
            if refusal.cause not in _UNHEARD:
                raise
            group = text(command.ext, "consumerGroup")
            if not self.refresh.ask(connection, group, lambda: self._serve_again(connection, command)):
                raise

    def _serve_again(self, connection: Connection, command: Command) -> None:
        if connection.is_closed:
            return
        try:
            self._serve(connection, command)
        except Refusal as refusal:
            connection.refuse(command, refusal)

    def _serve(self, connection: Connection, command: Command) -> None:
        if self._role.is_slave and not (self._config.slave_read or self._role.is_in_election):
            raise Refusal(Cause.BUSY, "[REJECTREQUEST]system busy: this slave serves no reads (slaveReadEnable=false)")
        fields = command.ext
        group_name, topic_name = text(fields, "consumerGroup"), text(fields, "topic")
        flags = integer(fields, "sysFlag")
        if command.code == RequestCode.LITE_PULL_MESSAGE and not self._config.lite_pull:
            raise ForbiddenRefusal(Forbidden.BROKER, self._identity.complaint("for lite pull consumer is forbidden"))
        group = self._check_group(group_name, topic_name)
        queue_id = self._check_queue(topic_name, fields, connection)
        self._check_forbidden(group_name, topic_name)
        if self._locks.any_lost:
            self._locks.pulled(group_name, self._identity.queue(topic_name, queue_id))
        wanted = self._wanted(group, topic_name, flags, fields)
        queue = self._store.queues.get(topic_name, queue_id)
        pull = Pull(
            self,
            connection,
            command,
            queue,
            wanted,
            self._limits(fields),
            self._suggested_by(group),
            self._departures.pull_counter(topic_name, group_name, queue_id),
            is_pushed=not flags & SUBSCRIPTION,
        )
        if BULK in fields:
            pull.fields[BULK] = "true"
        if flags & COMMIT_OFFSET:
            self._commit(topic_name, group_name, queue_id, long(fields, "commitOffset"))
        may_hold = bool(flags & SUSPEND)
        if self._config.cold_data_control and self._cold.check(group_name, queue, pull.offset):
            pull.count_max = 1
            if self._cold.hold(pull):
                return
        if may_hold:
            pull.deadline = self._held.now() + self._hold_seconds(pull)
        if wanted.record_filter is None:
            self._begin(pull, may_hold)
        else:
            self._turns.run(lambda: self._begin_in_turn(pull, may_hold))

    def _suggested_by(self, group: GroupConfig) -> tuple[int, int] | None:
        """The brokers that the group's settings name; None: readers are spread, unless it names other than the default.

        The second is for records that are not in memory.
        """
        named = group.broker_id, group.broker_id_when_slow
        return named if self._config.slave_read and not (self._spread.is_on and named == _NAMED_BY_DEFAULT) else None

    def _commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        if self._role.writable:
            self._offsets.commit(topic, group, queue_id, offset)
        elif self._role.is_slave:
            self._offsets.keep(topic, group, queue_id, offset)

    def _begin_in_turn(self, pull: Pull, may_hold: bool) -> None:
        """Start a pull, now or in a later turn; errors are answered here, since in a later turn there is no caller."""
        try:
            if not pull.is_gone:
                self._begin(pull, may_hold)
        except Exception as error:
            pull.connection.fail(pull.command, error)

    def _begin(self, pull: Pull, may_hold: bool) -> None:
        if not self.run(pull, may_hold=may_hold):
            self._held.make_room(pull, self._config.held_pulls_max)
            pull.is_held = pull.command.is_held = True
            self._held.hold(pull)

    def run_again(self, pull: Pull) -> bool:
        """Try a held pull again. If its group has another subscription by now, the client must pull again.

        The client filters by the expression of its request, and would drop messages that only the new one selects.
        """
        fields = pull.command.ext
        flags = integer(fields, "sysFlag")
        if not flags & SUBSCRIPTION:
            queue = pull.queue
            try:
                group = self._check_group(fields["consumerGroup"], queue.topic)
                self._check_forbidden(group.name, queue.topic)
                wanted = self._wanted(group, queue.topic, flags, fields)
            except Refusal as refusal:
                pull.connection.refuse(pull.command, refusal)
                return True
            if wanted.differs_from(pull.wanted):
                nothing = GetResult(GetStatus.NO_MATCHED_MESSAGE, pull.offset, queue.min_offset, queue.max_offset, [])
                self._answer(pull, ResponseCode.PULL_RETRY_IMMEDIATELY, nothing, pull.offset)
                return True
        return self.run(pull, may_hold=True)

    def run(self, pull: Pull, *, may_hold: bool) -> bool:
        """Read and answer; return False, without an answer, if there is nothing yet and the pull may be held."""
        if self._offsets.has_resets and self._answer_reset(pull):
            return True
        wanted, since = pull.wanted, time.monotonic()
        try:
            result = self._store.reader.get(
                pull.queue,
                pull.offset,
                pull.count_max,
                pull.size_max,
                wanted.tag_filter,
                wanted.record_filter,
                joins=BULK in pull.fields,
            )
        except DiskReadError as error:
            pull.connection.refuse(pull.command, refusal_of(error))
            return True
        except Refusal as refusal:
            pull.connection.refuse(pull.command, refusal)
            return True
        status = result.status
        pull.counter.next_offset = result.next_offset
        if status is _FOUND:
            self.found += 1
            self.messages_out += result.count
            elapsed_ms = int(1000 * (time.monotonic() - since))
            pull.counter.add(result.count, result.size_bytes, result.next_offset, elapsed_ms)
            if self._config.slave_read or self._config.cold_data_control:
                self._look_where(pull, result)
            self._answer(pull, ResponseCode.SUCCESS, result, result.next_offset)
            return True
        if may_hold and self._spread.keeps_readers and self._is_worth_waiting(pull, result):
            return False
        self.missed += 1
        code, next_offset = self._nothing(pull, result)
        self._answer(pull, code, result, next_offset)
        return True

    def _look_where(self, pull: Pull, result: GetResult) -> None:
        """For a read of records that are not in memory: suggest a broker to read from, and count its bytes."""
        is_behind = self._cold.is_behind(result)
        if pull.suggested is not None:
            pull.fields["suggestWhichBrokerId"] = str(pull.suggested[is_behind])
        self._cold.count(pull.command.ext["consumerGroup"], result)

    def _answer_reset(self, pull: Pull) -> bool:
        """Answer a group whose offset was reset with its new offset; return whether it was reset.

        Only the leader can note that the group has the new offset; a follower sends the client to the leader.
        """
        queue, group = pull.queue, pull.command.ext["consumerGroup"]
        if not self._role.writable and self._offsets.reset_of(queue.topic, group, queue.queue_id) is not None:
            nothing = GetResult(GetStatus.NO_MATCHED_MESSAGE, pull.offset, queue.min_offset, queue.max_offset, [])
            pull.fields["suggestWhichBrokerId"] = "0"
            self._answer(pull, ResponseCode.PULL_RETRY_IMMEDIATELY, nothing, pull.offset)
            return True
        offset = self._offsets.take_reset(queue.topic, group, queue.queue_id)
        if offset is None:
            return False
        result = GetResult(GetStatus.OFFSET_RESET, offset, queue.min_offset, queue.max_offset, [])
        self._answer(pull, ResponseCode.PULL_OFFSET_MOVED, result, offset)
        return True

    def _is_worth_waiting(self, pull: Pull, result: GetResult) -> bool:
        status = result.status
        if pull.is_held and self._is_to_move(pull):
            return False
        if status is GetStatus.NO_MATCHED_MESSAGE:
            # A first pull gets at once the offset up to which nothing matches; a held one waits for its tag.
            if not pull.is_held or result.next_offset < result.max_offset:
                return False
            pull.offset = result.next_offset
            return True
        if status in _NO_NEWS or (status in _EMPTY and pull.offset == 0):
            return True
        if status is not GetStatus.OFFSET_OVERFLOW_BADLY and status not in _EMPTY:
            return False
        if not self._role.writable:
            return True
        if pull.is_held or not self._role.is_in_election:
            return False
        pull.deadline = min(pull.deadline, self._held.now() + DOUBT_SECONDS)
        return True

    def _nothing(self, pull: Pull, result: GetResult) -> tuple[int, int]:
        """Return response code and next offset of a pull that found nothing (protocol page 4.5)."""
        status, asked = result.status, pull.offset
        if status in _NO_NEWS:
            if pull.offset != pull.asked_offset:
                return ResponseCode.PULL_RETRY_IMMEDIATELY, pull.offset
            return ResponseCode.PULL_NOT_FOUND, result.next_offset
        if status in _EMPTY:
            if asked == 0:
                return ResponseCode.PULL_NOT_FOUND, 0
            return self._moved(pull, 0)
        if status in _OFFSET_STATES:
            return self._moved(pull, result.next_offset)
        return ResponseCode.PULL_RETRY_IMMEDIATELY, result.next_offset

    def _moved(self, pull: Pull, next_offset: int) -> tuple[int, int]:
        """Return the answer to an offset outside the queue. Only the leader knows the queue's true bounds."""
        if self._role.writable:
            return ResponseCode.PULL_OFFSET_MOVED, next_offset
        pull.fields["suggestWhichBrokerId"] = "0"
        return ResponseCode.PULL_RETRY_IMMEDIATELY, pull.offset

    def _answer(self, pull: Pull, code: int, result: GetResult, next_offset: int) -> None:
        fields = pull.fields
        if "suggestWhichBrokerId" not in fields:
            suggested = pull.suggested
            fields["suggestWhichBrokerId"] = str(suggested[0]) if suggested else self._spread.suggested(pull.queue)
        fields["nextBeginOffset"] = str(next_offset)
        fields["minOffset"] = str(result.min_offset)
        fields["maxOffset"] = str(result.max_offset)
        self.bytes_out += result.size_bytes
        pull.connection.respond(pull.command, code, fields, result.records, remark=result.status)

    # ---- checks, in RocketMQ's order (protocol page 4.4)

    def _check_group(self, name: str, topic: str) -> GroupConfig:
        if not self._identity.may_be_read:
            raise ForbiddenRefusal(Forbidden.BROKER, self._identity.forbids("pulling message"))
        group = self._metadata.group_or_new(name)
        if group is None:
            raise Refusal(Cause.GROUP_NOT_EXIST, f"subscription group [{name}] does not exist, apply first please!")
        if not group.consume_enable:
            remark = f"subscription group no permission, {name} (topic {topic})"
            raise ForbiddenRefusal(Forbidden.GROUP, remark)
        return group

    def _check_queue(self, name: str, fields: Fields, connection: Connection) -> int:
        topic = self._metadata.topic(name)
        if topic is None:
            raise Refusal(Cause.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
        if not topic.perm & PERM_READ or names.is_internal_topic(name):
            raise ForbiddenRefusal(Forbidden.TOPIC, f"the topic[{name}] pulling message is forbidden")
        queue_id = integer(fields, "queueId")
        if not 0 <= queue_id < topic.read_queues:
            host, port = connection.peer
            raise Refusal(
                Cause.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:[{topic.read_queues}] "
                f"consumer:[/{host}:{port}]",
            )
        return queue_id

    def _check_forbidden(self, group: str, topic: str) -> None:
        if self._metadata.is_read_forbidden(group, topic):
            remark = f"the consumer group[{group}] is forbidden for topic[{topic}]"
            raise ForbiddenRefusal(Forbidden.SUBSCRIPTION, remark)

    def _wanted(self, group: GroupConfig, topic: str, flags: int, fields: Fields) -> Subscription:
        if flags & SUBSCRIPTION:
            expression_type = fields.get("expressionType") or TAG
            wanted = asked_subscription(topic, fields.get("subscription") or "*", expression_type)
            check_usable(wanted, sql=self._config.property_filter, fault=Cause.SUBSCRIPTION_PARSE_FAILED)
        else:
            members = self._clients.consumer_group(group.name) or self.refresh.lent(group.name)
            if members is None:
                raise Refusal(Cause.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist: {group.name}")
            wanted = _from_heartbeat(group, members, topic, fields)
            check_usable(wanted, sql=self._config.property_filter, fault=Cause.FILTER_DATA_NOT_EXIST)
        if (
            wanted.record_filter is not None
            and topic.startswith(names.RETRY_PREFIX)
            and not self._config.filter_retries
        ):
            return replace(wanted, record_filter=None)
        return wanted

    def _limits(self, fields: Fields) -> tuple[int, int]:
        """Return the largest number of messages and bytes of an answer. As upstream, the first message always fits."""
        config = self._config
        if BULK in fields:
            count_max, size_max = BULK_COUNT_MAX, config.bulk_pull_bytes
        else:
            count_max, size_max = config.max_pull_count, config.max_pull_bytes
        count, size = integer(fields, "maxMsgNums"), integer(fields, "maxMsgBytes", size_max)
        return max(1, min(count, count_max)), max(1, min(size, size_max))

    def _hold_seconds(self, pull: Pull) -> float:
        asked = min(long(pull.command.ext, "suspendTimeoutMillis"), _SUSPEND_MAX_MS)
        seconds = (asked if self._config.long_polling else self._config.short_polling_ms) / 1000
        return min(seconds, MOVE_SECONDS) if self._is_to_move(pull) else seconds

    def _is_to_move(self, pull: Pull) -> bool:
        return pull.is_pushed and self._spread.is_elsewhere(pull.queue)


def _from_heartbeat(group: GroupConfig, members: ConsumerGroup, topic: str, fields: Fields) -> Subscription:
    if members.message_model == BROADCASTING and not group.consume_broadcast_enable:
        remark = f"the consumer group[{group.name}] can not consume by broadcast way"
        raise ForbiddenRefusal(Forbidden.BROADCASTING, remark)
    subscription = members.subscriptions.get(topic)
    if subscription is None:
        raise Refusal(Cause.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist: {group.name} of {topic}")
    version = long(fields, "subVersion", 0)
    if subscription.version < version:
        raise Refusal(
            Cause.SUBSCRIPTION_NOT_LATEST,
            f"the consumer's subscription not latest: {group.name} of {topic}, here {subscription.version}, "
            f"asked {version}",
        )
    return subscription
