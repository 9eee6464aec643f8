"""What a process says once at its start about keys that do nothing here."""

from collections.abc import Iterator, Mapping

from broker.config import BrokerConfig, LogMode
from ledgermq.remoting.tls import TlsMode
from nameserver.config import NameServerConfig
from node.file_settings import Said

_GROUPS: Mapping[str, str] = {
    "j": "no effect here, they tune Java's threads, queues and buffers",
    "d": "no effect here, done differently",
    "f": "no effect here, their features are not in this version",
}


def list_notices(said: Said) -> list[str]:
    """One sentence per reason, with the keys it is about."""
    notices = []
    for tag, reason in _GROUPS.items():
        names = [name for name in said.properties if said.keys[name].tag == tag]
        if names:
            notices.append(f"{', '.join(names)}: {reason}")
    return notices


def tls_notices(config: BrokerConfig | NameServerConfig) -> Iterator[str]:
    """What TLS as it is set does not protect."""
    tls = config.tls
    if tls.tls_outgoing and not tls.tls_outgoing_verify:
        yield "WARNING: tls.client.authServer=false: whoever stands in between can read and change what is sent"
    is_raft = isinstance(config, BrokerConfig) and config.mode is LogMode.RAFT
    if is_raft and tls.mode is TlsMode.ENFORCING:
        yield "WARNING: members of the Raft group speak plain among themselves: keep dLegerPeers in a closed network"
