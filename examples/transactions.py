"""Announce orders if, and only if, they are in our own database: python examples/transactions.py [nameserver].

The second producer ends between its database commit and the end of its transaction: the broker then asks, and the
checker decides. Brokers ask after `transactionTimeOut` (6 s by default), every `transactionCheckInterval` (30 s).
"""

import asyncio
import sqlite3
import sys

from ledgermq.client import Consumer, Decision, Message, Producer

database = sqlite3.connect(":memory:")
database.execute("CREATE TABLE orders (number TEXT PRIMARY KEY)")


def check(message: Message) -> Decision:
    """Return the decision on an order: whether it is in the database."""
    found = database.execute("SELECT 1 FROM orders WHERE number = ?", message.keys).fetchone()
    return Decision.COMMIT if found else Decision.ROLLBACK


async def place(producer: Producer, number: str) -> None:
    """Write one order both to the database and to the topic, or to neither."""
    async with producer.transaction("placed", f"order {number}".encode(), keys=number):
        with database:
            database.execute("INSERT INTO orders VALUES (?)", (number,))


async def main(namesrv: str) -> None:
    async with Producer(namesrv, group="shop", checker=check) as producer:
        await place(producer, "1")
        try:
            await place(producer, "1")
        except sqlite3.IntegrityError as error:
            print("not announced:", error)
    async with Producer(namesrv, group="shop") as other, other.transaction("placed", b"order 2", keys="2") as tx:
        database.execute("INSERT INTO orders VALUES ('2')")
        tx.defer()
    async with (
        Producer(namesrv, group="shop", checker=check) as producer,
        Consumer(namesrv, "audit", "placed") as reader,
    ):
        await producer.queues("placed")
        for _ in range(2):
            print("announced:", (await anext(reader)).body.decode())


asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))
