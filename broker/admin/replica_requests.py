"""Requests about replication: state (907) and terms (1007); 355 and 200056 have no effect here.

Source: apache/rocketmq `broker/.../processor/AdminBrokerProcessor.java` (5.3.3).
"""

from typing import Any

from broker.context import BrokerContext
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import I64_MAX, long
from ledgermq.remoting.codec.java_json import dumps
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from store.replicated_log import LogRole


class ReplicaRequests:
    """Serves the requests about replication, in every mode."""

    def __init__(self, context: BrokerContext) -> None:
        self._identity = context.identity
        self._role = context.role
        self._store = context.store
        self._log = context.store.log

    def status(self, connection: Connection, command: Command) -> None:
        """907: answer the master's log and its slaves. A Raft group has no slaves, as upstream with DLedger."""
        role, end = self._log.state.role, self._log.max_offset
        if role.is_member:
            raise Refusal(Cause.SYSTEM_ERROR, "Can not get HARuntimeInfo, may be duplicationEnable is true")
        slaves = [
            {
                "addr": slave.address,
                "diff": end - slave.received_offset,
                "inSync": slave.in_sync,
                "slaveAckOffset": slave.received_offset,
                "transferFromWhere": slave.received_offset,
                "transferredByteInSecond": 0,
            }
            for slave in self._log.replicas()
        ]
        client = {
            "lastReadTimestamp": 0,
            "lastWriteTimestamp": 0,
            "masterFlushOffset": self._store.master_flushed_offset if role is LogRole.SLAVE else 0,
            "maxOffset": end if role is LogRole.SLAVE else 0,
            "transferredByteInSecond": 0,
        }
        body = {
            "haClientRuntimeInfo": client,
            "haConnectionInfo": slaves,
            "inSyncSlaveNums": sum(slave["inSync"] is True for slave in slaves),
            "master": role is not LogRole.SLAVE,
            "masterCommitLogMaxOffset": end,
        }
        connection.respond(command, ResponseCode.SUCCESS, body=dumps(body))

    def terms(self, connection: Connection, command: Command) -> None:
        """1007: answer where each term of this log begins and ends, as RocketMQ shows epochs of a controller."""
        if self._role.is_alone:
            raise Refusal(Cause.SYSTEM_ERROR, "this request only for controllerMode ")
        body = {
            "brokerId": self._role.broker_id,
            **self._identity.fields,
            "epochList": self._term_list(),
            "maxOffset": self._log.max_offset,
        }
        connection.respond(command, ResponseCode.SUCCESS, body=dumps(body))

    def _term_list(self) -> list[dict[str, Any]]:
        starts = self._log.generations()
        ends = [one.start_offset for one in starts[1:]] + [I64_MAX]
        return [
            {"endOffset": end, "epoch": one.number, "startOffset": one.start_offset}
            for one, end in zip(starts, ends, strict=True)
        ]

    def reset_master_flush_offset(self, connection: Connection, command: Command) -> None:
        """908: a slave shows this offset of its master's log (907) and keeps it in its checkpoint; a master ignores it.

        RocketMQ uses it for nothing else.
        """
        if self._log.state.role is LogRole.SLAVE:
            self._store.master_flushed_offset = long(command.ext, "masterFlushOffset")
        connection.respond(command, ResponseCode.SUCCESS)

    def nothing_to_move(self, connection: Connection, command: Command) -> None:
        """355, 200056: do nothing. They move tables and POP progress from RocksDB to files, where they are here."""
        connection.respond(command, ResponseCode.SUCCESS, remark="export done.")
