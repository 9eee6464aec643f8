"""Requests about the broker itself: its settings (26), its state (28), its statistics (315).

Source: apache/rocketmq `broker/.../processor/AdminBrokerProcessor.java` (5.x).
"""

from broker.admin.runtime_info import RuntimeInfo
from broker.config import BrokerConfig
from broker.context import BrokerContext
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.data_version import DataVersion
from ledgermq.remoting.codec.fields import text
from ledgermq.remoting.codec.java_json import dumps
from ledgermq.remoting.config_key import keys_of
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal


class BrokerInfoRequests:
    """Serves the requests about the broker itself."""

    def __init__(self, context: BrokerContext, runtime: RuntimeInfo) -> None:
        self._config = context.config
        self._role = context.role
        self._runtime = runtime
        self._statistics = context.counting.statistics

    def broker_config(self, connection: Connection, command: Command) -> None:
        """26: answer the settings under RocketMQ's names, as properties text with sorted keys.

        Every known key has its present value; broker id and role follow this node's present role.
        """
        version = dumps(DataVersion().to_json()).decode()
        values = {name: key.shown_in(self._config) for name, key in keys_of(BrokerConfig).items() if key.path}
        values |= {**self._config.properties, **self._role.as_properties()}
        body = "".join(f"{key}={value}\n" for key, value in sorted(values.items())).encode()
        connection.respond(command, ResponseCode.SUCCESS, {"version": version}, body)

    def runtime_info(self, connection: Connection, command: Command) -> None:
        """28: answer rates, totals and positions."""
        table = self._runtime.table(self._role.writable)
        connection.respond(command, ResponseCode.SUCCESS, body=dumps({"table": table}))

    def view_statistics(self, connection: Connection, command: Command) -> None:
        """315: answer a counter's sum, rate and average over the last minute, hour and day."""
        name, key = text(command.ext, "statsName"), text(command.ext, "statsKey")
        spans = self._statistics.find(name, key)
        if spans is None:
            raise Refusal(Cause.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
        connection.respond(command, ResponseCode.SUCCESS, body=dumps(spans))
