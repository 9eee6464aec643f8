"""The controller process: one listener for brokers and tools, one member of the quorum, health beside them.

frame -> signature, form of the header -> handler by code -> answer, at once or when the controllers have agreed
connection closed, silence -> broker dead -> its name gets a new master, if it was one
"""

import asyncio
import logging
import signal
import time
from collections.abc import Mapping
from typing import Final

from ha.controller.answers import role_notice
from ha.controller.config import ControllerConfig
from ha.controller.core.live import LiveBrokers
from ha.controller.core.machine import ControllerMachine
from ha.controller.core.model import Group
from ha.controller.header_forms import FORMS
from ha.controller.leadership import ControllerLeadership
from ha.controller.metrics import ControllerMetrics
from ha.controller.quorum.quorum import Quorum, QuorumSettings, not_leading
from ha.controller.requests import GUARDED, ControllerRequests, Quick, Slow
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import ResponseCode, request_name
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.proof import read_secrets
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.server import RemotingServer
from ledgermq.remoting.serving.authority import Authority
from ledgermq.remoting.serving.live_settings import LiveSettings
from ledgermq.remoting.serving.notices import Notices
from ledgermq.remoting.signature import Credentials, as_secret_key
from telemetry.collector import QuietCollector
from telemetry.descriptors import DescriptorWatch
from telemetry.health import HealthServer
from telemetry.loop_lag import LoopLagMonitor
from telemetry.metrics import Registry

_SLOW_MAX: Final = 1024
_TICK_MAX_S: Final = 5.0
_LOOPBACK: Final = "127.0.0.1"
_log: Final = logging.getLogger(__name__)


