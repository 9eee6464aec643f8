"""Warnings of a process about its configuration, logged once at the start."""

from collections.abc import Iterator, Mapping

from broker.config import BrokerConfig
from ha.controller.config import ControllerConfig
from ledgermq.remoting.tls import TlsMode
from ledgermq.remoting.tls_settings import TlsSettings
from nameserver.config import NameServerConfig
from node.file_settings import FileSettings
from node.node_config import RaftKeys

_GROUPS: Mapping[str, str] = {
    "j": "no effect here, they tune Java's threads, queues and buffers",
    "d": "no effect here, done differently",
    "f": "no effect here, their features are not in this version",
}


def list_notices(given: FileSettings) -> list[str]:
    """Return one sentence for each reason why keys have no effect here, with the keys."""
    notices = []
    for reason, words in _GROUPS.items():
        names = [name for name in given.properties if given.keys[name].reason == reason]
        if names:
            notices.append(f"{', '.join(names)}: {words}")
    return notices


def tls_notices(tls: TlsSettings, *, is_raft: bool) -> Iterator[str]:
    """Yield warnings about connections that TLS does not protect."""
    if tls.tls_outgoing and not tls.tls_outgoing_verify:
        yield "WARNING: tls.client.authServer=false: whoever stands in between can read and change what is sent"
    if tls.tls_test_certificate and tls.tls_certificate is None and tls.mode is not TlsMode.DISABLED:
        yield "WARNING: tls.test.mode.enable=true: clients cannot verify the certificate that is made here"
    if is_raft and tls.mode is TlsMode.ENFORCING:
        yield "WARNING: members of the Raft group speak plain among themselves: keep dLegerPeers in a closed network"


def registration_notices(config: NameServerConfig) -> Iterator[str]:
    """Yield a warning if routes may be changed without the secret."""
    danger = "whoever reaches this nameserver can change routes and settings"
    return config.authority.notices(
        is_open=config.insecure_registration, open_name="insecureRegistration", danger=danger
    )


def raft_notices(raft: RaftKeys) -> Iterator[str]:
    """Yield warnings about an unprotected Raft member."""
    if raft.peer_secret_file is None and not raft.is_local:
        yield "WARNING: insecurePeers=true: whoever reaches a Raft port of this group can delete its log"


def settings_notices(broker: BrokerConfig) -> Iterator[str]:
    """Yield a warning if everybody may change this broker's settings."""
    if broker.insecure_settings and not broker.auth.authentication_enable:
        yield "WARNING: insecureSettings=true: whoever reaches this broker can stop it and delete messages"
    if broker.auth.plain_passwords and broker.auth.authentication_enable and broker.auth.password_key_file is None:
        yield "WARNING: plainPasswords=true: without a secret the log and files show passwords of users"


def controller_notices(config: ControllerConfig) -> Iterator[str]:
    """Yield a warning if the controller's state may be changed without the secret."""
    danger = "whoever reaches this controller can appoint masters"
    return config.authority.notices(is_open=config.insecure, open_name="insecureController", danger=danger)
