"""TLS contexts that are built from files, and built again when the files change.

    context() --checked in the last second?--> the present context
              '-- no: stat the files --changed?--> build a new one: valid   -> it is used from now on
                                                                    invalid -> logged once, the present one stays

A connection keeps the context with which it began. While two files are replaced one after the other they do not match
for a moment; they are checked again a second later. TLS 1.2 and newer, without renegotiation. The keys are in
`tls_settings`.

Source: apache/rocketmq `remoting/.../netty/TlsHelper.java`, `TlsSystemConfig.java`, `FileWatchService.java`.
"""

import enum
import logging
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ledgermq.remoting.errors import TlsFileError

_log: Final = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 1.0
"""Shortest time between two checks of the files, in seconds."""

_Fingerprint = tuple[tuple[int, int, int] | None, ...]
ContextSource = Callable[[], ssl.SSLContext]
"""Returns the context for the next connection."""


class TlsMode(enum.StrEnum):
    """The connections that a listener accepts: plain ones only, both on one port, or TLS only."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(enum.StrEnum):
    """Whether a listener asks clients for a certificate. A certificate that a client sends is always verified."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """The PEM files of a listener. The certificate file has the whole chain, the listener's certificate first."""

    certificate: Path
    key: Path
    key_password: str = field(default="", repr=False)
    client_auth: ClientAuth = ClientAuth.NONE
    trusted: Path | None = None
    """Authorities of clients' certificates; needed unless `client_auth` is NONE."""

    def build(self) -> ssl.SSLContext:
        """Build a context from the present files.

        Raises:
            TlsFileError: one of them cannot be read or used.
        """
        context = _plain_context(ssl.PROTOCOL_TLS_SERVER)
        _load_identity(context, self.certificate, self.key, self.key_password)
        if self.client_auth is not ClientAuth.NONE and self.trusted is not None:
            _load_trusted(context, self.trusted)
            required = self.client_auth is ClientAuth.REQUIRE
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return context

    def files(self) -> tuple[Path | None, ...]:
        return self.certificate, self.key, self.trusted


def make_test_context() -> ssl.SSLContext:
    """Return a listener's context with a new key and a self-signed certificate, which nobody can verify: for tests.

    Raises:
        TlsFileError: the program openssl is missing or creates none.
    """
    with tempfile.TemporaryDirectory(prefix="ledgermq-tls-") as folder:
        certificate, key_file = Path(folder, "certificate.pem"), Path(folder, "key.pem")
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj", "/CN=ledgermq"]
        command += ["-keyout", str(key_file), "-out", str(certificate)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            raise TlsFileError("tls.test.mode.enable", f"openssl cannot create a certificate: {error}") from error
        return ServerTls(certificate=certificate, key=key_file).build()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """TLS of outgoing connections. Servers are verified unless `verify` is off, which callers should log."""

    trusted: Path | None = None
    """Authorities of servers' certificates; None: those of the system."""
    verify: bool = True
    check_host: bool = True
    """Whether the certificate must name the host or address connected to (no partial wildcards, no common names)."""
    certificate: Path | None = None
    """Shown to servers that ask for one; with its key."""
    key: Path | None = None
    key_password: str = field(default="", repr=False)

    def build(self) -> ssl.SSLContext:
        """Build a context from the present files.

        Raises:
            TlsFileError: one of them cannot be read or used.
        """
        context = _plain_context(ssl.PROTOCOL_TLS_CLIENT)
        context.hostname_checks_common_name = False
        context.check_hostname = self.verify and self.check_host
        if not self.verify:
            context.verify_mode = ssl.CERT_NONE
        elif self.trusted is None:
            context.load_default_certs()
        else:
            _load_trusted(context, self.trusted)
        if self.certificate is not None and self.key is not None:
            _load_identity(context, self.certificate, self.key, self.key_password)
        return context

    def files(self) -> tuple[Path | None, ...]:
        return self.certificate, self.key, self.trusted


class ReloadedContext:
    """The present context of a set of files. Call it for each new connection.

    Args:
        settings: the files, and their purpose.
        clock: seconds that never fall.

    Raises:
        TlsFileError: the present files cannot be used.
    """

    def __init__(self, settings: ServerTls | ClientTls, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._seen = _fingerprint(settings.files())
        self._complaint = ""
        self._context = settings.build()
        self._looked_at = clock()

    def __call__(self) -> ssl.SSLContext:
        """Return the context for the next connection; the files are checked if the last check was a second ago."""
        now = self._clock()
        if now - self._looked_at >= LOOK_INTERVAL_S:
            self._looked_at = now
            found = _fingerprint(self._settings.files())
            if found != self._seen or self._complaint:
                self._rebuild(found)
        return self._context

    def _rebuild(self, found: _Fingerprint) -> None:
        try:
            self._context = self._settings.build()
        except TlsFileError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                _log.warning("the changed TLS files cannot be used, the previous ones stay in force: %s", error)
            return
        self._seen, self._complaint = found, ""
        _log.info("TLS files have changed and are in force for new connections: %s", self._settings)


def _plain_context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context


def _load_identity(context: ssl.SSLContext, certificate: Path, key: Path, password: str) -> None:
    _require_readable(certificate, key)
    try:
        # never None: OpenSSL would ask for a password at the terminal
        context.load_cert_chain(certificate, key, password=password or "")
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise TlsFileError(f"certificate {certificate} with key {key}", _reason(error)) from error


def _load_trusted(context: ssl.SSLContext, trusted: Path) -> None:
    _require_readable(trusted)
    try:
        context.load_verify_locations(trusted)
    except (OSError, ValueError) as error:
        raise TlsFileError(f"trusted certificates {trusted}", _reason(error)) from error


def _require_readable(*paths: Path) -> None:
    """Check that the files can be read, since OpenSSL's own errors do not name the file."""
    for path in paths:
        try:
            path.open("rb").close()
        except OSError as error:
            raise TlsFileError(str(path), error.strerror or str(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return str(error)


def _fingerprint(paths: Iterable[Path | None]) -> _Fingerprint:
    """Return a value that changes when files change, without reading them."""
    return tuple(None if path is None else _mark(path) for path in paths)


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
