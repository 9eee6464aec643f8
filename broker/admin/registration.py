"""Registers this broker with the nameservers: its name, id and topics.

    role or topics change --announce--> one link per nameserver: register at once (103), again after a failure
                                        '- otherwise a heartbeat (322) every few seconds

Each link sends the state of that moment, so announcements that arrive while a request is under way are joined. A
LedgerMQ nameserver that has a whole registration gets only the topics that changed, any other nameserver all of them.
The heartbeat is RocketMQ's question whether its nameserver has this state; if it has not (a restart, a dropped broker),
the broker registers again. The connection stays open: when it closes, the nameserver drops this broker at once.

Source: apache/rocketmq `broker/.../out/BrokerOuterAPI.java` (registerBrokerAll, sendHeartbeatViaDataVersion), and
LedgerMQ's fields `term`, `confirmOffset`, `increment`, `removedTopics`; the first two let a nameserver refuse a
deposed leader, the last one takes topics out of routes that only whoever has the nameservers' secret may change.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from broker.admin.registration_bodies import RegistrationBodies
from broker.config import BrokerConfig
from broker.identity import BrokerIdentity
from broker.role import Role
from broker.state.settings import TopicConfig
from ledgermq.message.crc import crc32
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.data_version import DataVersion
from ledgermq.remoting.codec.java_json import dumps
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.proof import read_secrets
from ledgermq.remoting.signature import CHALLENGE, ChallengedSigner, Credentials, as_secret_key

log = logging.getLogger(__name__)

Describe = Callable[[], "Announcement"]

_RETRY_SECONDS = 1.0
_ANNOUNCE_SECONDS = 1.0
_UNREGISTER_SECONDS = 0.5
_CRC_MASK = 0x7FFFFFFF
_CHANGED_MAX = 500
"""Largest number of changed topics that are sent as an increment; with more, all topics are sent."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """The state of this broker for nameservers."""

    topics: Mapping[str, TopicConfig]
    version: DataVersion
    confirm_offset: int


class NameserverLinks:
    """The links to all nameservers.

    Args:
        address: `host:port` to which clients connect.
        describe: returns the present state.
        ha_address: `host:port` at which this broker listens for slaves; empty if it does not.
        on_master: called with the addresses at which the master of the name serves clients and listens for slaves
            (empty: nowhere), whenever a nameserver answers with them; returns whether the slave now knows all that it
            needs of its master.

    Raises:
        SecretFileError: the file of the nameservers' secret cannot be used.
    """

    def __init__(
        self,
        config: BrokerConfig,
        address: str,
        role: Role,
        client: RemotingClient,
        describe: Describe,
        ha_address: str = "",
        on_master: Callable[[str, str], bool] = lambda _address, _ha_address: True,
    ) -> None:
        self._config = config
        self._identity = identity = BrokerIdentity(config)
        self._address = address
        self._ha_address = ha_address
        self._on_master = on_master
        self._has_master = False
        self._role = role
        self._client = client
        self._describe = describe
        self._revision = 0
        self._credentials = broker_credentials(config.namesrv_secret_file)
        self._bodies = RegistrationBodies(lambda: identity.permission)
        self._links = [_Link(self, namesrv) for namesrv in config.namesrv_addrs]

    def start(self) -> None:
        """Register, and keep the registration up to date."""
        self.announce_soon()
        for link in self._links:
            link.start()

    def announce_soon(self, changed: Collection[str] | None = None) -> None:
        """Note that these topics changed (None: anything may have), and register everywhere without waiting."""
        self._revision += 1
        for link in self._links:
            link.request(changed)

    async def announce(self) -> None:
        """Register at all nameservers; return when those that answer have the present state, or after a second."""
        revision = self._revision
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ANNOUNCE_SECONDS):
                await asyncio.gather(*(link.reached(revision) for link in self._links))

    async def close(self) -> None:
        """Stop, and unregister this broker."""
        await asyncio.gather(*(link.close() for link in self._links))

    @property
    def registered_count(self) -> int:
        """Number of nameservers that have the present state."""
        return sum(link.confirmed_revision >= self._revision for link in self._links)

    # ---- what a link sends

    def identity(self) -> dict[str, str]:
        """Return the fields of every request to a nameserver."""
        return {
            "brokerAddr": self._address,
            "brokerId": str(self._role.broker_id),
            **self._identity.fields,
        }

    async def register_command(self, changed: Collection[str] = ()) -> Command:
        """Return a 103 with those topics that changed or do not exist any more, or with all if the set is empty."""
        now = self._describe()
        is_increment = bool(changed)
        removed = sorted(set(changed).difference(now.topics))
        fields = self.identity() | {
            "compressed": "false",
            "enableActingMaster": str(self._config.slave_acting).lower(),
            "haServerAddr": self._ha_address,
            "heartbeatTimeoutMillis": str(self._config.namesrv_heartbeat_timeout_ms),
            "confirmOffset": str(now.confirm_offset),
            "increment": str(is_increment).lower(),
        }
        if removed:
            fields["removedTopics"] = ";".join(removed)
        if self._role.generation:
            fields["term"] = str(self._role.generation)
        if is_increment:
            body = self._bodies.of_changed(now.topics, sorted(set(changed).difference(removed)), now.version)
        else:
            body = await self._bodies.whole(now.topics, now.version)
        fields["bodyCrc32"] = str(crc32(body) & _CRC_MASK)
        return Command(RequestCode.REGISTER_BROKER, ext=fields, body=body)

    def heartbeat_command(self) -> Command:
        """Return a 322, which asks whether the nameserver has this state."""
        return Command(
            RequestCode.QUERY_DATA_VERSION, ext=self.identity(), body=dumps(self._describe().version.to_json())
        )

    def take_master_from(self, answer: Command) -> None:
        """Report the addresses of the master that a nameserver's answer to a registration has, if it has any."""
        address = answer.ext.get("masterAddr", "")
        if address or self._has_master:
            self._has_master = self._on_master(address, answer.ext.get("haServerAddr", ""))

    def connected(self, namesrv: str) -> Connection | None:
        """Return the open connection to a nameserver; None without one."""
        return self._client.connected(namesrv)

    async def ask(self, namesrv: str, command: Command, timeout_s: float | None = None) -> Command:
        """Return the nameserver's answer, whatever its code.

        Raises:
            RemotingError: there is none in time.
        """
        timeout = self._config.register_timeout_ms / 1000 if timeout_s is None else timeout_s
        return await self._client.request(namesrv, command, timeout)

    async def signer(self, namesrv: str) -> ChallengedSigner | None:
        """Return the signer of requests on the connection to that nameserver.

        None if the nameserver asks for no signature, or this broker has no secret.

        Raises:
            RemotingError: there is no answer in time.
        """
        if self._credentials is None:
            return None
        challenge = (await self.ask(namesrv, self.heartbeat_command())).ext.get(CHALLENGE)
        return ChallengedSigner(self._credentials, challenge) if challenge else None

    @property
    def heartbeat_seconds(self) -> float:
        """Seconds between two heartbeats."""
        return self._config.namesrv_heartbeat_interval_ms / 1000

    @property
    def register_seconds(self) -> float:
        """Seconds between two whole registrations; as between heartbeats until a slave knows its master."""
        if self._role.is_slave and not self._has_master:
            return self.heartbeat_seconds
        return self._config.register_interval_ms / 1000

    @property
    def revision(self) -> int:
        """Number of the newest announcement."""
        return self._revision


