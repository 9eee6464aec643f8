"""Keeps the nameservers told: who this broker is, under which id, with which topics.

    role or topics change --announce--> one link per nameserver: register at once (103), again after a failure
                                                 '- otherwise a heartbeat (904) every few seconds

Each link sends what is true at that moment, so announcements that come while one is on its way are joined. The
connection stays open: when it closes, the nameserver drops this broker at once.

Source: apache/rocketmq `broker/.../out/BrokerOuterAPI.java` (registerBrokerAll), and LedgerMQ's fields `term`,
`confirmOffset`, which let a nameserver refuse a deposed leader.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from broker.config import BrokerConfig
from broker.role import Role
from ledgermq.message.crc import crc32
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import Command
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.java_json import dumps

log = logging.getLogger(__name__)

Describe = Callable[[], "Announcement"]

_RETRY_SECONDS = 1.0
_ANNOUNCE_SECONDS = 1.0
_UNREGISTER_SECONDS = 0.5
_CRC_MASK = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Announcement:
    """What is true of this broker now."""

    topics_body: bytes
    confirm_offset: int


class Registration:
    """All links to nameservers.

    Args:
        address: `host:port` that clients dial.
        describe: what is true now.
    """

    def __init__(
        self,
        config: BrokerConfig,
        address: str,
        role: Role,
        client: RemotingClient,
        describe: Describe,
    ) -> None:
        self._config = config
        self._address = address
        self._role = role
        self._client = client
        self._describe = describe
        self._revision = 0
        self._links = [_Link(self, namesrv) for namesrv in config.namesrv_addrs]

    def start(self) -> None:
        """Register, and go on doing so."""
        self.announce_soon()
        for link in self._links:
            link.start()

    def announce_soon(self) -> None:
        """Something changed: tell all nameservers, without waiting."""
        self._revision += 1
        for link in self._links:
            link.wanted.set()

    async def announce(self) -> None:
        """Tell all nameservers; returns when those that answer know, or after a second."""
        self.announce_soon()
        revision = self._revision
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ANNOUNCE_SECONDS):
                await asyncio.gather(*(link.reached(revision) for link in self._links))

    async def close(self) -> None:
        """Stop, and take this broker out of the routes."""
        await asyncio.gather(*(link.close() for link in self._links))

    @property
    def registered_count(self) -> int:
        """Nameservers that know the present state."""
        return sum(link.told >= self._revision for link in self._links)

    # ---- what a link sends

    def identity(self) -> dict[str, str]:
        """The fields that every request to a nameserver has."""
        return {
            "brokerAddr": self._address,
            "brokerId": str(self._role.broker_id),
            "brokerName": self._config.broker_name,
            "clusterName": self._config.cluster_name,
        }

    def register_command(self) -> Command:
        """103, with everything."""
        now = self._describe()
        port = int(self._address.rpartition(":")[2])
        fields = self.identity() | {
            "bodyCrc32": str(crc32(now.topics_body) & _CRC_MASK),
            "compressed": "false",
            "enableActingMaster": "false",
            "haServerAddr": f"{self._config.inside_host}:{port + 1}",
            "heartbeatTimeoutMillis": str(self._config.namesrv_heartbeat_timeout_ms),
            "confirmOffset": str(now.confirm_offset),
        }
        if self._role.generation:
            fields["term"] = str(self._role.generation)
        return Command(RequestCode.REGISTER_BROKER, ext=fields, body=now.topics_body)

    def heartbeat_command(self) -> Command:
        """904: still here, as before."""
        fields = self.identity() | {"heartbeatTimeoutMills": str(self._config.namesrv_heartbeat_timeout_ms)}
        return Command(RequestCode.BROKER_HEARTBEAT, ext=fields)

    async def ask(self, namesrv: str, command: Command, timeout_s: float | None = None) -> Command:
        """The nameserver's answer, whatever its code.

        Raises:
            RemotingError: there is none in time.
        """
        timeout = self._config.register_timeout_ms / 1000 if timeout_s is None else timeout_s
        return await self._client.request(namesrv, command, timeout)

    @property
    def heartbeat_seconds(self) -> float:
        """Time between two signs of life."""
        return self._config.namesrv_heartbeat_interval_ms / 1000

    @property
    def register_seconds(self) -> float:
        """Time between two whole registrations without a reason."""
        return self._config.register_interval_ms / 1000

    @property
    def revision(self) -> int:
        """Number of the newest announcement."""
        return self._revision


class _Link:
    """One nameserver. `told` is the newest announcement it has confirmed."""

    def __init__(self, owner: Registration, namesrv: str) -> None:
        self._owner = owner
        self._namesrv = namesrv
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self.wanted = asyncio.Event()
        self.told = 0
        self._trouble = ""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"register at {self._namesrv}")

    async def reached(self, revision: int) -> None:
        """Returns when the nameserver knows that announcement or a later one."""
        while self.told < revision:
            self._news.clear()
            await self._news.wait()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._ask(Command(RequestCode.UNREGISTER_BROKER, ext=self._owner.identity()), _UNREGISTER_SECONDS)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        register_at = 0.0
        while True:
            if self.wanted.is_set() or loop.time() >= register_at:
                self.wanted.clear()
                is_told = await self._register()
                register_at = loop.time() + self._owner.register_seconds
            else:
                is_told = await self._beat()
            if not is_told:
                register_at = 0.0
            pause = self._owner.heartbeat_seconds if is_told else _RETRY_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.wanted.wait()

    async def _register(self) -> bool:
        revision = self._owner.revision
        if not await self._ask(self._owner.register_command()):
            return False
        self.told = max(self.told, revision)
        self._news.set()
        return True

    async def _beat(self) -> bool:
        return await self._ask(self._owner.heartbeat_command())

    async def _ask(self, command: Command, timeout_s: float | None = None) -> bool:
        """Whether it was done; why not is logged once, not at every try."""
        try:
            answer = await self._owner.ask(self._namesrv, command, timeout_s)
            trouble = "" if answer.code == ResponseCode.SUCCESS else f"{command.name} refused: {answer.remark}"
        except RemotingError as error:
            trouble = str(error)
        if trouble != self._trouble:
            self._trouble = trouble
            log.log(
                logging.WARNING if trouble else logging.INFO,
                "nameserver %s: %s",
                self._namesrv,
                trouble or "well again",
            )
        return not trouble


def topics_body(topic_table: dict[str, object], version: dict[str, int]) -> bytes:
    """The body of a registration: all topics and their version."""
    wrapper = {
        "dataVersion": version,
        "mappingDataVersion": {"counter": 0, "stateVersion": version["stateVersion"], "timestamp": 0},
        "topicConfigTable": topic_table,
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    }
    return dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
