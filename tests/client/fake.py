"""A peer for the client's tests: brokers and nameservers in this process that speak just enough of the protocol.

Nodes of one broker name share one `Ledger`, as if replication were perfect; which of them leads is set by the test.
What goes wrong is set by the test too: `FakeBroker.plan` queues one misbehaviour for the next request of a code.
"""

import asyncio
import collections
import json
import time
from collections.abc import Callable
from typing import Any

from ledgermq.message.crc import CRC_MASK, crc32
from ledgermq.message.hosts import Host, encode_host
from ledgermq.message.ids import offset_message_id
from ledgermq.message.record import Record, encode_record, record_size
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import ONEWAY_FLAG, Command
from ledgermq.remoting.codec.frame import encode
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.server import RemotingServer
from tests.limits import WAIT_S
from tests.wire import split_batch

HOST = Host("127.0.0.1", 1)

Misbehaviour = Callable[["FakeBroker", Connection, Command], None]
Handler = Callable[[Connection, Command], None]


async def eventually(condition: Callable[[], bool], what: str = "") -> None:
    """Return when it holds; fail after `WAIT_S`."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what or condition}"
        await asyncio.sleep(0.005)


class Ledger:
    """What all nodes of one broker name agree on."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        self.queues: dict[tuple[str, int], list[Record]] = collections.defaultdict(list)
        self.first_offsets: dict[tuple[str, int], int] = collections.defaultdict(int)
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.locks: dict[tuple[str, int], str] = {}
        self.position = 0
        self.term = 1

    def append(self, topic: str, queue_id: int, body: bytes, properties: bytes, sys_flag: int = 0) -> Record:
        queue = self.queues[topic, queue_id]
        size = record_size(len(body), len(topic), len(properties), sys_flag, False)
        record = Record(
            topic, queue_id, 0, sys_flag, self.end(topic, queue_id), self.position, 1, HOST, 2, HOST, 0, 0, body,
            properties, crc32(body) & CRC_MASK, size,
        )  # fmt: skip
        queue.append(record)
        self.position += size
        return record

    def end(self, topic: str, queue_id: int) -> int:
        return self.first_offsets[topic, queue_id] + len(self.queues[topic, queue_id])

    def bodies(self, topic: str) -> list[bytes]:
        """All messages of a topic, by queue."""
        return [record.body for key in sorted(self.queues) if key[0] == topic for record in self.queues[key]]


class Node:
    """A listener that dispatches by request code; can be killed and brought back at the same address."""

    def __init__(self) -> None:
        self.handlers: dict[int, Handler] = {}
        self.seen: list[Command] = []
        self.port = 0
        self._server: RemotingServer | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_up(self) -> bool:
        return self._server is not None

    async def start(self) -> None:
        self._server = RemotingServer(self)
        await self._server.start("127.0.0.1", self.port)
        self.port = self._server.port

    async def kill(self) -> None:
        """Close everything, as a process that dies does."""
        self.hang_up_on_all()
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    def tell_all(self, command: Command) -> None:
        """Send every client a request that wants no answer."""
        for connection in self._server.connections if self._server else ():
            connection.oneway(command)

    def hang_up_on_all(self) -> None:
        """Close every connection; new ones are taken."""
        for connection in self._server.connections if self._server else ():
            connection.abort("hung up")

    def count(self, code: int) -> int:
        """Requests of that code seen so far."""
        return sum(command.code == code for command in self.seen)

    def on_connected(self, connection: Connection) -> None:
        pass

    def on_closed(self, connection: Connection) -> None:
        pass

    def on_request(self, connection: Connection, command: Command) -> None:
        self.seen.append(command)
        handler = self.handlers.get(command.code)
        if handler is None:
            connection.respond(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f"{command.code}")
        else:
            handler(connection, command)


