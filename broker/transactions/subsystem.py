"""Transactions: half messages, decisions about them, and checks of undecided ones with their producers."""

from collections.abc import Collection, Mapping

from broker.context import BrokerContext
from broker.delay.deliveries import Deliveries
from broker.delay.parking import Parking
from broker.groups.clients import ClientTable
from broker.subsystem import Serve, Subsystem
from broker.transactions.copies import MayPublish, TransactionCopies
from broker.transactions.requests import TransactionRequests
from broker.transactions.service import TransactionService
from ledgermq.remoting.codec.codes import RequestCode
from store.queues.consume_queue import ConsumeQueue
from store.timer.metrics import TopicCounts


class TransactionSubsystem(Subsystem):
    """Serves decisions about half messages, and checks undecided ones.

    Args:
        counts: open half messages by topic, as loaded from disk.
        may_publish: see `TransactionCopies`.
    """

    def __init__(
        self,
        context: BrokerContext,
        clients: ClientTable,
        deliveries: Deliveries,
        parking: Parking,
        counts: TopicCounts,
        may_publish: MayPublish,
    ) -> None:
        copies = TransactionCopies(context, clients, may_publish)
        self.service = TransactionService(context, deliveries, copies, counts)
        self._requests = TransactionRequests(context, self.service, parking)

    def requests(self) -> Mapping[int, Serve]:
        """See `Subsystem`."""
        code = RequestCode
        return {
            code.END_TRANSACTION: self._requests.end,
            code.RESUME_CHECK_HALF_MESSAGE: self._requests.resume,
        }

    def on_parked(self, queues: Collection[ConsumeQueue]) -> None:
        """Some of these queues, which have new messages, belong to topics in which messages wait."""
        self.service.wake(queues)

    def lead(self) -> None:
        """Let decisions wait until `resume` has loaded what is decided already."""
        self.service.expect()

    def resume(self) -> None:
        """Load the table of open half messages, then serve decisions and checks."""
        self.service.resume()

    def stand_in(self) -> None:
        """Load the table, then hand half messages that are due for a check to other masters."""
        self.service.resume()

    def follow(self) -> None:
        """Stop, since only the leader decides."""
        self.stop()

    def stop(self) -> None:
        """Commit nothing more, and send no more checks."""
        self.service.stop()