class _Link:
    """The link to one nameserver. `confirmed_revision` is the number of the newest announcement that it has confirmed.

    The changes to send are kept until the nameserver has confirmed them: names of topics, or None for everything.
    """

    def __init__(self, owner: NameserverLinks, namesrv: str) -> None:
        self._owner = owner
        self._namesrv = namesrv
        self._task: asyncio.Task[None] | None = None
        self._confirmed = asyncio.Event()
        self._requested = asyncio.Event()
        self._changed: set[str] | None = None
        self._known_over: Connection | None = None
        self._takes_increments = False
        self._signer: ChallengedSigner | None = None
        self._signs_over: Connection | None = None
        self.confirmed_revision = 0
        self._failure = ""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"register at {self._namesrv}")

    def request(self, changed: Collection[str] | None) -> None:
        """Add topics to the changes to send; None: everything may have changed."""
        if changed is None:
            self._changed = None
        elif self._changed is not None:
            self._changed.update(changed)
        self._requested.set()

    async def reached(self, revision: int) -> None:
        """Wait until the nameserver has confirmed that announcement or a later one."""
        while self.confirmed_revision < revision:
            self._confirmed.clear()
            await self._confirmed.wait()

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
            if self._requested.is_set() or loop.time() >= register_at or not self._is_known:
                self._requested.clear()
                is_registered = await self._register(is_due=loop.time() >= register_at)
                register_at = loop.time() + self._owner.register_seconds if is_registered else 0.0
            elif not await self._beat():
                self._known_over = None
                continue
            else:
                is_registered = True
            pause = self._owner.heartbeat_seconds if is_registered else _RETRY_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._requested.wait()

    @property
    def _is_known(self) -> bool:
        """Whether it has confirmed a registration on the connection that is open now."""
        return self._known_over is not None and self._owner.connected(self._namesrv) is self._known_over

    async def _register(self, *, is_due: bool) -> bool:
        revision, changed = self._owner.revision, self._changed
        is_whole = is_due or changed is None or not (self._is_known and self._takes_increments)
        if is_whole or changed:
            self._changed = set()
            some = () if is_whole or changed is None or len(changed) > _CHANGED_MAX else changed
            answer = await self._ask(await self._owner.register_command(some))
            if answer is None:
                self._changed = self._known_over = None
                return False
            self._owner.take_master_from(answer)
            self._known_over = self._owner.connected(self._namesrv)
            self._takes_increments = answer.ext.get("takesIncrements") == "true"
        self.confirmed_revision = max(self.confirmed_revision, revision)
        self._confirmed.set()
        return True

    async def _beat(self) -> bool:
        answer = await self._ask(self._owner.heartbeat_command())
        return answer is not None and answer.ext.get("changed") == "false"

    async def _ask(self, command: Command, timeout_s: float | None = None) -> Command | None:
        """Return the answer if its code is success, else None; the reason is logged when it changes."""
        answer: Command | None = None
        try:
            await self._sign(command)
            answer = await self._owner.ask(self._namesrv, command, timeout_s)
            failure = "" if answer.code == ResponseCode.SUCCESS else f"{command.name} refused: {answer.remark}"
        except RemotingError as error:
            failure = str(error)
        if answer is not None and answer.code == ResponseCode.NO_PERMISSION:
            self._signs_over = None  # the nameserver may ask for a signature now
        if failure != self._failure:
            self._failure = failure
            log.log(
                logging.WARNING if failure else logging.INFO,
                "nameserver %s: %s",
                self._namesrv,
                failure or "answers again",
            )
        return None if failure else answer

    async def _sign(self, command: Command) -> None:
        """Sign the challenge that the nameserver drew for the connection that is open now, if there is one.

        Raises:
            RemotingError: the nameserver does not answer.
        """
        present = self._owner.connected(self._namesrv)
        if present is None or present is not self._signs_over:
            self._signer = await self._owner.signer(self._namesrv)
            self._signs_over = self._owner.connected(self._namesrv)
        if self._signer is not None:
            self._signer.sign(command)


def broker_credentials(secret_file: Path | None) -> Credentials | None:
    """Return the credentials that sign registrations and requests to controllers; None without a secret.

    Only the secret is checked; the name is for logs.

    Raises:
        SecretFileError: the file cannot be used.
    """
    return None if secret_file is None else Credentials("broker", as_secret_key(read_secrets(secret_file)[0]))
