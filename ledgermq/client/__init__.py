"""The asyncio client.

    async with Producer("127.0.0.1:9876") as producer:                      producer.py
        await producer.send("orders", b"one apple")

    async with Consumer("127.0.0.1:9876", "shop", "orders") as consumer:    consumer.py
        async for message in consumer:
            print(message.body)
        await consumer.run(handle, concurrency=16)                          or handling.py

    async with SimpleConsumer("127.0.0.1:9876", "packers", "orders") as consumer:    simple_consumer.py
        for message in await consumer.receive():
            await consumer.ack(message)

    async with Admin("127.0.0.1:9876") as admin:                            admin/
        await admin.create_topic("orders", queue_count=8)

Reading order: `errors`; `core` (`answers`, `nameservers`, `routes`, `calls` with retries and redirects, `session` with
`heartbeats` and `stall_watch`); `producer` (`producer`, `sender`, `send_request`, `queue_choice`, `batcher`,
`transactions`, `replies`, `faults`); `group` (`membership`, `queue_locks`, offsets); `consumer` (`consumer`,
`settings`, `assigned`, `turns`, `queue_reader`, `backlog`, `commits`, `handling`, `sending_back`, `serving`, and
apart from these `simple_consumer` with `popping`); `admin`. Every error is exported here, too.
"""

from ledgermq.client.admin import Admin
from ledgermq.client.admin.results import (
    ClusterInfo,
    ConsumerState,
    GroupConfig,
    GroupConnections,
    GroupMember,
    HandledDirectly,
    Policy,
    QueueProgress,
    QueueStats,
    TopicConfig,
    User,
)
from ledgermq.client.consumer.consumer import Consumer
from ledgermq.client.consumer.handling import DeadLetter, Handler, KeyOf, Order, Retry
from ledgermq.client.consumer.popping import PoppedMessage
from ledgermq.client.consumer.settings import OnQueuesChanged
from ledgermq.client.consumer.simple_consumer import SimpleConsumer
from ledgermq.client.core.calls import FailedTry, OnRetry
from ledgermq.client.core.compression import Codec
from ledgermq.client.core.message import Message
from ledgermq.client.core.session import Tls
from ledgermq.client.errors import (
    Action,
    AnswerTimeoutError,
    BusyError,
    ClosedError,
    CompressionUnavailableError,
    ConnectFailedError,
    ConnectionLostError,
    DeadlineExceededError,
    GroupNotFoundError,
    HalfMessageError,
    InvalidArgumentError,
    InvalidRequestError,
    LedgerMQError,
    MessageRejectedError,
    NoBrokerError,
    NoReplyError,
    NoRouteError,
    NotFoundError,
    NotLeaderError,
    NotSupportedError,
    PermissionDeniedError,
    RefusedError,
    SendManyError,
    ServerError,
    TopicNotFoundError,
    TransactionUndecidedError,
    UnavailableError,
    UndecodableError,
    UnreachableError,
)
from ledgermq.client.group.start_position import Start
from ledgermq.client.group.subscription import Mode, Sql, Topics
from ledgermq.client.producer.faults import FaultStrategy
from ledgermq.client.producer.outgoing import Body, Keys, Outgoing
from ledgermq.client.producer.producer import Producer
from ledgermq.client.producer.send_request import SendResult, SendStatus
from ledgermq.client.producer.timing import Delay
from ledgermq.client.producer.transactions import Checker, Decision, Transaction
from ledgermq.remoting.route import MessageQueue, TopicRoute
from ledgermq.remoting.signature import Credentials

__all__ = [
    "Action",
    "Admin",
    "AnswerTimeoutError",
    "Body",
    "BusyError",
    "Checker",
    "ClosedError",
    "ClusterInfo",
    "Codec",
    "CompressionUnavailableError",
    "ConnectFailedError",
    "ConnectionLostError",
    "Consumer",
    "ConsumerState",
    "Credentials",
    "DeadLetter",
    "DeadlineExceededError",
    "Decision",
    "Delay",
    "FailedTry",
    "FaultStrategy",
    "GroupConfig",
    "GroupConnections",
    "GroupMember",
    "GroupNotFoundError",
    "HalfMessageError",
    "HandledDirectly",
    "Handler",
    "InvalidArgumentError",
    "InvalidRequestError",
    "KeyOf",
    "Keys",
    "LedgerMQError",
    "Message",
    "MessageQueue",
    "MessageRejectedError",
    "Mode",
    "NoBrokerError",
    "NoReplyError",
    "NoRouteError",
    "NotFoundError",
    "NotLeaderError",
    "NotSupportedError",
    "OnQueuesChanged",
    "OnRetry",
    "Order",
    "Outgoing",
    "PermissionDeniedError",
    "Policy",
    "PoppedMessage",
    "Producer",
    "QueueProgress",
    "QueueStats",
    "RefusedError",
    "Retry",
    "SendManyError",
    "SendResult",
    "SendStatus",
    "ServerError",
    "SimpleConsumer",
    "Sql",
    "Start",
    "Tls",
    "TopicConfig",
    "TopicNotFoundError",
    "TopicRoute",
    "Topics",
    "Transaction",
    "TransactionUndecidedError",
    "UnavailableError",
    "UndecodableError",
    "UnreachableError",
    "User",
]
