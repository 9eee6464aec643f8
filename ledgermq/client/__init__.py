"""The asyncio client.

    async with Producer("127.0.0.1:9876") as producer:                      producer.py
        await producer.send("orders", b"one apple")

    async with Consumer("127.0.0.1:9876", "shop", "orders") as consumer:    consumer.py
        async for message in consumer:
            print(message.body)
        await consumer.run(handle, concurrency=16)                          or handling.py

    async with Admin("127.0.0.1:9876") as admin:                            admin.py
        await admin.create_topic("orders", queue_count=8)

Reading order: `errors`, `route`, `nameservers`, `routes`, `calls` (retries and redirects), `session`; then `producer`
with `producing`, `outbox`, `queue_choice`, `send_plan`, `sending`, and what else it does: `batcher`, `transactions`,
`replies`; then `consumer` with `membership`, `assigned`, `queue_reader`, `backlog`, `handling`.
"""

from ledgermq.client.admin import Admin, GroupConfig, Policy, QueueProgress, TopicConfig
from ledgermq.client.calls import FailedTry
from ledgermq.client.cluster import ClusterInfo
from ledgermq.client.consumer import Consumer
from ledgermq.client.errors import (
    Action,
    LedgerMQError,
    NoReplyError,
    SendManyError,
    TransactionUndecidedError,
)
from ledgermq.client.fault_strategy import FaultStrategy
from ledgermq.client.handling import DeadLetter, Retry
from ledgermq.client.message import Message
from ledgermq.client.outgoing import Outgoing
from ledgermq.client.popping import PoppedMessage
from ledgermq.client.producer import Producer
from ledgermq.client.route import MessageQueue, TopicRoute
from ledgermq.client.sending import SendResult, SendStatus
from ledgermq.client.simple_consumer import SimpleConsumer
from ledgermq.client.subscription import Sql
from ledgermq.client.transaction import Transaction
from ledgermq.client.transactions import Decision
from ledgermq.remoting.signature import Credentials

__all__ = [
    "Action",
    "Admin",
    "ClusterInfo",
    "Consumer",
    "Credentials",
    "DeadLetter",
    "Decision",
    "FailedTry",
    "FaultStrategy",
    "GroupConfig",
    "LedgerMQError",
    "Message",
    "MessageQueue",
    "NoReplyError",
    "Outgoing",
    "Policy",
    "PoppedMessage",
    "Producer",
    "QueueProgress",
    "Retry",
    "SendManyError",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "Sql",
    "TopicConfig",
    "TopicRoute",
    "Transaction",
    "TransactionUndecidedError",
]
