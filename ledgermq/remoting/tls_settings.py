"""What one process is told of TLS: as a server, and for the connections that it makes itself.

Source: apache/rocketmq `remoting/.../netty/TlsSystemConfig.java`; the names it gives these settings are in `node.keys`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ledgermq.remoting.tls import ClientAuth, ClientTls, ContextSource, ReloadedContext, ServerTls, TlsMode


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The defaults are: permissive when there is a certificate, else disabled; outgoing connections plain."""

    tls_mode: TlsMode | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_key_password: str = field(default="", repr=False)
    tls_client_auth: ClientAuth = ClientAuth.NONE
    tls_trusted: Path | None = None

    tls_outgoing: bool = False
    tls_outgoing_verify: bool = True
    tls_outgoing_check_host: bool = True
    tls_outgoing_trusted: Path | None = None
    tls_outgoing_certificate: Path | None = None
    tls_outgoing_key: Path | None = None
    tls_outgoing_key_password: str = field(default="", repr=False)

    @property
    def mode(self) -> TlsMode:
        """The mode in force."""
        if self.tls_mode is not None:
            return self.tls_mode
        return TlsMode.DISABLED if self.tls_certificate is None else TlsMode.PERMISSIVE

    @property
    def takes_plain(self) -> bool:
        return self.mode is not TlsMode.ENFORCING

    def incoming(self) -> ContextSource | None:
        """The listeners' context; None when TLS is disabled.

        Raises:
            TlsFileError: a file cannot be used.
        """
        if self.mode is TlsMode.DISABLED:
            return None
        assert self.tls_certificate is not None and self.tls_key is not None, "problems() says so"
        server = ServerTls(
            certificate=self.tls_certificate,
            key=self.tls_key,
            key_password=self.tls_key_password,
            client_auth=self.tls_client_auth,
            trusted=self.tls_trusted,
        )
        return ReloadedContext(server)

    def outgoing(self) -> ContextSource | None:
        """The context of connections that this process makes; None when they are plain.

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
        """`(field, sentence)` of each relation that does not hold."""
        if self.mode is not TlsMode.DISABLED and self.tls_certificate is None:
            yield "tls_certificate", f"is needed for tls_mode {self.mode}: no certificate is made up here"
        if (self.tls_certificate is None) != (self.tls_key is None):
            yield "tls_key", "goes with tls_certificate: both or none"
        if (self.tls_outgoing_certificate is None) != (self.tls_outgoing_key is None):
            yield "tls_outgoing_key", "goes with tls_outgoing_certificate: both or none"
        if self.tls_client_auth is not ClientAuth.NONE and self.tls_trusted is None:
            yield "tls_trusted", "is needed: a certificate that is asked for is verified"
