"""The TLS settings of one process: as a server, and for the connections that it makes itself.

Source: apache/rocketmq `remoting/.../netty/TlsSystemConfig.java`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ledgermq.remoting.config_key import BOOL, NETTY, OURS, PATH, SECRET, key, member_of
from ledgermq.remoting.tls import (
    ClientAuth,
    ClientTls,
    ContextSource,
    ReloadedContext,
    ServerTls,
    TlsMode,
    make_test_context,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The defaults are: permissive when there is a certificate, else disabled; outgoing connections plain."""

    ORIGIN: ClassVar[str] = NETTY

    tls_mode: TlsMode | None = key(
        "tls.server.mode",
        member_of(TlsMode),
        None,
        "Whether the listeners take TLS, TLS and plain, or TLS only.",
        shown="<permissive with a certificate, else disabled>",
        upstream="permissive",
        note="Members of a Raft group speak plain among themselves in every mode.",
    )
    tls_certificate: Path | None = key(
        "tls.server.certPath",
        PATH,
        None,
        "Certificate of the listeners, with its chain.",
        note="PEM; taken anew for new connections, with its key, when the files change.",
    )
    tls_test_certificate: bool = key(
        "tls.test.mode.enable",
        BOOL,
        False,
        "Serve with a certificate made at each start, where tls.server.certPath names none: clients cannot verify it.",
        upstream="true",
        note="Made by the program openssl. Outgoing connections trust only what they verify, with it or not.",
    )
    tls_key: Path | None = key("tls.server.keyPath", PATH, None, "Key of the listeners.")
    tls_key_password: str = key("tls.server.keyPassword", SECRET, "", "Password of the listeners' key.")
    tls_client_auth: ClientAuth = key(
        "tls.server.need.client.auth",
        member_of(ClientAuth),
        ClientAuth.NONE,
        "Whether clients are asked for a certificate.",
    )
    tls_trusted: Path | None = key("tls.server.trustCertPath", PATH, None, "Authorities of the clients' certificates.")

    tls_outgoing: bool = key(
        "useTLS",
        BOOL,
        False,
        "Encrypt outgoing connections.",
        note="To nameservers; a nameserver opens no connections.",
    )
    tls_outgoing_verify: bool = key(
        "tls.client.authServer",
        BOOL,
        True,
        "Verify the certificates of servers that this process connects to.",
        upstream="false",
        note="RocketMQ verifies no certificate by default.",
    )
    tls_outgoing_check_host: bool = key(
        "tls.client.checkHost",
        BOOL,
        True,
        "Servers' certificates must name the host or address that was dialled.",
        origin=OURS,
    )
    tls_outgoing_trusted: Path | None = key(
        "tls.client.trustCertPath",
        PATH,
        None,
        "Authorities of the servers' certificates.",
        note="Without it those of the system.",
    )
    tls_outgoing_certificate: Path | None = key(
        "tls.client.certPath", PATH, None, "Certificate that outgoing connections show to a server which asks for one."
    )
    tls_outgoing_key: Path | None = key("tls.client.keyPath", PATH, None, "Key of tls.client.certPath.")
    tls_outgoing_key_password: str = key(
        "tls.client.keyPassword", SECRET, "", "Password of the key of tls.client.certPath."
    )

    @property
    def mode(self) -> TlsMode:
        """The mode in force."""
        if self.tls_mode is not None:
            return self.tls_mode
        return TlsMode.PERMISSIVE if self.tls_certificate is not None or self.tls_test_certificate else TlsMode.DISABLED

    @property
    def takes_plain(self) -> bool:
        return self.mode is not TlsMode.ENFORCING

    def incoming(self) -> ContextSource | None:
        """Return the listeners' context; None when TLS is disabled.

        Raises:
            TlsFileError: a file cannot be used.
        """
        if self.mode is TlsMode.DISABLED:
            return None
        if self.tls_certificate is None:
            context = make_test_context()
            return lambda: context
        assert self.tls_key is not None, "problems() says so"
        server = ServerTls(
            certificate=self.tls_certificate,
            key=self.tls_key,
            key_password=self.tls_key_password,
            client_auth=self.tls_client_auth,
            trusted=self.tls_trusted,
        )
        return ReloadedContext(server)

    def outgoing(self) -> ContextSource | None:
        """Return the context of connections that this process makes; None when they are plain.

        Raises:
            TlsFileError: a file cannot be used.
        """
        if not self.tls_outgoing:
            return None
        client = ClientTls(
            trusted=self.tls_outgoing_trusted,
            verify=self.tls_outgoing_verify,
            check_host=self.tls_outgoing_check_host,
            certificate=self.tls_outgoing_certificate,
            key=self.tls_outgoing_key,
            key_password=self.tls_outgoing_key_password,
        )
        return ReloadedContext(client)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield `(key, sentence)` for each relation that does not hold."""
        if self.mode is not TlsMode.DISABLED and self.tls_certificate is None and not self.tls_test_certificate:
            needed = f"is needed for tls.server.mode {self.mode}"
            yield "tls.server.certPath", f"{needed}; for tests tls.test.mode.enable=true makes a certificate"
        if self.tls_client_auth is not ClientAuth.NONE and self.tls_certificate is None and self.tls_test_certificate:
            yield "tls.test.mode.enable", "asks no client for a certificate: set tls.server.certPath as well"
        if (self.tls_certificate is None) != (self.tls_key is None):
            yield "tls.server.keyPath", "goes with tls.server.certPath: both or none"
        if (self.tls_outgoing_certificate is None) != (self.tls_outgoing_key is None):
            yield "tls.client.keyPath", "goes with tls.client.certPath: both or none"
        if self.tls_client_auth is not ClientAuth.NONE and self.tls_trusted is None:
            yield "tls.server.trustCertPath", "is needed: a certificate that is asked for is verified"