class FakeBroker(Node):
    """One node of a broker name."""

    def __init__(self, cluster: "FakeCluster", name: str, ledger: Ledger) -> None:
        super().__init__()
        self.name = name
        self.ledger = ledger
        self.leads = False
        self.silent = False
        self.hint: str | None = None
        self.members: dict[str, dict[str, Connection]] = collections.defaultdict(dict)
        self.beats: list[dict[str, Any]] = []
        self.ended: list[Command] = []
        self._cluster = cluster
        self._plans: dict[int, collections.deque[Misbehaviour]] = collections.defaultdict(collections.deque)
        self._held: list[tuple[Connection, Command]] = []
        self._by_code: dict[int, Handler] = {
            RequestCode.SEND_MESSAGE_V2: self._send,
            RequestCode.SEND_BATCH_MESSAGE: self._send_batch,
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.GET_MAX_OFFSET: self._max_offset,
            RequestCode.GET_MIN_OFFSET: self._min_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._min_offset,
            RequestCode.VIEW_MESSAGE_BY_ID: self._view,
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._create_topic,
            RequestCode.DELETE_TOPIC_IN_BROKER: self._delete_topic,
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._members,
            RequestCode.END_TRANSACTION: self._end_transaction,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
        }
        self.handlers = dict.fromkeys(self._by_code, self._dispatch)

    def plan(self, code: int, *misbehaviours: Misbehaviour) -> None:
        """Treat the next requests of that code so."""
        self._plans[code].extend(misbehaviours)

    def wake(self) -> None:
        """Look at held pulls again."""
        held, self._held = self._held, []
        for connection, command in held:
            if not connection.is_closed:
                self._pull(connection, command)

    def release(self) -> None:
        """Answer held pulls: their time is over."""
        held, self._held = self._held, []
        for connection, command in held:
            self._answer_pull(connection, command, ResponseCode.PULL_NOT_FOUND, int(command.ext["queueOffset"]))

    def on_closed(self, connection: Connection) -> None:
        for group, members in list(self.members.items()):
            for client_id in [client_id for client_id, at in members.items() if at is connection]:
                del members[client_id]
                self._notify(group)

    def _dispatch(self, connection: Connection, command: Command) -> None:
        if self.silent:
            return
        plans = self._plans[command.code]
        if plans:
            plans.popleft()(self, connection, command)
        elif not self.leads and command.code not in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT):
            ext = {"cause": "not-leader"} | ({"leaderHint": self.hint} if self.hint else {})
            connection.respond(command, ResponseCode.SERVICE_NOT_AVAILABLE, ext, remark="not leader")
        else:
            self._by_code[command.code](connection, command)

    # -- messages

    def _send(self, connection: Connection, command: Command) -> None:
        self.answer_send(connection, command, [self.store(command)])

    def _send_batch(self, connection: Connection, command: Command) -> None:
        ext = command.ext
        records = [
            self.ledger.append(ext["b"], int(ext["e"]), bytes(body), properties)
            for _, body, properties in split_batch(command.body)
        ]
        self.answer_send(connection, command, records)
        self._cluster.wake()

    def store(self, command: Command) -> Record:
        """Store a single send's message."""
        ext = command.ext
        if ext["b"] not in self.ledger.topics:
            self.ledger.topics[ext["b"]] = 4
            self._cluster.changed()
        record = self.ledger.append(ext["b"], int(ext["e"]), bytes(command.body), ext["i"].encode())
        self._cluster.wake()
        return record

    def answer_send(self, connection: Connection, command: Command, records: list[Record], code: int = 0) -> None:
        host = encode_host(HOST)
        ext = {
            "msgId": ",".join(offset_message_id(host, record.physical_offset) for record in records),
            "queueId": str(records[0].queue_id),
            "queueOffset": str(records[0].queue_offset),
            "term": str(self.ledger.term),
            "copies": "3",
            "durableCopies": "2",
        }
        connection.respond(command, code, ext)

    def _end_transaction(self, connection: Connection, command: Command) -> None:
        self.ended.append(command)
        connection.respond(command, 0)

    def _pull(self, connection: Connection, command: Command) -> None:
        ext = command.ext
        topic, queue_id, offset = ext["topic"], int(ext["queueId"]), int(ext["queueOffset"])
        first, end = self.ledger.first_offsets[topic, queue_id], self.ledger.end(topic, queue_id)
        if not first <= offset <= end:
            moved = first if offset < first else end
            self._answer_pull(connection, command, ResponseCode.PULL_OFFSET_MOVED, moved)
        elif offset == end:
            self._held.append((connection, command))
        else:
            chosen = self.ledger.queues[topic, queue_id][offset - first :][:32]
            body = b"".join(map(encode_record, chosen))
            self._answer_pull(connection, command, ResponseCode.SUCCESS, offset + len(chosen), body)

    def _answer_pull(
        self, connection: Connection, command: Command, code: int, next_offset: int, body: bytes = b""
    ) -> None:
        ext = {"nextBeginOffset": str(next_offset), "minOffset": "0", "maxOffset": "0", "suggestWhichBrokerId": "0"}
        connection.respond(command, code, ext, body)

    def _view(self, connection: Connection, command: Command) -> None:
        for records in self.ledger.queues.values():
            for record in records:
                if record.physical_offset == int(command.ext["offset"]):
                    connection.respond(command, 0, {}, encode_record(record))
                    return
        connection.respond(command, ResponseCode.SYSTEM_ERROR, remark="can not find message by the offset")

    # -- offsets

    def _query_offset(self, connection: Connection, command: Command) -> None:
        key = command.ext["topic"], command.ext["consumerGroup"], int(command.ext["queueId"])
        if key in self.ledger.offsets:
            connection.respond(command, 0, {"offset": str(self.ledger.offsets[key])})
        else:
            connection.respond(command, ResponseCode.QUERY_NOT_FOUND, remark="not found")

    def _update_offset(self, connection: Connection, command: Command) -> None:
        key = command.ext["topic"], command.ext["consumerGroup"], int(command.ext["queueId"])
        self.ledger.offsets[key] = int(command.ext["commitOffset"])
        connection.respond(command, 0)

    def _max_offset(self, connection: Connection, command: Command) -> None:
        end = self.ledger.end(command.ext["topic"], int(command.ext["queueId"]))
        connection.respond(command, 0, {"offset": str(end)})

    def _min_offset(self, connection: Connection, command: Command) -> None:
        first = self.ledger.first_offsets[command.ext["topic"], int(command.ext["queueId"])]
        connection.respond(command, 0, {"offset": str(first)})

    # -- locks, which do not expire here

    def lock(self, connection: Connection, command: Command) -> None:
        asked = json.loads(bytes(command.body))
        table, client_id = self.ledger.locks, asked["clientId"]
        granted = [q for q in asked["mqSet"] if table.setdefault((q["topic"], q["queueId"]), client_id) == client_id]
        connection.respond(command, 0, body=json.dumps({"lockOKMQSet": granted}).encode())

    def _unlock(self, connection: Connection, command: Command) -> None:
        asked = json.loads(bytes(command.body))
        for queue in asked["mqSet"]:
            if self.ledger.locks.get((queue["topic"], queue["queueId"])) == asked["clientId"]:
                del self.ledger.locks[queue["topic"], queue["queueId"]]
        connection.respond(command, 0)

    # -- topics, groups

    def _create_topic(self, connection: Connection, command: Command) -> None:
        self.ledger.topics[command.ext["topic"]] = int(command.ext["writeQueueNums"])
        connection.respond(command, 0)
        self._cluster.changed()

    def _delete_topic(self, connection: Connection, command: Command) -> None:
        self.ledger.topics.pop(command.ext["topic"], None)
        connection.respond(command, 0)
        self._cluster.changed()

    def _heartbeat(self, connection: Connection, command: Command) -> None:
        beat = json.loads(bytes(command.body))
        self.beats.append(beat)
        connection.respond(command, 0)
        for data in beat["consumerDataSet"]:
            members = self.members[data["groupName"]]
            if members.get(beat["clientID"]) is not connection:
                members[beat["clientID"]] = connection
                self._notify(data["groupName"])

    def _unregister(self, connection: Connection, command: Command) -> None:
        group = command.ext.get("consumerGroup", "")
        self.members[group].pop(command.ext["clientID"], None)
        connection.respond(command, 0)
        self._notify(group)

    def _members(self, connection: Connection, command: Command) -> None:
        group = command.ext["consumerGroup"]
        body = json.dumps({"consumerIdList": list(self.members[group])}).encode()
        connection.respond(command, 0, body=body)

    def _notify(self, group: str) -> None:
        for connection in self.members[group].values():
            ext = {"consumerGroup": group}
            connection.send(encode(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, flag=ONEWAY_FLAG, ext=ext)))


