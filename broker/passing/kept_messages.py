"""Fetches from another member what compaction has kept there of parts that have left the log.

A member that was installed, or a slave that began anew, has only the log's present files. Compacted topics keep older
messages beside the log, which this member fetches, queue by queue, before it serves these queues:

    KEPT_MESSAGES {topic, queueId, offset} --> {nextOffset, edition} records      again from nextOffset on ...
    ... until nextOffset is in this member's own log: the rest is copied from there

The other member does not compact the queue meanwhile. If it did all the same (another edition), everything is fetched
again: the message that removed a key may be gone there, while the key is here already.

A follower asks the leader, a slave its master; a leader that lacks messages itself asks its followers.
"""

import asyncio
import logging
from typing import Final

from broker.context import BrokerContext
from broker.passing.leader_link import LeaderLink, open_link
from broker.passing.member_requests import KEPT_MESSAGES
from ledgermq.message.errors import CorruptRecordError
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import integer, long, text
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.proof import Secrets
from ledgermq.remoting.rate_limited_log import RateLimitedLog
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.tls import ContextSource
from store.compaction.compaction_store import CompactionStore
from store.errors import StoreError
from store.message_store import MessageStore

FETCH_SECONDS: Final = 1.0
"""Seconds between two looks whether something is missing, and between two attempts."""

_PART_BYTES: Final = 64 << 10
_WAIT_FOR_LOG_S: Final = 0.05
_WAITS_FOR_LOG: Final = 100
_FAULTS: Final = (RemotingError, Refusal, CorruptRecordError, StoreError, OSError)

_log = logging.getLogger(__name__)


def answer_kept(store: MessageStore, connection: Connection, command: Command) -> None:
    """Answer a request for kept messages.

    Raises:
        Refusal: MALFORMED_FIELD; NOT_SUPPORTED, this node does not compact; else as `CompactionStore.kept`.
        DiskReadError: a message cannot be read.
    """
    if store.compaction is None:
        raise Refusal(Cause.NOT_SUPPORTED, "this broker does not compact topics (enableCompaction=false)")
    fields = command.ext
    topic, queue_id, offset = text(fields, "topic"), integer(fields, "queueId"), long(fields, "offset")
    part = store.compaction.kept(topic, queue_id, offset, _PART_BYTES)
    ext = {"nextOffset": str(part.next_offset), "edition": part.edition}
    connection.respond(command, ResponseCode.SUCCESS, ext, part.records)


class KeptFetch:
    """Fetches the kept messages that this node lacks, one queue after the other."""

    def __init__(self, context: BrokerContext) -> None:
        self._role = context.role
        self._store = context.store
        self._spawn = context.spawn
        self._limits = context.config.limits
        self._client: RemotingClient | None = None
        self._secrets: Secrets = ()
        self._is_running = False
        self._faults = RateLimitedLog(_log)

    def open(self, tls: ContextSource | None, secrets: Secrets) -> None:
        """Begin to ask other members; the arguments are those of `PassOn.open`."""
        self._client = RemotingClient(tls=tls)
        self._secrets = secrets

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def run(self) -> None:
        """Begin to fetch what is missing, if anything is and this is not under way already."""
        compaction = self._store.compaction
        if compaction is not None and compaction.missing and self._client is not None and not self._is_running:
            self._is_running = True
            self._spawn(self._fetch_all(self._client, compaction))

    def _sources(self) -> list[str]:
        leader = self._role.leader_elsewhere
        if leader is not None:
            return [leader]
        return [replica.serves_at for replica in self._store.log.replicas() if replica.serves_at]

    async def _fetch_all(self, client: RemotingClient, compaction: CompactionStore) -> None:
        """Ask each source for all that is still missing."""
        try:
            for address in self._sources():
                try:
                    link = await open_link(client, address, self._secrets, self._limits)
                except (RemotingError, Refusal) as error:
                    self._faults.warning("kept messages cannot be fetched: %s", error)
                    continue
                for topic, queue_id in compaction.missing:
                    await self._try_queue(link, compaction, topic, queue_id)
                link.connection.close("all was asked for")  # a node that stops waits until members have left it
        finally:
            self._is_running = False

    async def _try_queue(self, link: LeaderLink, compaction: CompactionStore, topic: str, queue_id: int) -> None:
        try:
            await _fetch_queue(link, compaction, topic, queue_id)
        except _FAULTS as error:
            self._faults.warning("kept messages of %s/%d are not fetched yet: %s", topic, queue_id, error)


async def _fetch_queue(link: LeaderLink, compaction: CompactionStore, topic: str, queue_id: int) -> None:
    """Fetch the kept messages of one queue.

    Raises:
        RemotingError, Refusal, CorruptRecordError, StoreError, OSError: not all of them have arrived.
    """
    target = compaction.begin_fetch(topic, queue_id)
    if target is None:
        raise Refusal(Cause.RECOVERING, "the queue cannot be opened here")
    offset, edition, waits = 0, "", 0
    while not (compaction.has_reached_log(target, offset) and compaction.is_in_log(target)):
        if compaction.has_reached_log(target, offset):
            if (waits := waits + 1) > _WAITS_FOR_LOG:
                raise Refusal(Cause.RECOVERING, f"{link.address} has messages that have not come to this node's log")
            await asyncio.sleep(_WAIT_FOR_LOG_S)
            continue
        ext = {"topic": topic, "queueId": str(queue_id), "offset": str(offset)}
        answer = await link.ask(Command(KEPT_MESSAGES, ext=ext))
        if answer.code != ResponseCode.SUCCESS:
            raise Refusal(Cause.RECOVERING, f"{link.address} refuses: {answer.remark}")
        if edition and answer.ext.get("edition") != edition:
            raise Refusal(Cause.RECOVERING, f"{link.address} has compacted the queue meanwhile")
        edition = text(answer.ext, "edition")
        next_offset = long(answer.ext, "nextOffset")
        if next_offset <= offset:
            raise Refusal(Cause.RECOVERING, f"{link.address} has messages up to {next_offset} only")
        await compaction.take_kept(target, bytes(answer.body))
        offset = next_offset
    await compaction.complete(target, offset)
