"""The nameserver process: one listener, one route table, a health port. Nameservers share nothing.

    frame -> handler by code -> table -> answer            closed connection, silence -> broker dropped
                                  '-> routes changed -> requests that waited for it are answered
                                  '-> smallest broker id changed -> its members are notified

Silence is measured in time in which this process ran: a stall of its own says nothing about a broker.
"""

import asyncio
import logging
import time
from collections.abc import Mapping

from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode, request_name
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.quotas import Quotas
from ledgermq.remoting.refusal import Refusal
from ledgermq.remoting.server import RemotingServer
from ledgermq.remoting.serving.answer import Handler
from ledgermq.remoting.serving.authority import Authority
from ledgermq.remoting.serving.live_settings import LiveSettings
from ledgermq.remoting.serving.notices import Notices
from ledgermq.wall_clock import wall_clock_ms
from nameserver.authority import GUARDED
from nameserver.broker_requests import BrokerRequests
from nameserver.config import NameServerConfig
from nameserver.config_requests import ConfigRequests
from nameserver.core.model import BrokerMember
from nameserver.core.routes import RouteTable
from nameserver.header_forms import FORMS
from nameserver.kv_config import KvConfig
from nameserver.leaving_brokers import LeavingBrokers
from nameserver.metrics import NameserverMetrics
from nameserver.route_requests import RouteRequests
from nameserver.route_waiters import RouteWaiters
from telemetry.collector import QuietCollector
from telemetry.descriptors import DescriptorWatch
from telemetry.health import HealthServer
from telemetry.loop_lag import LoopLagMonitor
from telemetry.metrics import Registry
from telemetry.quotas import register_quotas

_log = logging.getLogger(__name__)


