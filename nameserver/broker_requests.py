"""Requests of brokers, and of tools on their behalf: registration, heartbeat, leaving, adding and deleting topics.

Our brokers send further fields with 103: `term`, their Raft term; `confirmOffset`, the end of their confirmed log; and
`increment`, true when the body has only the topics that changed (`removedTopics` names those that do not exist any
more, divided by semicolons). A broker may send increments once it has sent a whole registration and got
`takesIncrements` in the answer. Their heartbeat is 322, as RocketMQ's brokers can send it, too:
the answer tells a broker that is not registered under its id that something changed, and it registers again. A refused
claim to broker id 0 is answered with code 14 and `leaderHint`. RocketMQ's brokers that are refused by RocketMQ's rule
of state versions get the answer that they expect, without an error.

Source: apache/rocketmq `namesrv/.../processor/DefaultRequestProcessor.java` (5.3).
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ledgermq.message.crc import crc32
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import address, filled, long, optional_boolean, text
from ledgermq.remoting.codec.java_json import java_json, standard_json
from ledgermq.remoting.codec.lenient_json import bad_body, json_body
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.rate_limited_log import RateLimitedLog
from ledgermq.remoting.refusal import Cause, LeaderHint, Refusal
from ledgermq.remoting.route import LEADER_ID
from ledgermq.remoting.serving.answer import Answer, Handler
from ledgermq.remoting.serving.authority import draw_challenge
from ledgermq.remoting.signature import CHALLENGE
from nameserver.authority import terms_count
from nameserver.config import NameServerConfig
from nameserver.core.election import RegistrationRefusedError
from nameserver.core.model import Registration, TopicTable
from nameserver.core.routes import RouteTable, UnknownBrokerError
from nameserver.kv_config import ORDER_TOPIC_CONFIG, KvConfig
from nameserver.leaving_brokers import LeavingBrokers
from nameserver.register_body import parse_data_version, parse_queue_data, parse_register_body

_log = logging.getLogger(__name__)
_seldom = RateLimitedLog(_log)
_CRC_MASK = 0x7FFFFFFF


class BrokerRequests:
    """The handlers.

    `config` returns the present configuration, `now_ms` a time that does not advance while this process stalls.
    A registration whose body was read in a thread calls `changed` when it is in effect, or `refused` with the cause.
    """

    def __init__(
        self,
        table: RouteTable,
        kv: KvConfig,
        config: Callable[[], NameServerConfig],
        now_ms: Callable[[], int],
        leaving: LeavingBrokers,
        changed: Callable[[], None],
        refused: Callable[[Cause], None],
    ) -> None:
        self._table = table
        self._kv = kv
        self._config = config
        self._now_ms = now_ms
        self._leaving = leaving
        self._changed = changed
        self._refused = refused
        self._reading: dict[Connection, asyncio.Task[None]] = {}
        self._later: dict[Connection, dict[tuple[str, ...], list[Command]]] = {}  # behind that which is being read
        self._unread_bytes = 0
        self._reader = ThreadPoolExecutor(1, "registrations")

    async def close(self) -> None:
        """Return when the registrations that are being read are answered."""
        await asyncio.gather(*self._reading.values())
        self._reader.shutdown()

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """The handlers by request code."""
        return {
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._member_group,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
        }

    def _register(self, connection: Connection, command: Command) -> Answer | None:
        name, digest = _short(command.ext, "brokerName"), _digest(command)
        if connection in self._reading:  # registrations must take effect in the order in which they arrived
            self._wait(connection, command)
            return None
        known: tuple[bytes, TopicTable] | None = connection.attributes.get(_LAST_TABLE)
        if known is not None and known[0] == digest:
            return self._take(connection, command, known[1])
        if len(command.body) <= _AT_ONCE_BYTES:
            table = self._parse(command, name)
            _remember(connection, digest, table)
            return self._take(connection, command, table)
        if len(self._reading) >= _READING_MAX:
            raise _busy(f"{_READING_MAX} registrations are being read")
        self._count_unread(command)
        self._reading[connection] = asyncio.get_running_loop().create_task(self._read(connection, command))
        return None

    def _wait(self, connection: Connection, command: Command) -> None:
        """Let a registration wait until the one that is being read is in effect.

        Of each broker only the last registration that waits is read; its answer goes to all of them. An increment is
        neither replaced nor replaces another one: it may be the only one to name a removed topic.
        """
        broker = tuple(command.ext.get(name, "") for name in ("clusterName", "brokerName", "brokerAddr", "brokerId"))
        later = self._later.setdefault(connection, {})
        waiting = later.get(broker, [])
        has_increment = any(optional_boolean(one.ext, "increment") for one in (command, *waiting[-1:]))
        if (waiting and has_increment) or len(waiting) + len(later) >= _LATER_MAX:
            raise _busy(f"{len(waiting)} registrations of this broker wait to be read")
        self._count_unread(command)
        if waiting:
            self._unread_bytes -= len(waiting[-1].body)
            waiting[-1].body = b""
        later[broker] = [*waiting, command]

    def _count_unread(self, command: Command) -> None:
        unread = self._unread_bytes + len(command.body)
        if unread > _READING_MAX_BYTES:
            raise _busy(f"registrations of {self._unread_bytes} bytes wait to be read")
        self._unread_bytes = unread

    async def _read(self, connection: Connection, command: Command) -> None:
        """Read a registration, and those that arrive on this connection meanwhile."""
        commands = [command]
        try:
            while commands and not connection.is_closed:
                await self._take_when_read(connection, commands)
                later = self._later.get(connection)
                commands = later.pop(next(iter(later))) if later else []
        finally:
            del self._reading[connection]
            left = [commands, *self._later.pop(connection, {}).values()]
            self._unread_bytes -= sum(len(waiting[-1].body) for waiting in left if waiting)

    async def _take_when_read(self, connection: Connection, commands: list[Command]) -> None:
        """Read the last one's body of many topics in a thread, so that others are served meanwhile; answer all."""
        command = commands[-1]
        try:
            name, digest = _short(command.ext, "brokerName"), _digest(command)
            table = await asyncio.get_running_loop().run_in_executor(self._reader, self._parse, command, name)
            if connection.is_closed:
                return
            _remember(connection, digest, table)
            answer = self._take(connection, command, table)
        except Exception as error:
            for one in commands:
                if isinstance(error, Refusal):
                    self._refused(error.cause)
                connection.fail(one, error)
        else:
            for one in commands:
                answer.send(connection, one)
            self._changed()
        finally:
            self._unread_bytes -= len(command.body)
            command.body = b""

    def _parse(self, command: Command, broker_name: str) -> TopicTable:
        ext, inflated_max = command.ext, self._config().max_registration_size_bytes
        is_increment = bool(optional_boolean(ext, "increment"))
        table = parse_register_body(
            command.body, command.version, broker_name, is_increment=is_increment, inflated_max=inflated_max
        )
        if not is_increment:
            return table
        return replace(table, removed=tuple(filter(None, ext.get("removedTopics", "").split(";"))))

    def _take(self, connection: Connection, command: Command, table: TopicTable) -> Answer:
        claim = self._registration(connection, command, table)
        self._warn_of_two_masters(claim)
        try:
            registered = self._table.register(claim, self._now_ms())
        except RegistrationRefusedError as error:
            _log.warning("registration refused: %s", error)
            if error.is_silent:
                return Answer({}, self._order_topics())
            raise self._refusal(claim, error) from error
        ext = {"takesIncrements": "true"} if "increment" in command.ext else {}
        if registered.leader_ha_address is not None:
            ext["haServerAddr"] = registered.leader_ha_address
        if registered.leader_address is not None:
            ext["masterAddr"] = registered.leader_address
        return Answer(ext, self._order_topics())

    def _warn_of_two_masters(self, claim: Registration) -> None:
        """Log that a master replaces a living one where masters are not elected; as in RocketMQ it gets id 0."""
        group = self._table.group(claim.broker_name)
        holder = None if group is None else group.leader
        if claim.broker_id != LEADER_ID or claim.term or holder is None or holder.address == claim.address:
            return
        if not holder.registration.term and holder.registration.cluster == claim.cluster:
            _seldom.warning(
                "broker %s at %s takes id 0 from %s, which has not left: are two masters configured with one name?",
                claim.broker_name,
                claim.address,
                holder.address,
            )

    def _order_topics(self) -> bytes:
        order = self._kv.table(ORDER_TOPIC_CONFIG) if self._config().return_order_topic_config else None
        return b"" if order is None else standard_json({"table": order})

    def _registration(self, connection: Connection, command: Command, table: TopicTable) -> Registration:
        ext = command.ext
        if (wanted := long(ext, "bodyCrc32", 0)) and (found := crc32(command.body) & _CRC_MASK) != wanted:
            raise Refusal(Cause.SYSTEM_ERROR, f"crc32 not match: body has {found}, field bodyCrc32 says {wanted}")
        term = long(ext, "term", 0, low=0)
        return Registration(
            cluster=_short(ext, "clusterName"),
            broker_name=_short(ext, "brokerName"),
            broker_id=long(ext, "brokerId"),
            address=_short_text("brokerAddr", address(ext, "brokerAddr")),
            ha_address=ext.get("haServerAddr", ""),
            term=term if terms_count(connection) else 0,
            confirm_offset=long(ext, "confirmOffset", -1, low=-1),
            heartbeat_timeout_ms=long(ext, "heartbeatTimeoutMillis", self._config().default_heartbeat_timeout_ms),
            acting_master=optional_boolean(ext, "enableActingMaster"),
            zone=ext.get("__ZONE_NAME"),
            table=table,
            connection=connection,
        )

    def _refusal(self, claim: Registration, error: RegistrationRefusedError) -> Refusal:
        if error.holder is None:
            return Refusal(Cause.SYSTEM_ERROR, str(error))
        return Refusal(Cause.NOT_LEADER, str(error), leader_hint=LeaderHint(claim.broker_name, error.holder))

    def _unregister(self, connection: Connection, command: Command) -> Answer:
        ext = command.ext
        if ext.get("brokerId"):
            long(ext, "brokerId")  # RocketMQ identifies the broker by its address, too
        if connection in self._reading:
            raise _busy("a registration of this connection is being read")
        cluster, name, where = (ext.get(field, "") for field in ("clusterName", "brokerName", "brokerAddr"))
        self._leaving.unregister(cluster, name, where)
        return Answer()

    def _query_data_version(self, connection: Connection, command: Command) -> Answer:
        cluster, where = text(command.ext, "clusterName"), text(command.ext, "brokerAddr")
        asked = parse_data_version(json_body(command.body, "dataVersion")) if command.body else None
        broker_id = long(command.ext, "brokerId") if command.ext.get("brokerId") else None
        known = self._table.data_version(cluster, where, broker_id)
        # An open nameserver refuses no broker, but believes only signed terms: here a broker asks for a challenge.
        ext = {} if terms_count(connection) else {CHALLENGE: draw_challenge(connection)}
        if known is None:
            return Answer(ext | {"changed": "true"})
        self._table.heartbeat(cluster, where, self._now_ms())
        return Answer(ext | {"changed": str(known != asked).lower()}, standard_json(known.to_json()))

    def _heartbeat(self, connection: Connection, command: Command) -> Answer:
        ext = command.ext
        broker_id = long(ext, "brokerId") if ext.get("brokerId") else None
        try:
            self._table.heartbeat(text(ext, "clusterName"), text(ext, "brokerAddr"), self._now_ms(), broker_id)
        except UnknownBrokerError as error:
            if broker_id is not None:  # RocketMQ's brokers do not send it, so a changed id is never reported to them
                raise Refusal(Cause.QUERY_NOT_FOUND, f"the broker must register first: {error}") from error
        return Answer()

    def _member_group(self, connection: Connection, command: Command) -> Answer:
        cluster, name = command.ext.get("clusterName", ""), command.ext.get("brokerName", "")
        group = self._table.group(name)
        members = {"brokerAddrs": group.addresses if group else {}, "brokerName": name, "cluster": cluster}
        return Answer(body=java_json({"brokerMemberGroup": members}))

    def _wipe_write(self, connection: Connection, command: Command) -> Answer:
        return Answer({"wipeTopicCount": str(self._table.topics.wipe_write(command.ext.get("brokerName", "")))})

    def _add_write(self, connection: Connection, command: Command) -> Answer:
        return Answer({"addTopicCount": str(self._table.topics.add_write(command.ext.get("brokerName", "")))})

    def _delete_topic(self, connection: Connection, command: Command) -> Answer:
        self._table.delete_topic(command.ext.get("topic", ""), command.ext.get("clusterName"))
        return Answer()

    def _register_topic(self, connection: Connection, command: Command) -> Answer:
        topic = command.ext.get("topic")
        queues = json_body(command.body, "route").get("queueDatas") or [] if command.body else []
        if not isinstance(queues, list):
            raise bad_body("queueDatas", queues, "a list")
        parsed = [parse_queue_data(queue) for queue in queues]
        if topic is None:
            return Answer()  # RocketMQ keeps it without a name, under which nobody asks
        try:
            self._table.register_topic(topic, parsed)
        except UnknownBrokerError as error:
            _log.warning("the topic is not registered: %s", error)  # RocketMQ logs the same and answers with success
        return Answer()