class FakeNameserver(Node):
    """Tells the cluster's routes.

    Args:
        holds: holds questions until routes change, as LedgerMQ's nameserver does.
    """

    def __init__(self, cluster: "FakeCluster", *, holds: bool) -> None:
        super().__init__()
        self._frozen: dict[str, dict[str, Any] | None] | None = None
        self._cluster = cluster
        self._holds = holds
        self._held: list[tuple[Connection, Command]] = []
        self.handlers = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: lambda connection, command: connection.respond(command, 0),
        }

    def freeze(self, *topics: str) -> None:
        """Tell the routes of this moment for ever: a nameserver that has lost the brokers."""
        self._frozen = {topic: self._cluster.route(topic) for topic in topics}

    def changed(self) -> None:
        """Routes have changed."""
        if self._frozen is not None:
            return
        held, self._held = self._held, []
        for connection, command in held:
            if not connection.is_closed:
                self._route(connection, command)

    def _route(self, connection: Connection, command: Command) -> None:
        topic = command.ext["topic"]
        route = self._cluster.route(topic) if self._frozen is None else self._frozen.get(topic)
        version = "0" if route is None else "1" if self._frozen else str(self._cluster.version)
        if self._holds and command.ext.get("knownVersion") == version and int(command.ext["waitMillis"]) > 1:
            self._held.append((connection, command))
        elif route is None:
            connection.respond(command, ResponseCode.TOPIC_NOT_EXIST, remark="No topic route info in name server")
        else:
            ext = {"routeVersion": version} if self._holds else {}
            connection.respond(command, 0, ext, json.dumps(route).encode())

    def _cluster_info(self, connection: Connection, command: Command) -> None:
        names = {broker.name: self._cluster.addresses(broker.name) for broker in self._cluster.brokers}
        table = ",".join(
            f'"{name}":{{"brokerName":"{name}","cluster":"C","brokerAddrs":{{'
            + ",".join(f'{broker_id}:"{address}"' for broker_id, address in addresses.items())
            + "}}"
            for name, addresses in names.items()
        )
        body = f'{{"brokerAddrTable":{{{table}}},"clusterAddrTable":{{"C":{json.dumps(list(names))}}}}}'
        connection.respond(command, 0, {}, body.encode())