class NameServer:
    """One nameserver; serves from `start()` to `close()`.

    Attributes:
        registry: its metrics.
        table: its routes, for tests and views; only requests change it.
    """

    def __init__(self, config: NameServerConfig) -> None:
        self._config = config
        self.registry = Registry({"node_type": "nameserver"})
        self.table = RouteTable(
            wall_clock_ms(),
            delete_missing_topics=config.delete_topic_with_registration,
            max_members=config.max_brokers,
            max_topic_entries=config.max_topic_entries,
        )
        self._settings = LiveSettings(config, self._on_settings)
        self._lag = LoopLagMonitor(self.registry)
        self._descriptors = DescriptorWatch(self.registry)
        self._collector = QuietCollector()
        self._waiters = RouteWaiters(self.table.version, self._is_led, self._answer_held)
        self._leaving = LeavingBrokers(self.table, self._unregister_capacity, self._now_ms, self._left)
        self._notices: Notices | None = None
        self._config_requests: ConfigRequests | None = None
        self._broker_requests: BrokerRequests | None = None
        self._figures = NameserverMetrics(self.registry, self.table, lambda: len(self._waiters))
        self._health = HealthServer(self.registry.page, self._ready)
        self._quotas = Quotas(config.quotas)
        register_quotas(self.registry, self._quotas)
        self._server = RemotingServer(
            self,
            limits=config.limits,
            tls=config.tls.incoming(),
            takes_plain=config.tls.takes_plain,
            quotas=self._quotas,
        )
        self._authority = Authority(
            GUARDED,
            config.authority.secrets(),
            is_open=config.insecure_registration,
            server="nameserver",
            open_name="insecureRegistration",
        )
        self._handlers: Mapping[int, Handler] = {}
        self._seen_revision = self.table.revision
        self._is_changing = False
        self._started_s: float | None = None
        self._scan: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"{self._config.advertised_host}:{self._server.port}"

    @property
    def health_port(self) -> int:
        """The port of the health listener; 0 when it is not served."""
        return self._health.port

    async def start(self) -> None:
        """Read the KV configuration and listen.

        Raises:
            KvConfigError: its file cannot be read.
            OSError: the port cannot be bound.
            HealthListenError: the health port cannot be bound.
        """
        kv = KvConfig.load(self._config.kv_config_path)
        self._route_requests = RouteRequests(self.table, kv, self._present, self._age_s, self._waiters, self._is_led)
        self._config_requests = ConfigRequests(kv, self._settings)
        self._broker_requests = BrokerRequests(
            self.table, kv, self._present, self._now_ms, self._leaving, self._report_changes, self._figures.refusal
        )
        self._handlers = {
            **self._broker_requests.handlers,
            **self._route_requests.handlers,
            **self._config_requests.handlers,
        }
        self._notices = Notices(RemotingClient(tls=self._config.tls.outgoing()))
        self._lag.start()
        self._descriptors.start()
        try:
            await self._config.listener.open(self._server)
            await self._config.listener.open_health(self._health)
        except BaseException:
            await self.close()
            raise
        self._collector.begin()
        self._collector.skip_present()
        self._started_s = time.monotonic()
        self._schedule_scan()
        _log.info("nameserver listens at %s", self.address)

    async def close(self) -> None:
        """Answer the requests that wait and close every connection; does nothing when not started."""
        if self._scan is not None:
            self._scan.cancel()
        self._waiters.release_all()
        await self._server.close()
        if self._notices is not None:
            await self._notices.close()
        await self._health.close()
        if self._broker_requests is not None:
            await self._broker_requests.close()
        if self._config_requests is not None:
            await self._config_requests.close()
        self._lag.close()
        self._descriptors.close()
        self._collector.end()

    # ---- RequestHandler

    def on_connected(self, connection: Connection) -> None:
        """Do nothing: a client has no state before it registers."""

    def on_request(self, connection: Connection, command: Command) -> None:
        self._figures.request(command.code)
        handler = self._handlers.get(command.code)
        if handler is None:
            remark = f" request type {command.code} not supported"
            connection.respond(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        else:
            if command.code != RequestCode.UNREGISTER_BROKER:
                self._leaving.settle()
            self._answer(connection, command, handler)
            self._report_changes()

    def on_closed(self, connection: Connection) -> None:
        self._waiters.forget(connection)
        self._leaving.closed(connection)

    # ---- internals

    def _is_led(self, topic: str) -> bool:
        return not self.table.is_between_leaders(topic, self._now_ms())

    def _answer_held(self, connection: Connection, command: Command) -> None:
        self._answer(connection, command, self._route_requests.answer_route)

    def _answer(self, connection: Connection, command: Command, handler: Handler) -> None:
        try:
            if command.code != RequestCode.DELETE_TOPIC_IN_NAMESRV or self._has_topic(command.ext.get("topic", "")):
                self._authority.check(connection, command)
            if form := FORMS.get(command.code):
                form.check(command.ext)
            answer = handler(connection, command)
        except Refusal as refusal:
            _log.debug("%s %s: %s", connection.address, request_name(command.code), refusal.remark)
            self._figures.refusal(refusal.cause)
            connection.refuse(command, refusal)
            return
        if answer is not None:
            answer.send(connection, command)

    def _left(self, members: list[BrokerMember], is_closed: bool) -> None:
        if is_closed:
            self._log_dropped("connection closed", members)
        for member in () if is_closed else members:
            _log.info("broker %s at %s unregistered", member.registration.broker_name, member.address)
        self._report_changes()

    def _report_changes(self) -> None:
        """Report changes of the tables: to clients that wait, and to brokers whose smallest id has changed."""
        for change in self.table.take_min_changes():
            if self._notices is not None and self._present().notify_min_broker_id:
                notice = Command(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, ext=change.fields())
                for address in change.recipients:
                    self._notices.send(address, notice, change.broker_name)
        if self.table.revision != self._seen_revision:
            self._seen_revision = self.table.revision
            self._waiters.wake()
        self._change_soon()

    def _change_soon(self) -> None:
        """Finish changes of many topics in some at a time, so that others are served meanwhile."""
        if self.table.topics.is_changing and not self._is_changing:
            self._is_changing = True
            asyncio.get_running_loop().call_soon(self._change_some)

    def _change_some(self) -> None:
        self._is_changing = False
        self.table.topics.change_some()
        if self.table.topics.is_changing:
            self._change_soon()
        else:
            self._report_changes()  # clients may wait for a topic that none of the steps before has changed

    def _schedule_scan(self) -> None:
        delay_s = self._present().scan_interval_ms / 1000
        self._scan = asyncio.get_running_loop().call_later(delay_s, self._drop_silent)

    def _drop_silent(self) -> None:
        self._schedule_scan()
        silent = self.table.expire(self._now_ms())
        self._log_dropped("silent", silent)
        for member in silent:
            if isinstance(member.registration.connection, Connection):
                member.registration.connection.close("silent for too long")
        self._report_changes()

    def _log_dropped(self, reason: str, members: list[BrokerMember]) -> None:
        for member in members:
            claim = member.registration
            _log.warning(
                "broker %s id %d at %s is no longer registered: %s",
                claim.broker_name,
                claim.broker_id,
                claim.address,
                reason,
            )

    def _on_settings(self, config: NameServerConfig) -> None:
        self.table.delete_missing_topics = config.delete_topic_with_registration
        self._quotas.set(config.quotas)
        if self._scan is not None:
            self._scan.cancel()
            self._schedule_scan()

    def _present(self) -> NameServerConfig:
        return self._settings.config

    def _unregister_capacity(self) -> int:
        return self._present().unregister_queue_capacity

    def _now_ms(self) -> int:
        return int((time.monotonic() - self._lag.stalled_s) * 1000)

    def _has_topic(self, topic: str) -> bool:
        """Return whether a topic is known.

        Deleting an unknown topic changes nothing, so everybody may ask for it: tools do, after the leader has taken the
        topic out of its registration.
        """
        return bool(self.table.topics.queues(topic))

    def _age_s(self) -> float:
        return 0.0 if self._started_s is None else time.monotonic() - self._started_s

    def _ready(self) -> tuple[bool, str]:
        if self._started_s is None:
            return False, "starting"
        return True, f"{len(list(self.table.groups))} broker names, {len(self.table.topics)} topics"