_LAST_TABLE = "lastTopicTable"
_AT_ONCE_BYTES = 1024
"""Bodies of at most this many bytes are read on the loop; decompressed, such a body has at most some 40,000 topics."""
_READING_MAX = 100
_READING_MAX_BYTES = 64 << 20
_LATER_MAX = 64
"""Most registrations of one broker that wait on a connection, together with the brokers that have any waiting."""
_NAME_MAX = 1024


def _short(ext: Mapping[str, str], name: str) -> str:
    return _short_text(name, filled(ext, name))


def _short_text(name: str, value: str) -> str:
    if len(value) > _NAME_MAX:
        raise Refusal(Cause.SYSTEM_ERROR, f"field {name} has {len(value)} characters, at most {_NAME_MAX} are taken")
    return value


def _busy(remark: str) -> Refusal:
    return Refusal(Cause.BUSY, remark, retry_after_ms=200)


def _remember(connection: Connection, digest: bytes, table: TopicTable) -> None:
    if not table.is_increment:
        connection.attributes[_LAST_TABLE] = digest, table


def _digest(command: Command) -> bytes:
    """Return a digest of a registration; RocketMQ's brokers send the same one every 30 s, and it is parsed once."""
    ext = command.ext
    head = [ext.get(name, "") for name in ("brokerName", "increment", "removedTopics")] + [str(command.version)]
    digest = hashlib.blake2b("\0".join(head).encode(), digest_size=16)
    digest.update(command.body)
    return digest.digest()
