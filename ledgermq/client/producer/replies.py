"""Request and reply: a message, and the reply that goes back to the very client that sent it.

    requester --send: CORRELATION_ID, REPLY_TO_CLIENT, TTL--> topic --> a consumer
    requester <--326-- broker <--325: MSG_TYPE=reply, topic <cluster>_REPLY_TOPIC-- the consumer's reply

A broker passes a reply on only to a client that it knows by a heartbeat. So before a request is sent, the leaders of
the topic get a heartbeat, and the reply topic is followed, so that its brokers get one, too.

Source: apache/rocketmq `client/.../impl/producer/DefaultMQProducerImpl.java` (request),
`client/.../utils/MessageUtil.java`, `client/.../impl/ClientRemotingProcessor.java` (receiveReplyMessage).
"""

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any, Final

from ledgermq.client.core.address import split_address
from ledgermq.client.core.message import Message
from ledgermq.client.core.session import Session
from ledgermq.client.errors import ClosedError, InvalidArgumentError, NoReplyError
from ledgermq.client.producer.outgoing import Body, MessageOptions
from ledgermq.client.producer.send_request import SendResult
from ledgermq.client.producer.sender import Sender, SendKind
from ledgermq.message.hosts import Host
from ledgermq.message.record import Record
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import integer, long, text
from ledgermq.remoting.route import MessageQueue

CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
CLUSTER: Final = "CLUSTER"
TTL_DIGITS_MAX: Final = 12
INTRODUCTION_S: Final = 1.0
REPLY_ATTEMPTS: Final = 8  # each try that fails, since the requester is gone, leaves a copy in the reply topic
UNKNOWN_HOST: Final = Host("0.0.0.0", 0)


def reply_address(request: Message) -> tuple[str, SendKind, float | None]:
    """Return how to reply to this message.

    Returns:
        The reply topic of the request's cluster; the reply's own properties and request code; and the seconds for
        which the requester waits, counted from its request (None if it did not say).

    Raises:
        InvalidArgumentError: the message is not a request; names the missing properties.
    """
    properties = request.properties
    missing = [name for name in (CLUSTER, REPLY_TO_CLIENT, CORRELATION_ID) if name not in properties]
    if missing:
        raise InvalidArgumentError(f"{request} is not a request: it has no {', '.join(missing)}")
    carried = [
        f"{name}\x01{properties[name]}\x02" for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL) if name in properties
    ]
    kind = SendKind("MSG_TYPE\x01reply\x02" + "".join(carried), code=RequestCode.SEND_REPLY_MESSAGE_V2)
    return reply_topic(properties[CLUSTER]), kind, _seconds(properties.get(TTL, ""))


def _seconds(ttl: str) -> float | None:
    """Return seconds of a TTL in milliseconds; None when it is not a number, or 0."""
    return int(ttl) / 1000 or None if ttl.isdecimal() and len(ttl) <= TTL_DIGITS_MAX else None


def reply_topic(cluster: str) -> str:
    """Return the topic to which a cluster's replies are sent."""
    return f"{cluster}_REPLY_TOPIC"


