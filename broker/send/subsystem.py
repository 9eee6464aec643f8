"""The subsystem of sends: messages and batches, replies to requests, messages that consumers send back."""

import os
from collections.abc import Callable, Iterable, Mapping

from broker.context import BrokerContext
from broker.delay.parking import Parking
from broker.groups.clients import ClientTable
from broker.groups.locks import GroupLocks
from broker.send.numbering import Numbering
from broker.send.processor import SendProcessor
from broker.send.request_reply import RequestReply
from broker.send.send_back import SendBack
from broker.subsystem import Serve, Subsystem
from ledgermq.message.ids import UniqueIdGenerator
from ledgermq.remoting.codec.codes import RequestCode


class SendSubsystem(Subsystem):
    """Puts messages into this turn's batch."""

    def __init__(self, context: BrokerContext, clients: ClientTable, locks: GroupLocks, parking: Parking) -> None:
        ids = UniqueIdGenerator(context.store_host[:-4], os.getpid(), id(self) & 0x7FFFFFFF)
        self._numbering = Numbering(context)
        self.processor = SendProcessor(context, locks, parking, ids, self._numbering)
        self._request_reply = RequestReply(context, clients, self.processor)
        self._send_back = SendBack(context)

    def periodic(self) -> Iterable[tuple[float, Callable[[], None]]]:
        """Forget numbered batches that are stored, and lanes that are not used any more."""
        return (10.0, self._numbering.settle_all), (60.0, self._numbering.forget_old)

    def follow(self) -> None:
        """Forget what only the leader knows of numbered batches."""
        self._numbering.follow()

    def requests(self) -> Mapping[int, Serve]:
        """Return the handlers by request code."""
        code = RequestCode
        return {
            code.SEND_MESSAGE: self.processor.send_v1,
            code.SEND_MESSAGE_V2: self.processor.send_v2,
            code.SEND_BATCH_MESSAGE: self.processor.send_batch,
            code.SEND_REPLY_MESSAGE: self._request_reply.reply,
            code.SEND_REPLY_MESSAGE_V2: self._request_reply.reply,
            code.CONSUMER_SEND_MSG_BACK: self._send_back.send_back,
        }
