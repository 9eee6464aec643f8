"""SEND_REPLY_MESSAGE (324), SEND_REPLY_MESSAGE_V2 (325): pushes a reply to the requester and stores it.

    consumer --325--> broker --326--> requester (REPLY_TO_CLIENT names it; it is connected as a producer)
                         '-- placed in <cluster>_REPLY_TOPIC --> answered: the code is that of the push

Source: apache/rocketmq `broker/.../processor/ReplyMessageProcessor.java` (5.x).
"""

from collections.abc import Mapping
from typing import Final

from broker.context import BrokerContext
from broker.groups.clients import ClientTable
from broker.send.fields import shortened
from broker.send.processor import SendProcessor
from ledgermq.message.hosts import decode_host
from ledgermq.message.ids import offset_message_id
from ledgermq.message.properties import decode_properties, encode_properties
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import SEND_NAMES
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.wall_clock import wall_clock_ms
from store.replicated_log import AppendReceipt

PUSH_TIMEOUT_SECONDS: Final = 10.0
_REQUESTER: Final = "REPLY_TO_CLIENT"
_LONG_NAMES: Final = {**SEND_NAMES, "k": "unitMode"}


class RequestReply:
    """Pushes replies to the requesters, and stores them."""

    def __init__(self, context: BrokerContext, clients: ClientTable, send: SendProcessor) -> None:
        self._config = context.config
        self._clients = clients
        self._send = send
        self._appender = context.appender
        self._store_host = context.store_host
        self._spawn = context.spawn

    def reply(self, connection: Connection, command: Command) -> None:
        """Push a reply to the requester, then store it.

        A reply whose topic or queue is refused is not pushed either.
        """
        fields = command.ext if "b" in command.ext else shortened(command.ext)
        if "b" not in fields:
            raise Refusal(Cause.INVALID_PARAMETER, "field b (topic) is missing")
        self._send.check(fields)
        self._spawn(self._pass_on(connection, command, fields))

    async def _pass_on(self, connection: Connection, command: Command, fields: Mapping[str, str]) -> None:
        fault = await self._push(connection, command, fields)
        answer = {
            "MSG_REGION": self._config.region_id,
            "TRACE_ON": str(self._config.trace_on).lower(),
            "msgId": "0",
            "queueId": fields["e"],
            "queueOffset": "0",
        }
        code = ResponseCode.SUCCESS if fault is None else ResponseCode.SYSTEM_ERROR
        if not self._config.store_replies:
            connection.respond(command, code, answer, remark=fault)
            return
        try:
            draft = self._send.place(connection, fields, command.body)
        except Refusal:  # as upstream, only the push decides the answer
            connection.respond(command, code, answer, remark=fault)
            return

        def done(outcome: AppendReceipt | Refusal) -> None:
            if isinstance(outcome, AppendReceipt):
                answer["msgId"] = offset_message_id(self._store_host, draft.physical_offset)
                answer["queueId"] = str(draft.queue_id)
                answer["queueOffset"] = str(draft.queue_offset)
            connection.respond(command, code, answer, remark=fault)

        self._appender.listeners.append(done)

    async def _push(self, connection: Connection, command: Command, fields: Mapping[str, str]) -> str | None:
        """Push the reply; return why the requester did not get it, or None if it did."""
        properties = decode_properties(fields.get("i", ""))
        client_id = properties.get(_REQUESTER)
        if client_id is None:
            return f"reply message properties[{_REQUESTER}] is null"
        requester = self._clients.producer_connection(client_id)
        if requester is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now = wall_clock_ms()
        properties["PUSH_REPLY_TIME"] = str(now)
        header = {long: fields[short] for short, long in _LONG_NAMES.items() if short in fields}
        header |= {
            "properties": encode_properties(properties).decode(),
            "bornHost": connection.address,
            "storeHost": str(decode_host(self._store_host)),
            "storeTimestamp": str(now),
        }
        push = Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext=header, body=bytes(command.body))
        try:
            verdict = await requester.request(push, PUSH_TIMEOUT_SECONDS)
        except RemotingError as error:
            return f"push reply message to {client_id} fail: {error}"
        return None if verdict.code == ResponseCode.SUCCESS else f"push reply message to {client_id} fail."