class Replies:
    """The requests of one producer that wait for their replies, and the replies that it sends."""

    def __init__(self, session: Session, sender: Sender) -> None:
        self._session = session
        self._sender = sender
        self._waiting: dict[str, asyncio.Future[Message]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def request(self, topic: str, body: Body, timeout_s: float, options: MessageOptions) -> Message:
        """Send a request; returns the reply.

        Raises:
            NoReplyError: none came in time.
            LedgerMQError: the request could not be sent.
        """
        sender = self._sender
        correlation_id = str(uuid.uuid4())
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        try:
            async with asyncio.timeout(timeout_s):
                await sender.calls.wait_until(
                    topic, lambda: sender.choice.route(topic), lambda: f"request to topic {topic!r}"
                )
                await self._introduce(topic)
                kind = SendKind(
                    f"{CORRELATION_ID}\x01{correlation_id}\x02{REPLY_TO_CLIENT}\x01{self._session.client_id}\x02"
                    f"{TTL}\x01{round(timeout_s * 1000)}\x02"
                )
                sending = asyncio.ensure_future(sender.send(topic, body, **options, deadline_s=timeout_s, kind=kind))
                both: set[asyncio.Future[Any]] = {sending, reply}
                try:
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                    if not reply.done():
                        sending.result()
                    return await reply
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
        except TimeoutError:
            raise NoReplyError(topic, correlation_id, timeout_s) from None
        finally:
            del self._waiting[correlation_id]

    async def reply(self, request: Message, body: Body, deadline_s: float | None) -> SendResult:
        """Send a reply to the client that has sent `request`.

        Raises:
            InvalidArgumentError: the message is not a request.
            RefusedError: the requester is not connected to the broker any more.
        """
        topic, kind, ttl_s = reply_address(request)
        limit_s = min((limit for limit in (deadline_s, ttl_s) if limit is not None), default=None)
        return await self._sender.send(topic, body, deadline_s=limit_s, attempts_max=REPLY_ATTEMPTS, kind=kind)

    def close(self) -> None:
        """End every request that waits with `ClosedError`."""
        for waiting in self._waiting.values():
            if not waiting.done():
                what = "the producer was closed before the reply came; the request may be carried out all the same"
                waiting.set_exception(ClosedError(what, outcome_known=False))
                waiting.exception()  # retrieves the exception, so that nothing is logged if nobody waits

    async def _introduce(self, topic: str) -> None:
        """Send the topic's leaders a heartbeat if they do not know us, and follow the reply topics."""
        routes = self._session.routes
        route = routes.route(topic)
        for broker in route.brokers.values() if route else ():
            routes.route(reply_topic(broker.cluster))
        leaders = {routes.leader(name) for name in (route.brokers if route else ())} - {None}
        unknown = [address for address in leaders if address and not self._session.heartbeats.is_known_at(address)]
        if unknown:
            sending = [asyncio.ensure_future(self._session.heartbeats.send(address)) for address in unknown]
            await asyncio.wait(sending, timeout=INTRODUCTION_S)

    def on_reply(self, command: Command) -> None:
        """Serve a reply that a broker delivers (326); it is dropped if no request waits for it.

        Raises:
            Refusal: it cannot be decoded.
        """
        message = _read(command)
        waiting = self._waiting.get(message.properties.get(CORRELATION_ID, ""))
        if waiting is not None and not waiting.done():
            waiting.set_result(message)


def _read(command: Command) -> Message:
    ext = command.ext
    body, properties = bytes(command.body), ext.get("properties", "").encode()
    record = Record(
        topic=text(ext, "topic"),
        queue_id=integer(ext, "queueId"),
        flag=integer(ext, "flag"),
        sys_flag=integer(ext, "sysFlag"),
        queue_offset=0,
        physical_offset=0,
        born_timestamp=long(ext, "bornTimestamp"),
        born_host=_host(ext, "bornHost"),
        store_timestamp=long(ext, "storeTimestamp"),
        store_host=_host(ext, "storeHost"),
        reconsume_times=integer(ext, "reconsumeTimes") if "reconsumeTimes" in ext else 0,
        prepared_transaction_offset=0,
        body=body,
        properties=properties,
        body_crc=0,
        size=len(body) + len(properties),
    )
    return Message(record, MessageQueue(record.topic, ext.get("bname", ""), record.queue_id))


def _host(ext: Mapping[str, str], name: str) -> Host:
    """Return the host of `host:port`, which Java may write after a slash; `UNKNOWN_HOST` for other text."""
    try:
        host, port = split_address(ext.get(name, "").rpartition("/")[2])
        return Host(host, port)
    except InvalidArgumentError:
        return UNKNOWN_HOST
