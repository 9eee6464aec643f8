"""Configuration of a broker whose master is elected by controllers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ha.config import MasterConfig, MemberConfig
from ledgermq.remoting.addresses import split_address
from ledgermq.remoting.config_key import BOOL, INT, POSITIVE_LONG, WORDS, key
from ledgermq.remoting.errors import ConnectError


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectedKeys:
    """Election of masters by controllers."""

    ORIGIN: ClassVar[str] = "BrokerConfig"

    enable: bool = key(
        "enableControllerMode",
        BOOL,
        False,
        "Let controllers elect the master of this broker name.",
        note="brokerRole and brokerId have no effect then; a send is answered when the whole in-sync set has it.",
    )
    controllers: tuple[str, ...] = key(
        "controllerAddr",
        WORDS,
        (),
        "Addresses of the controllers, divided by semicolons.",
        note="Under RocketMQ's controllers this broker follows RocketMQ's masters as a learner, and never leads.",
    )
    silence_ms: int = key(
        "controllerHeartBeatTimeoutMills",
        POSITIVE_LONG,
        3000,
        "Silence in ms after which a controller drops this broker.",
        upstream="10000",
    )
    priority: int = key(
        "brokerElectionPriority",
        INT,
        2147483647,
        "Preference of this broker when a controller elects a master; smaller wins.",
    )
    poll_ms: int = key(
        "syncBrokerMetadataPeriod",
        POSITIVE_LONG,
        5000,
        "Time in ms between two questions to the controllers; a broker also asks at once after a notice of a change.",
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield `(key, sentence)` of each relation between values that does not hold in controller mode."""
        if not self.controllers:
            yield "controllerAddr", "is needed: enableControllerMode=true"
        for address in self.controllers:
            try:
                split_address(address)
            except ConnectError:
                yield "controllerAddr", f"{address!r} is not host:port"

    def member_config(self, master: MasterConfig, ha_host: str, root: Path, *, follows_rocketmq: bool) -> MemberConfig:
        """Return the settings of a replica that slaves reach at `ha_host`; `root` is its store. See `MemberConfig`."""
        return MemberConfig(
            master=master,
            ha_host=ha_host,
            root=root,
            controllers=self.controllers,
            silence_ms=self.silence_ms,
            priority=self.priority,
            poll_s=self.poll_ms / 1000,
            follows_rocketmq=follows_rocketmq,
        )
