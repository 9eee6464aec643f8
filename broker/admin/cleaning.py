"""Cleaning on request: expired queues (306), queues of unused topics (316), expired log files (329).

Each node cleans its own files; a leader does not pass the request on.

Source: apache/rocketmq `broker/.../processor/AdminBrokerProcessor.java` (5.3.3).
"""

from collections.abc import Awaitable
from typing import Any

from broker.context import BrokerContext
from broker.state import names
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from store.cleaning.cleaner import Cleaner

_LIGHT_QUEUE_PREFIX = "%LMQ%"


class CleaningRequests:
    """Has the store cleaned."""

    def __init__(self, context: BrokerContext) -> None:
        self._metadata = context.metadata
        self._targets = context.targets
        self._store = context.store
        self._spawn = context.spawn

    def expired_queues(self, connection: Connection, command: Command) -> None:
        """306: trim queues to the start of the log, and delete those of removed topics."""
        self._spawn(self._answer_after(self._cleaner().clean_expired_queues(self._is_kept), connection, command))

    def unused_topics(self, connection: Connection, command: Command) -> None:
        """316: delete the queues of topics that do not exist any more."""
        self._spawn(self._answer_after(self._cleaner().clean_unused_topics(self._is_kept), connection, command))

    def expired_log(self, connection: Connection, command: Command) -> None:
        """329: delete expired files of the log now, whatever the hour."""
        self._cleaner().clean_by_hand()
        connection.respond(command, ResponseCode.SUCCESS)

    def _cleaner(self) -> Cleaner:
        if self._store.cleaner is None:
            raise Refusal(Cause.RECOVERING, "the store is being opened", retry_after_ms=100)
        return self._store.cleaner

    def _is_kept(self, topic: str) -> bool:
        is_ours = names.is_system_topic(topic) or topic.startswith(_LIGHT_QUEUE_PREFIX)
        return is_ours or self._metadata.topic(topic) is not None

    async def _answer_after(self, work: Awaitable[Any], connection: Connection, command: Command) -> None:
        await work
        self._targets.forget()
        connection.respond(command, ResponseCode.SUCCESS)
