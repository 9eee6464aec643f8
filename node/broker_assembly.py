"""The assembly of a broker: the order in which its parts start and stop.

    health -> store (lock, recovery, tables, replay) -> listener -> registration -> timers
    offsets into the log, another leads -> routes gone -> held pulls answered -> listener closed -> tables, log closed

Both ways take well under three seconds, but for the recovery of a large log after a crash.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Callable, Collection

from broker.admin.live_config import Keep, LiveConfig
from broker.admin.master_tables import POLL_SECONDS, MasterTables
from broker.admin.registration import NameserverLinks, broker_credentials
from broker.config_kinds import MetricsExporter
from broker.delay.timer_files import CLEAN_SECONDS
from broker.identity import BrokerIdentity
from broker.log_follower import LogFollower
from broker.metrics.broker_metrics import flush_histogram, register_metrics
from broker.metrics.page import MetricsPage
from broker.parts import Parts
from broker.state.saver import StateSaver
from broker.subsystem import Serve
from broker.timers import Timers
from ledgermq.message.hosts import Host, encode_host
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.server import RemotingServer
from ledgermq.wall_clock import wall_clock_ms
from node.keys import BROKER_KEYS
from node.log_choice import open_store_of
from node.node_config import NodeConfig
from node.store_settings import peer_secrets, with_secrets
from store.opening import OpenStore
from telemetry.collector import QuietCollector
from telemetry.descriptors import DescriptorWatch
from telemetry.health import HealthServer
from telemetry.loop_lag import LoopLagMonitor
from telemetry.metrics import Registry
from telemetry.process import register_process_metrics

log = logging.getLogger(__name__)

_VIP_BELOW = 2

_DRAIN_SECONDS = 1.0


class Broker:
    """One broker; serves from `start()` to `close()`.

    Attributes:
        registry: its metrics.
    """

    def __init__(self, config: NodeConfig, keep_settings: Keep | None = None) -> None:
        """Take a configuration.

        Args:
            config: checked together here.
            keep_settings: keeps settings sent while the broker runs; None: they hold until the process ends.

        Raises:
            Refusal: INVALID_PARAMETER, values that contradict each other.
            TlsFileError: a certificate or key cannot be used.
        """
        if problems := config.problems():
            sentences = "; ".join(f"{name}: {problem}" for name, problem in problems)
            raise Refusal(Cause.INVALID_PARAMETER, sentences)
        self._node = config
        self._config = broker = config.broker
        identity = BrokerIdentity(broker)
        self._keep_settings = keep_settings or (lambda _: None)
        self.registry = Registry(
            {
                "cluster": identity.cluster,
                "broker": identity.name,
                "node": config.replica_label,
            }
        )
        register_process_metrics(self.registry)
        self._lag = LoopLagMonitor(self.registry)
        self._descriptors = DescriptorWatch(self.registry)
        self._health = HealthServer(self.metrics_page, self._ready, self._live)
        self._prometheus: HealthServer | None = None
        self._page: MetricsPage | None = None
        self._tls = broker.tls.incoming()
        self._client = RemotingClient(tls=broker.tls.outgoing())
        self._signing = RemotingClient(tls=broker.tls.outgoing(), credentials=broker.auth.inner_credentials)
        self._controllers = RemotingClient(
            tls=broker.tls.outgoing(), credentials=broker_credentials(broker.namesrv_secret_file)
        )
        self._listener = broker.listener
        self._vip_port = broker.listener.port_above(-_VIP_BELOW)
        self._address = ""
        self._open: OpenStore | None = None
        self._ha_address = ""
        self._follow: Callable[[str, str], bool] | None = None
        self._tables_at: Callable[[], str] = str
        self._follower: LogFollower | None = None
        self._parts: Parts | None = None
        self._registration: NameserverLinks | None = None
        self._server: RemotingServer | None = None
        self._vip_server: RemotingServer | None = None
        self._saver: StateSaver | None = None
        self._timers: Timers | None = None
        self._collector = QuietCollector()

    @property
    def address(self) -> str:
        """`host:port` that clients dial; known after `start`."""
        return self._address

    @property
    def metrics_port(self) -> int:
        """The port of RocketMQ's page; 0 when it is not served."""
        return self._prometheus.port if self._prometheus is not None else 0

    @property
    def health_port(self) -> int:
        """The health listener's port; 0 when it is not served."""
        return self._health.port

    @property
    def parts(self) -> Parts:
        """The parts; for tests and for views.

        Raises:
            Refusal: RECOVERING, before the log is recovered.
        """
        if self._parts is None:
            raise Refusal(Cause.RECOVERING, "the log is being recovered")
        return self._parts

    async def start(self) -> None:
        """Recover, listen, register. On an error, call `close` all the same.

        Raises:
            StoreError: the directory is locked, not ours, or the disk refuses.
            SecretFileError: a file of secrets cannot be used.
            OSError: a port is in use, or the advertised host has no address.
            HealthListenError: the health port is in use.
        """
        config = self._config
        self._collector.begin()
        self._timers = timers = Timers(asyncio.get_running_loop())
        self._lag.start()
        self._descriptors.start()
        await config.listener.open_health(self._health)
        self._listener = config.listener.with_port()
        advertised_port = config.public_port or self._listener.port
        self._address = f"{config.advertised_host}:{advertised_port}"
        store_host = encode_host(Host(await _resolve(config.advertised_host), advertised_port))
        config.auth = with_secrets(self._node)
        self._follower = follower = LogFollower(config, store_host, self, timers, flush_histogram(self.registry))
        chosen = await open_store_of(self._node, store_host, self._address, follower, self._controllers)
        self._open, self._follow, self._tables_at = chosen.store, chosen.follow, chosen.tables_at
        self._ha_address = "" if chosen.ha_port is None else f"{config.inside_host}:{chosen.ha_port}"
        self._parts, self._saver = follower.parts, follower.saver
        self._open.cleaner.holds.append(follower.needed_of_log)
        self._open.last_steps += [follower.close, self._saver.close]
        self._parts.context.forwarding.forward = self._client.request
        self._parts.context.nameservers.client = self._client
        self._parts.passing.open(
            config.tls.outgoing(), peer_secrets(self._node), trusts_all=self._node.raft.insecure_peers
        )
        secrets = peer_secrets(self._node)
        self._parts.acting.open(
            self._client,
            self._signing,
            secrets,
            self._address,
            self._ha_address,
            is_copying=chosen.is_copying,
            follows_rocketmq=self._node.polls_master,
        )
        await self._listen(chosen.ask_controllers)
        self._run_timers(timers)
        await self._serve_metrics()
        self._collector.skip_present()
        log.info(
            "%s serves at %s as broker id %d",
            self.parts.context.identity.name,
            self._address,
            self.parts.context.role.broker_id,
        )

    async def close(self) -> None:
        """Stop in order; quick, and harmless when not started or started in part."""
        if self._parts is not None:
            self._parts.stop()
            await self._hand_over(self._parts)
        if self._registration is not None:
            await self._registration.close()
        if self._parts is not None:
            self._parts.release()
            await self._parts.passing.finish()
        for server in (self._server, self._vip_server):
            if server is not None:
                await server.close()
        if self._timers is not None:
            await self._timers.close()
        await self._client.close()
        await self._signing.close()
        if self._parts is not None:
            await self._parts.passing.close()
        if self._open is not None:
            await self._open.close()
        await self._controllers.close()
        for pages in (self._prometheus, self._health):
            if pages is not None:
                await pages.close()
        self._lag.close()
        self._descriptors.close()
        self._collector.end()
        self._server = self._vip_server = None
        self._registration = self._timers = self._saver = self._open = self._follower = None

    # ---- start

    async def _listen(self, ask_controllers: Callable[[], None] | None) -> None:
        config, parts = self._config, self.parts
        limits = config.limits
        is_super = parts.auth.guard.is_super if parts.auth.guard.is_needed else None
        live = LiveConfig(config, BROKER_KEYS, self._keep_settings, self._on_changed, is_super)
        parts.handler.serve({RequestCode.UPDATE_BROKER_CONFIG: live.update})
        if ask_controllers is not None:
            parts.handler.serve({RequestCode.NOTIFY_BROKER_ROLE_CHANGED: _noticed(ask_controllers)})
        self._server = self._make_server(parts, limits)
        await self._listener.open(self._server)
        await self._listen_for_vip(parts, limits)
        self._registration = NameserverLinks(
            config,
            self._address,
            parts.context.role,
            self._client,
            parts.admin.describe,
            self._ha_address,
            self._on_master,
        )
        register_metrics(self.registry, parts, self._server, self._registration)
        self._registration.start()

    async def _listen_for_vip(self, parts: Parts, limits: Limits) -> None:
        """Listen at `listenPort - 2` for clients with `vipChannelEnabled`, unless another broker has that port."""
        if self._vip_port <= 0:
            return
        self._vip_server = self._make_server(parts, limits, beside=self._server)
        try:
            await self._listener.open(self._vip_server, -_VIP_BELOW)
        except OSError as error:
            log.warning("the VIP port (listenPort - 2) is not served: %s", error)
            self._vip_server = None

    async def _serve_metrics(self) -> None:
        """Serve the whole page of metrics from now on, and RocketMQ's own page if it is configured."""
        config = self._config
        self._page = page = MetricsPage(config, self.registry, self.parts, wall_clock_ms)
        if config.metrics_exporter is MetricsExporter.PROM:
            self._prometheus = HealthServer(page.rocketmq_page, self._ready)
            await self._prometheus.start(config.metrics_host or config.advertised_host, config.metrics_port)

    def metrics_page(self) -> AsyncIterator[bytes]:
        """Return the page of /metrics, piece by piece."""
        return self._page.whole() if self._page is not None else self.registry.page()

    def _make_server(self, parts: Parts, limits: Limits, beside: RemotingServer | None = None) -> RemotingServer:
        config = self._config
        listeners = 2 if self._vip_port > 0 else 1
        return RemotingServer(
            parts.handler,
            limits=limits,
            tls=self._tls,
            takes_plain=config.tls.takes_plain,
            listeners=listeners,
            quotas=parts.quotas,
            beside=beside,
        )

    def _run_timers(self, timers: Timers) -> None:
        parts, saver, config = self.parts, self._saver, self._config
        if self._node.polls_master:
            tables = MasterTables(parts.context.state, parts.take_over, timers.spawn, self._tables_at)
            tables.forward = self._client.request
            timers.every(POLL_SECONDS, tables.poll)
        for subsystem in parts.subsystems:
            for seconds, action in subsystem.periodic():
                timers.every(seconds, action)
        if self._follower is not None:
            files = self._follower.delivery_files
            timers.every(config.timer_flush_interval_ms / 1000, files.flush_index)
            timers.every(config.transaction_metrics_interval_ms / 1000, files.save_counts)
            timers.every(CLEAN_SECONDS, files.clean)
        timers.every(CLEAN_SECONDS, parts.leadership.refresh_marks)
        if saver is not None:
            timers.every(self._config.consumer_offset_persist_interval_ms / 1000, saver.save_soon)

    def _on_changed(self, keys: Collection[str]) -> None:
        self.parts.context.targets.forget()
        self.parts.quotas.set(self._config.address_quotas, self._config.user_quotas)
        if "brokerPermission" in keys:
            self.announce_soon()

    # ---- stop

    async def _hand_over(self, parts: Parts) -> None:
        """Write consumer offsets to the log, then hand leadership over while clients can still be redirected."""
        with contextlib.suppress(TimeoutError, Refusal):
            async with asyncio.timeout(_DRAIN_SECONDS):
                await parts.drain()
                if parts.context.role.writable:
                    parts.context.store.log.transfer(None)
                    await parts.leadership.deposed.wait()

    # ---- while it runs

    def _on_master(self, address: str, ha_address: str) -> bool:
        """Take over the master's addresses for clients and for slaves from a nameserver.

        Returns:
            Whether no further address is needed.
        """
        return self._follow is None or self._follow(ha_address, address)

    def announce_soon(self, changed: Collection[str] | None = None) -> None:
        """Register the present state at the nameservers, without waiting."""
        if self._registration is not None:
            self._registration.announce_soon(changed)

    async def announce(self) -> None:
        """Register the present state at the nameservers; return when those that answer have it, or after a second."""
        if self._registration is not None:
            await self._registration.announce()

    def _live(self) -> tuple[bool, str]:
        """Return whether the disk of the log works: its first failure is final for this process."""
        refusal = None if self._parts is None else self._parts.context.store.log.state.refusal
        if refusal is not None and refusal.cause is Cause.DISK_FAILED:
            return False, refusal.remark
        return True, "the event loop turns"

    def _ready(self) -> tuple[bool, str]:
        if self._parts is None or self._server is None:
            return False, "the log is being recovered"
        role, store = self._parts.context.role, self._parts.context.store
        of_log = store.log.readiness()
        if not of_log.is_ready:
            return of_log.is_ready, of_log.reason
        if store.dispatch_error is not None:
            return False, f"dispatch stands still: {store.dispatch_error}"
        if (full := store.why_full()) is not None:
            return False, f"no room for messages: {full}"
        if store.compaction is not None and (lacking := store.compaction.why_incomplete()) is not None:
            return False, lacking
        if not role.is_known and role.refusal is not None:
            return False, role.refusal.remark
        return True, f"{role.name}, term {role.generation}, confirmed up to {store.log.confirm_offset}"


def _noticed(ask_controllers: Callable[[], None]) -> Serve:
    """Return the function that serves 1008: the notice is not trusted, it only makes the broker ask the controllers."""

    def serve(connection: Connection, command: Command) -> None:
        ask_controllers()
        if not command.is_oneway:
            connection.respond(command, ResponseCode.SUCCESS)

    return serve


async def _resolve(host: str) -> str:
    """Return an address of the host, IPv4 if it has one, since records and message ids hold addresses."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host))
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])
