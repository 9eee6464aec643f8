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

Reading order: `errors`, `route`, `nameservers`, `routes`, `calls` (retries and redirects), `session` (with
`heartbeats`, `stall_watch`); then `producer`: `sends`, `producing`, `outgoing`, `assembly`, `outbox`, `queue_choice`,
`send_plan`, `sending`, and what else it does: `batcher`, `transactions`, `replies`, `fault_strategy`; then `consumer`:
`membership`, `assigned`, `callbacks`, `turns`, `queue_reader`, `backlog`, `commits`, `reading`, `handling`,
`sending_back`, `serving`; then `simple_consumer` with `popping`; then `admin`. Every error is exported here, too.
"""

from ledgermq.client.admin import (
    Admin,
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
from ledgermq.client.consumer.message import Message
from ledgermq.client.consumer.popping import PoppedMessage
from ledgermq.client.consumer.simple_consumer import SimpleConsumer
from ledgermq.client.core.calls import FailedTry, OnRetry
from ledgermq.client.core.cluster import ClusterInfo
from ledgermq.client.core.compression import Codec
from ledgermq.client.core.fault_strategy import FaultStrategy
from ledgermq.client.core.route import MessageQueue, TopicRoute
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
from ledgermq.client.group.assigned import OnQueuesChanged
from ledgermq.client.group.start_position import Start
from ledgermq.client.group.subscribing import Mode, Topics
from ledgermq.client.group.subscription import Sql
from ledgermq.client.producer.outgoing import Body, Keys, Outgoing
from ledgermq.client.producer.producer import Producer
from ledgermq.client.producer.sending import SendResult, SendStatus
from ledgermq.client.producer.timing import Delay
from ledgermq.client.producer.transaction import Transaction
from ledgermq.client.producer.transactions import Checker, Decision
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