class FakeCluster:
    """Nameservers, and broker names with their nodes."""

    def __init__(self, *, holds: bool = True, nameserver_count: int = 1) -> None:
        self.version = 1
        self.nameservers = [FakeNameserver(self, holds=holds) for _ in range(nameserver_count)]
        self.brokers: list[FakeBroker] = []
        self.ledgers: dict[str, Ledger] = {}

    @property
    def namesrv(self) -> str:
        return ";".join(nameserver.address for nameserver in self.nameservers)

    @property
    def nameserver(self) -> FakeNameserver:
        return self.nameservers[0]

    async def add(self, name: str = "b", *, nodes: int = 1, topics: dict[str, int] | None = None) -> list[FakeBroker]:
        """A broker name with so many nodes, the first of which leads."""
        ledger = self.ledgers[name] = Ledger()
        ledger.topics.update(topics or {})
        added = [FakeBroker(self, name, ledger) for _ in range(nodes)]
        for broker in added:
            await broker.start()
        self.brokers += added
        self.lead(added[0])
        return added

    def lead(self, leader: FakeBroker | None, name: str = "b") -> None:
        """Let this node lead its broker name from now on."""
        name = leader.name if leader else name
        for broker in self.brokers:
            if broker.name == name:
                broker.leads = broker is leader
        self.ledgers[name].term += 1
        self.changed()
        self.wake()

    def changed(self) -> None:
        """Routes have changed."""
        self.version += 1
        for nameserver in self.nameservers:
            nameserver.changed()

    def wake(self) -> None:
        """Queues have grown."""
        for broker in self.brokers:
            if broker.leads:
                broker.wake()

    def addresses(self, name: str) -> dict[str, str]:
        """By broker id: 0 leads; dead nodes are not registered."""
        found = {}
        for number, broker in enumerate(broker for broker in self.brokers if broker.name == name):
            if broker.is_up:
                found["0" if broker.leads else str(number + 1)] = broker.address
        return found

    def route(self, topic: str) -> dict[str, Any] | None:
        names = [name for name, ledger in self.ledgers.items() if topic in ledger.topics and self.addresses(name)]
        if not names:
            return None
        counts = {name: self.ledgers[name].topics[topic] for name in names}
        return {
            "brokerDatas": [
                {"brokerName": name, "cluster": "C", "brokerAddrs": self.addresses(name)} for name in names
            ],
            "queueDatas": [
                {"brokerName": name, "perm": 6, "readQueueNums": count, "writeQueueNums": count}
                for name, count in counts.items()
            ],
        }

    async def kill(self, broker: FakeBroker) -> None:
        """A node dies; nameservers notice the closed connection."""
        broker.leads = False
        await broker.kill()
        self.changed()

    async def close(self) -> None:
        for node in (*self.brokers, *self.nameservers):
            await node.kill()


# -- misbehaviours


def refuse(code: int, remark: str = "", **ext: str) -> Misbehaviour:
    """Answer with an error."""
    return lambda broker, connection, command: connection.respond(command, code, ext, remark=remark)


def ignore(broker: FakeBroker, connection: Connection, command: Command) -> None:
    """Never answer."""


def hang_up(broker: FakeBroker, connection: Connection, command: Command) -> None:
    """Close the connection instead of answering."""
    connection.abort("hung up")


def store_and_hang_up(broker: FakeBroker, connection: Connection, command: Command) -> None:
    """Store the message, and close the connection before the answer."""
    broker.store(command)
    connection.abort("hung up")


def store_with_status(code: int) -> Misbehaviour:
    """Store the message, and answer with a code that says how little is known of it."""
    return lambda broker, connection, command: broker.answer_send(connection, command, [broker.store(command)], code)
