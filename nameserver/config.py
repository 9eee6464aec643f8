"""What one nameserver process is told. Nameservers share nothing, so there is little: where to listen, when to give up.

The names RocketMQ gives these settings are in `node.keys`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ledgermq.remoting.tls_settings import TlsSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """One nameserver. Times are milliseconds, ports 0 to 65535 (0: any free one, for tests)."""

    listen_host: str = "0.0.0.0"
    listen_port: int = 9876
    advertised_host: str = "127.0.0.1"
    """Host shown to the user; clients are told of nameservers by their own configuration."""
    health_host: str = "0.0.0.0"
    health_port: int | None = None
    """Port of /livez, /readyz, /metrics; None: not served."""

    kv_config_path: Path = field(default_factory=lambda: Path.home() / "namesrv" / "kvConfig.json")
    """File of the KV configuration (requests 100 to 102, 219): all that survives a restart."""

    scan_interval_ms: int = 5000
    """How often silent brokers are looked for. A closed connection does not wait for it."""
    default_heartbeat_timeout_ms: int = 120_000
    """Silence after which a broker is dropped that did not say its own time with the registration."""
    max_route_wait_ms: int = 30_000
    """Longest time a route request with `waitMillis` is held."""

    order_message_enable: bool = False
    """Put the KV entry of namespace ORDER_TOPIC_CONFIG into route answers."""
    return_order_topic_config: bool = True
    """Answer registrations with the KV table of namespace ORDER_TOPIC_CONFIG."""
    support_acting_master: bool = False
    """Show the smallest id as leader in routes of topics that take no sends, while a broker name has no leader."""
    notify_min_broker_id: bool = False
    """Tell the members of a broker name when the smallest id among them changes (request 905)."""
    unregister_queue_capacity: int = 3000
    """Most brokers that may wait to be taken out (request 104); one more is refused."""
    delete_topic_with_registration: bool = False
    """A master's registration removes topics that it does not name."""
    wait_for_service: bool = False
    """Refuse routes for `wait_for_service_seconds` after the start, until brokers have registered."""
    wait_for_service_seconds: int = 45
    topic_list_enable: bool = True
    """Answer 304 and the lists by cluster and unit."""
    all_topic_list_enable: bool = True
    """Answer 206, the list of all topics."""

    max_connections: int = 10_000
    max_connections_per_address: int = 1000
    max_frame_size_bytes: int = 16 << 20
    max_header_size_bytes: int = 256 << 10
    max_header_fields: int = 128
    max_unfinished_bytes: int = 256 << 20
    max_requests_in_flight: int = 16_384
    max_unsent_bytes: int = 64 << 20
    connection_idle_timeout_ms: int = 120_000
    max_registration_size_bytes: int = 16 << 20
    """Of a registration once inflated."""
    tls: TlsSettings = field(default_factory=TlsSettings)
    config_black_list: tuple[str, ...] = ("configBlackList", "configStorePath", "kvConfigPath")
    """Keys that request 318 may not change."""

    notices: tuple[str, ...] = ()
    """What the process says once at its start: addresses chosen, keys without effect."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Every known key under RocketMQ's name with the value in force, as text: what requests 318, 319 show."""

    def problems(self) -> list[tuple[str, str]]:
        """`(field, sentence)` of each relation between values that does not hold; empty when the node may start."""
        if self.listen_port and self.listen_port == self.health_port:
            return [("health_port", f"port {self.health_port} is also taken by listen_port")]
        return list(self.tls.problems())
