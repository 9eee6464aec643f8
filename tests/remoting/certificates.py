"""Certificates made for a test, by openssl, in its folder."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate with its key, PEM files."""

    certificate: Path
    key: Path


def make_identity(
    folder: Path,
    name: str,
    *,
    issuer: Identity | None = None,
    alternative: str = "DNS:localhost,IP:127.0.0.1",
    password: str = "",
) -> Identity:
    """A new key and its certificate, of `issuer` or of its own; an existing pair of that name is replaced."""
    made = Identity(folder / f"{name}.pem", folder / f"{name}.key")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-days", "2"]
    command += ["-subj", f"/CN={name}", "-keyout", str(made.key), "-out", str(made.certificate)]
    command += ["-passout", f"pass:{password}"] if password else ["-nodes"]
    if issuer is None:
        command += ["-addext", "basicConstraints=critical,CA:TRUE"]
    else:
        command += ["-CA", str(issuer.certificate), "-CAkey", str(issuer.key)]
        command += ["-addext", "basicConstraints=critical,CA:FALSE"]
    command += ["-addext", f"subjectAltName={alternative}"]
    subprocess.run(command, check=True, capture_output=True)
    return made
