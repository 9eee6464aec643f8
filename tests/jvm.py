"""RocketMQ's jars, programs compiled with them, and options of JVMs that live for seconds."""

import fcntl
import hashlib
import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

NEWEST: Final = "5.3.3"
PEERS: Final = Path(__file__).resolve().parents[1] / "benchmarks" / "peers"
SHORT_LIFE: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
"""Compile little: code that would have been faster later is not compiled a second time. Trust the jars: verifying their
classes takes 0.25 of the 2.9 s of processor time of a broker that starts and stops, 6 of 22 s of a Spark session."""
NO_TLS: Final = "-Dtls.server.mode=disabled"
"""For RocketMQ's servers, which else make a certificate as they start: 2.9 of a broker's 4.5 s of processor time."""
QUIET: Final = {"transactionMetricFlushInterval": 100, "timerFlushIntervalMs": 30_000}
"""For RocketMQ's brokers, idle ones too: a thread spins until it first writes figures (3 s by default), and a flush of
timers compares the bytes of 37 MiB, by default once a second."""
SMALL_JVM: Final = (
    *SHORT_LIFE,
    *("-Xms192m", "-Xmx192m", "-XX:MaxDirectMemorySize=192m"),
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
)
"""For RocketMQ's programs on Java 17: compile little, keep little."""


def rocketmq_jars() -> Path:
    """Return the folder of the jars of RocketMQ's servers, tools and client, as `maven_jars`."""
    return maven_jars(NEWEST, "namesrv", "broker", "controller", "tools", "client")


def maven_jars(version: str, *parts: str) -> Path:
    """Return the folder of some of RocketMQ's jars, which Maven copies on first use; skip the test without Maven.

    Raises:
        Exception: `peerlib.Problem`, Maven failed; the text says why.
    """
    if shutil.which("java") is None or shutil.which("mvn") is None:
        pytest.skip("Java 17 and Maven are not here")
    peerlib = _peerlib()
    name = "rocketmq" if len(parts) > 2 else f"rocketmq-{'-'.join(parts)}"
    return Path(peerlib.maven_jars(name, version, [f"org.apache.rocketmq:rocketmq-{part}:{version}" for part in parts]))


def compiled(source: Path, class_path: str) -> tuple[str, str]:
    """Return the class path and the name of a Java program of one file, which is compiled on first use.

    From its source it would be compiled at each start: mqadmin's driver takes 0.5 instead of 3.4 s of processor time.
    """
    digest = hashlib.sha256(class_path.encode() + source.read_bytes()).hexdigest()[:16]
    folder = Path(_peerlib().STATE) / "classes"
    folder.mkdir(parents=True, exist_ok=True)
    classes = folder / f"{source.stem}-{digest}"
    with (folder / f"{classes.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers of the tests want it, too
        if not classes.exists():
            part = classes.with_name(f"{classes.name}.part")
            options = [*(f"-J{option}" for option in SHORT_LIFE), "-cp", class_path, "-d", str(part)]
            subprocess.run(["javac", *options, str(source)], check=True)
            part.rename(classes)
    return f"{class_path}:{classes}", source.stem


def _peerlib() -> Any:
    spec = importlib.util.spec_from_file_location("peerlib", PEERS / "peerlib.py")
    assert spec is not None and spec.loader is not None
    peerlib = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peerlib)
    return peerlib