class Controller:
    """One controller; serves from `start()` to `close()`.

    Attributes:
        registry: the metrics.
        quorum: this member of the controllers' agreement.
        machine: the agreed state; only the quorum changes it.
    """

    def __init__(self, config: ControllerConfig) -> None:
        self._config = config
        known = config.authority.secrets()
        self._authority = Authority(
            GUARDED,
            known,
            is_open=config.insecure,
            server="controller",
            open_name="insecureController",
        )
        self._credentials = Credentials("controller", as_secret_key(known[0])) if known else None
        self.registry = Registry({"node_type": "controller", "node_id": config.self_id})
        self.machine = ControllerMachine()
        self.quorum = Quorum(_quorum_settings(config), self.machine, self._quorum_changed)
        self._live = LiveBrokers()
        self._settings = LiveSettings(config, self._on_settings)
        self._lag = LoopLagMonitor(self.registry)
        self._descriptors = DescriptorWatch(self.registry)
        self._collector = QuietCollector()
        self._leadership = ControllerLeadership(
            self.quorum, self.machine, self._live, config.lease_ms / 1000, self._now_ms, self._present, self._elected
        )
        self._figures = ControllerMetrics(self.registry, self.quorum, self.machine, self._live, self._leadership.counts)
        self._health = HealthServer(self.registry.page, self._ready, self._is_live)
        self._server = RemotingServer(
            self, limits=config.limits, tls=config.tls.incoming(), takes_plain=config.tls.takes_plain
        )
        requests = ControllerRequests(
            self.quorum, self.machine, self._live, self._leadership, self._settings, self._now_ms
        )
        self._quick: Mapping[int, Quick] = requests.quick
        self._slow: Mapping[int, Slow] = requests.slow
        self._tasks: set[asyncio.Task[None]] = set()
        self._notices: Notices | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._is_started = False

    @property
    def health_port(self) -> int:
        """The health listener's port; 0 when it is not served."""
        return self._health.port

    async def start(self) -> None:
        """Take part in the quorum, listen; returns before a leader is known.

        Raises:
            QuorumError: the folder or the controllers' port cannot be used.
            StoreError: the folder belongs to another process.
            OSError: the port cannot be bound.
            HealthListenError: the health port cannot be bound.
        """
        self._notices = Notices(RemotingClient(tls=self._config.tls.outgoing(), credentials=self._credentials))
        self._lag.start()
        self._descriptors.start()
        try:
            self.quorum.start()
            await self._config.listener.open(self._server)
            await self._config.listener.open_health(self._health)
        except BaseException:
            await self.close()
            raise
        self._collector.begin()
        self._is_started = True
        self._schedule()
        _log.info("controller %s listens at %s", self._config.self_id, self._config.address)

    async def close(self) -> None:
        """Answer waiting requests, close every connection, leave the quorum.

        Raises:
            QuorumError: the quorum failed while it ran, so that the process ends.
        """
        for timer in self._timers:
            timer.cancel()
        await self._leadership.close()
        await self.quorum.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.close()
        if self._notices is not None:
            await self._notices.close()
        await self._health.close()
        self._lag.close()
        self._descriptors.close()
        self._collector.end()
        if self.quorum.failure is not None:
            raise self.quorum.failure

    # ---- RequestHandler

    def on_connected(self, connection: Connection) -> None:
        """Do nothing: a client has no state before its first heartbeat."""

    def on_request(self, connection: Connection, command: Command) -> None:
        self._figures.request(command.code)
        try:
            self._authority.check(connection, command)
            if form := FORMS.get(command.code):
                form.check(command.ext)
            quick, slow = self._quick.get(command.code), self._slow.get(command.code)
            if quick is not None:
                quick(connection, command).send(connection, command)
            elif slow is not None:
                self._answer_later(connection, command, slow)
            else:
                remark = f" request type {command.code} not supported"
                connection.respond(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        except Refusal as refusal:
            self._refuse(connection, command, refusal)

    def on_closed(self, connection: Connection) -> None:
        for beat in self._live.closed(connection):
            _log.warning("broker %s id %d is dead: its connection closed", beat.name, beat.broker_id)
            self._leadership.lost(beat)

    # ---- requests

    def _answer_later(self, connection: Connection, command: Command, handler: Slow) -> None:
        if not self._leadership.leads:
            raise not_leading()
        if len(self._tasks) >= _SLOW_MAX:
            raise Refusal(Cause.BUSY, f"{len(self._tasks)} requests wait for the controllers to agree")
        task = asyncio.get_running_loop().create_task(self._serve(connection, command, handler))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: Connection, command: Command, handler: Slow) -> None:
        try:
            answer = await handler(connection, command)
        except Refusal as refusal:
            self._refuse(connection, command, refusal)
        except Exception as error:
            connection.fail(command, error)
        else:
            answer.send(connection, command)

    def _refuse(self, connection: Connection, command: Command, refusal: Refusal) -> None:
        _log.debug("%s %s: %s", connection.address, request_name(command.code), refusal.remark)
        self._figures.refusal(refusal.cause)
        connection.refuse(command, refusal)

    # ---- brokers and masters

    def _quorum_changed(self) -> None:
        if self.quorum.failure is not None:
            signal.raise_signal(signal.SIGTERM)  # `close` raises the error
            return
        status = self.quorum.status
        _log.info("controllers: %s leads, term %d", status.leader_id or "nobody", status.term)
        self._leadership.changed()

    def _elected(self, group: Group) -> None:
        if self._notices is not None and self._present().notify:
            for broker_id in self._live.alive(group.name, group.replicas, self._now_ms()):
                self._notices.send(group.replicas[broker_id].address, role_notice(group), group.name)

    def _schedule(self) -> None:
        loop, present = asyncio.get_running_loop(), self._present()
        self._timers = [
            loop.call_later(present.scan_interval_ms / 1000, self._drop_silent),
            loop.call_later(present.scan_master_interval_ms / 1000, self._look_at_masters),
        ]

    def _drop_silent(self) -> None:
        self._timers[0] = asyncio.get_running_loop().call_later(
            self._present().scan_interval_ms / 1000, self._drop_silent
        )
        for beat, connection in self._live.expire(self._now_ms()):
            _log.warning("broker %s id %d is dead: silent for %d ms", beat.name, beat.broker_id, beat.silence_ms)
            if isinstance(connection, Connection):
                connection.close("silent for too long")
            self._leadership.lost(beat)

    def _look_at_masters(self) -> None:
        self._timers[1] = asyncio.get_running_loop().call_later(
            self._present().scan_master_interval_ms / 1000, self._look_at_masters
        )
        self._leadership.check_masters()

    def _on_settings(self, config: ControllerConfig) -> None:
        for timer in self._timers:
            timer.cancel()
        self._schedule()

    # ---- state of this process

    def _present(self) -> ControllerConfig:
        return self._settings.config

    def _now_ms(self) -> int:
        return int((time.monotonic() - self._lag.stalled_s) * 1000)

    def _ready(self) -> tuple[bool, str]:
        status = self.quorum.status
        if not self._is_started or status.leader_id is None:
            return False, "no leader is known" if self._is_started else "starting"
        if status.is_leader and not self._leadership.leads:
            return False, "leads, and waits for the others to confirm it"
        word = "leads" if status.is_leader else f"follows {status.leader_id}"
        return True, f"{word}, term {status.term}, {len(self.machine.groups)} broker names"

    def _is_live(self) -> tuple[bool, str]:
        silent_s = time.monotonic() - self.quorum.status.ticked_s
        if self._is_started and silent_s > _TICK_MAX_S:
            return False, f"the quorum's thread has been silent for {silent_s:.0f} s"
        return True, "the event loop and the quorum turn"


def _quorum_settings(config: ControllerConfig) -> QuorumSettings:
    """Return the quorum's settings; reads the secret.

    Raises:
        SecretFileError: it cannot be used.
    """
    assert config.secret_file is not None  # see `ControllerConfig.problems`
    return QuorumSettings(
        members=config.quorum_members,
        self_id=config.self_id,
        bind_host=_LOOPBACK if config.is_local else config.listener.host,
        folder=config.store_path / f"quorum-{config.self_id}",
        secrets=read_secrets(config.secret_file),
        election_timeout_s=config.election_timeout_ms / 1000,
    )
