"""Transactions: half messages, their ends, and questions to producers about those that do not end."""

from collections.abc import Collection, Mapping

from broker.context import BrokerContext
from broker.delay.deliveries import Deliveries
from broker.delay.parking import Parking
from broker.groups.clients import ClientTable
from broker.subsystem import Serve, Subsystem
from broker.transactions.copies import TransactionCopies
from broker.transactions.requests import TransactionRequests
from broker.transactions.service import TransactionService
from ledgermq.remoting.codec.codes import RequestCode
from store.queues.consume_queue import ConsumeQueue
from store.timer.metrics import TopicCounts


class TransactionSubsystem(Subsystem):
    """Decides about half messages.

    Args:
        counts: open half messages by topic, as loaded from disk.
    """

    def __init__(
        self,
        context: BrokerContext,
        clients: ClientTable,
        deliveries: Deliveries,
        parking: Parking,
        counts: TopicCounts,
    ) -> None:
        copies = TransactionCopies(context, clients)
        self.service = TransactionService(context, deliveries, copies, counts)
        self._requests = TransactionRequests(context, self.service, parking)

    def requests(self) -> Mapping[int, Serve]:
        """What serves which request code."""
        code = RequestCode
        return {
            code.END_TRANSACTION: self._requests.end,
            code.RESUME_CHECK_HALF_MESSAGE: self._requests.resume,
        }

    def on_parked(self, queues: Collection[ConsumeQueue]) -> None:
        """Among these queues with new messages are some in which messages wait."""
        self.service.wake(queues)

    def lead(self) -> None:
        """Answer no decision before it is known what was decided."""
        self.service.expect()

    def resume(self) -> None:
        """Ask producers about half messages that do not end."""
        self.service.resume()

    def follow(self) -> None:
        """The leader decides."""
        self.stop()

    def stop(self) -> None:
        """Commit and ask nothing more."""
        self.service.stop()
