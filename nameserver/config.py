"""The configuration of a nameserver process: its address and its time limits. Nameservers share nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ledgermq.remoting.config_key import (
    BOOL,
    NOT_NEGATIVE,
    OURS,
    PATH,
    POSITIVE,
    POSITIVE_LONG,
    TEXT,
    WORDS,
    key,
    section,
)
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.quotas import AddressQuotas
from ledgermq.remoting.serving.authority import AuthorityKeys
from ledgermq.remoting.serving.listener import ListenerKeys
from ledgermq.remoting.tls_settings import TlsSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """The configuration of a nameserver. Times are in milliseconds."""

    ORIGIN: ClassVar[str] = "NamesrvConfig"

    listener: ListenerKeys = section(ListenerKeys)
    advertised_host: str = key(
        "advertisedHost",
        TEXT,
        "127.0.0.1",
        "Host under which this nameserver is shown to the user.",
        shown="<an address of this machine>",
        origin=OURS,
    )
    kv_config_path: Path = key(
        "kvConfigPath",
        PATH,
        Path.home() / "namesrv" / "kvConfig.json",
        "File of the KV configuration.",
        shown="<home folder/namesrv/kvConfig.json>",
    )
    scan_interval_ms: int = key(
        "scanNotActiveBrokerInterval",
        POSITIVE_LONG,
        5000,
        "Time in ms between two looks for silent brokers.",
        live=True,
    )
    default_heartbeat_timeout_ms: int = key(
        "brokerHeartbeatTimeout",
        POSITIVE,
        120_000,
        "Silence in ms after which a broker is dropped that did not say its own time.",
        origin=OURS,
        live=True,
    )
    max_route_wait_ms: int = key(
        "maxRouteWait",
        NOT_NEGATIVE,
        30_000,
        "Longest time in ms for which a client may wait for a change of a route.",
        origin=OURS,
        live=True,
    )
    order_message_enable: bool = key(
        "orderMessageEnable", BOOL, False, "Put the KV entry of an ordered topic into its route.", live=True
    )
    return_order_topic_config: bool = key(
        "returnOrderTopicConfigToBroker",
        BOOL,
        True,
        "Answer registrations with the KV entries of ordered topics.",
        live=True,
    )
    support_acting_master: bool = key(
        "supportActingMaster", BOOL, False, "Show the smallest id as master while a broker name has none.", live=True
    )
    notify_min_broker_id: bool = key(
        "notifyMinBrokerIdChanged",
        BOOL,
        False,
        "Tell the members of a broker name when the smallest id among them changes.",
        live=True,
    )
    spread_sends: bool = key(
        "spreadSends",
        BOOL,
        True,
        "Send RocketMQ's producers to the followers of a group that elects, which pass sends on, so that a leader's "
        "death does not stop them.",
        origin=OURS,
        live=True,
    )
    spread_sends_after_ms: int = key(
        "spreadSendsAfter",
        NOT_NEGATIVE,
        10_000,
        "Time in ms after a client's first request for a route from which on the answers name followers for producers, "
        "which ask again and again; tools are done by then. Go's clients are told at once.",
        origin=OURS,
        live=True,
    )
    unregister_queue_capacity: int = key(
        "unRegisterBrokerQueueCapacity",
        POSITIVE,
        3000,
        "Waiting removals of brokers before the nameserver refuses more.",
        live=True,
    )
    delete_topic_with_registration: bool = key(
        "deleteTopicWithBrokerRegistration",
        BOOL,
        False,
        "A master's registration removes the topics that it does not name.",
        live=True,
    )
    wait_for_service: bool = key(
        "needWaitForService",
        BOOL,
        False,
        "Refuse routes for a while after the start, until brokers have registered.",
        live=True,
    )
    wait_for_service_seconds: int = key(
        "waitSecondsForService", POSITIVE, 45, "Seconds for which needWaitForService refuses routes.", live=True
    )
    topic_list_enable: bool = key(
        "enableTopicList", BOOL, True, "Answer requests for topics by cluster and unit.", live=True
    )
    all_topic_list_enable: bool = key("enableAllTopicList", BOOL, True, "Answer the request for all topics.", live=True)
    max_registration_size_bytes: int = key(
        "maxRegistrationSize",
        POSITIVE,
        16 << 20,
        "Most bytes of a broker's registration once it is inflated.",
        origin=OURS,
    )
    authority: AuthorityKeys = section(AuthorityKeys)
    insecure_registration: bool = key(
        "insecureRegistration",
        BOOL,
        False,
        "Let everybody register brokers and change routes and settings, as RocketMQ's nameserver does.",
        origin=OURS,
    )
    max_brokers: int = key(
        "maxBrokers", POSITIVE, 10_000, "Most registered broker processes; one more is refused.", origin=OURS
    )
    max_topic_entries: int = key(
        "maxTopicEntries",
        POSITIVE,
        1_000_000,
        "Most topics, each counted once for every broker name that has it; a registration beyond it is refused.",
        origin=OURS,
    )
    limits: Limits = section(Limits)
    quotas: AddressQuotas = section(AddressQuotas)
    tls: TlsSettings = section(TlsSettings)
    config_black_list: tuple[str, ...] = key(
        "configBlackList",
        WORDS,
        ("configBlackList", "configStorePath", "kvConfigPath"),
        "Keys that may not be changed at run time.",
    )

    notices: tuple[str, ...] = ()
    """Lines that the process logs once at its start: addresses chosen, keys without effect."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Every known key under RocketMQ's name with its value, as text: shown and changed by requests 318 and 319."""

    def problems(self) -> list[tuple[str, str]]:
        """Return `(key, sentence)` for each relation between values that does not hold; empty if all do."""
        return [*self.listener.problems(), *self.tls.problems()]
