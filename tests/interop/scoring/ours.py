"""A cluster of LedgerMQ of a mode, with ACL or TLS where asked, or two brokers of different names, up for a block."""

import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ledgermq.testing.cluster import start_cluster, stop_cluster
from ledgermq.testing.control import ClusterError
from tests.interop.scoring.suite import (
    PROJECT,
    SECRET,
    SETTINGS,
    USER,
    NotRunError,
    Target,
    await_brokers,
    fault_options,
)
from tests.limits import STRANGER_WAIT_S
from tests.ports import free_ports

LEDGERMQ = str(PROJECT / ".venv" / "bin" / "ledgermq") if (PROJECT / ".venv").exists() else "ledgermq"
_WITH_FAULTS = ("raft", "sync", "async", "controller", "two-brokers")
"""Clusters of which nodes are killed and started again."""
_SLAVES = {"sync": "2"}
"""Where the usual number would not do: a synchronous master's sends go on after the death of one slave of two."""


@contextlib.contextmanager
def up(kind: str) -> Iterator[Target]:
    """The cluster of this kind; `TMPDIR` holds its files.

    Raises:
        NotRunError: it did not come up.
    """
    work = Path(tempfile.mkdtemp(prefix="ledgermq-interop."))
    mode, _, extra = kind.partition("-")
    settings = dict(SETTINGS)
    options: tuple[str, ...] = ()
    if extra == "acl":
        settings |= _acl_settings()
        options = ("--acl", f"{USER}:{SECRET}")
    elif extra.startswith("tls"):
        settings |= _tls_settings(work, "enforcing" if extra == "tls-enforcing" else "permissive")
        options = ("--tls",)
    try:
        with _running("standalone" if kind == "two-brokers" else mode, settings, work) as namesrv:
            faults = _fault_options(work / "cluster") if kind in _WITH_FAULTS else ()
            target = Target(namesrv, (*options, *faults))
            if kind == "two-brokers":
                with _second_broker(work, namesrv):
                    yield target
            else:
                yield target
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _running(mode: str, settings: dict[str, str], work: Path) -> Iterator[str]:
    words = ["--mode", mode]
    for insecure in ("insecureRegistration", "insecureSettings"):  # as RocketMQ: the tools' requests are not signed
        words += ["--conf", f"{insecure}=true"]
    for key, value in settings.items():
        words += ["--conf", f"{key}={value}"]
    if mode in _SLAVES:
        words += ["--slaves", _SLAVES[mode]]
    try:
        process, description = start_cluster(work / "cluster", *words)
    except ClusterError as error:
        raise NotRunError(str(error)) from error
    try:
        yield description["namesrv"]
    finally:
        stop_cluster(process)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STRANGER_WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _fault_options(directory: Path) -> tuple[str, ...]:
    cluster = f"{LEDGERMQ} cluster"
    return fault_options(
        f"{cluster} status --addresses --dir {directory}",
        f"{cluster} kill {{address}} --dir {directory}",
        f"{cluster} start {{address}} --dir {directory}",
    )


def _acl_settings() -> dict[str, str]:
    user = json.dumps({"username": USER, "password": SECRET})
    return {"authenticationEnabled": "true", "authorizationEnabled": "true", "initAuthenticationUser": user}


def _tls_settings(work: Path, mode: str) -> dict[str, str]:
    key, certificate = work / "tls.key", work / "tls.pem"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=interop", "-addext", "subjectAltName=IP:127.0.0.1"]
    words += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    return {
        "tls.server.mode": mode,
        "tls.server.certPath": str(certificate),
        "tls.server.keyPath": str(key),
        "tls.client.trustCertPath": str(certificate),
        "useTLS": "true",
    }


@contextlib.contextmanager
def _second_broker(work: Path, namesrv: str) -> Iterator[None]:
    """broker-b, registered beside the cluster's broker-a, with the same settings."""
    first = next((work / "cluster" / "n0").glob("*.conf")).read_text().splitlines()
    settings = dict(line.split("=", 1) for line in first if "=" in line)
    port, health = free_ports(2)
    settings |= {"brokerName": "broker-b", "listenPort": str(port), "healthPort": str(health)}
    settings["storePathRootDir"] = str(work / "second" / "store")
    conf = work / "second.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    with (work / "second.log").open("w") as log:
        process = subprocess.Popen([LEDGERMQ, "broker", "-c", str(conf)], stdout=log, stderr=log, text=True)
    try:
        await_brokers(namesrv, 2)
        yield
    finally:
        _end(process)
