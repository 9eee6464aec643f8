"""What becomes of a half message that nobody decides: a copy at the end of the half topic, or one where it is given up.

Source: apache/rocketmq `broker/.../transaction/queue/TransactionalMessageBridge.java` (renewHalfMessageInner),
`DefaultTransactionalMessageCheckListener.java` (5.3.3).
"""

import logging
import random

from broker.append.drafts import DraftMaker
from broker.append.target import SendTargets
from broker.config import BrokerConfig
from broker.groups.clients import ClientTable
from broker.state import names
from broker.state.metadata import Metadata
from broker.transactions.check import check_command
from broker.transactions.halves import CHECK_TIMES
from ledgermq.message.properties import WAIT
from ledgermq.message.record import Record
from ledgermq.remoting.refusal import Refusal
from store.log.queued_draft import QueuedDraft

log = logging.getLogger(__name__)


class TransactionCopies:
    """Makes the copies, and asks about them."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: Metadata,
        clients: ClientTable,
        targets: SendTargets,
        drafts: DraftMaker,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._clients = clients
        self._targets = targets
        self._drafts = drafts
        self._random = random.Random()

    def put_back(self, record: Record, check_times: int) -> QueuedDraft | None:
        """A copy that says how often was asked; None when it has become too long."""
        properties = {**record.property_map, CHECK_TIMES: str(check_times), WAIT: "false"}
        return self._copy(record, names.HALF_TOPIC, properties)

    def given_up(self, record: Record) -> QueuedDraft | None:
        """A copy that nobody is asked about, naming its origin; None when it has become too long.

        Raises:
            Refusal: its topic cannot be made now.
        """
        self._metadata.topic_for_group(names.CHECKED_OUT_TOPIC, 1)
        draft = self._copy(record, names.CHECKED_OUT_TOPIC, record.property_map)
        if draft is not None:
            draft.prepared_transaction_offset = record.physical_offset
        return draft

    def ask(self, record: Record, group: str) -> bool:
        """Ask any connected producer of the group about the copy in `record`; False when there is none."""
        producers = [client for client in self._clients.producers(group) if not client.connection.is_closed]
        if not producers:
            log.info("nobody of producer group %s to ask about the half message at %d", group, record.physical_offset)
            return False
        self._random.choice(producers).connection.oneway(check_command(record, self._config.broker_name))
        return True

    def _copy(self, record: Record, topic: str, properties: dict[str, str]) -> QueuedDraft | None:
        try:
            target = self._targets.target(topic, 0)
            return self._drafts.again(record, target, properties, reconsume_times=record.reconsume_times)
        except Refusal as refusal:
            log.error("half message at %d cannot be copied to %s: %s", record.physical_offset, topic, refusal.remark)
            return None
