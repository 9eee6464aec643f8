"""RocketMQ's jars, and options of JVMs that live for seconds."""

import importlib.util
import shutil
from pathlib import Path
from typing import Final

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
    spec = importlib.util.spec_from_file_location("peerlib", PEERS / "peerlib.py")
    assert spec is not None and spec.loader is not None
    peerlib = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peerlib)
    name = "rocketmq" if len(parts) > 2 else f"rocketmq-{'-'.join(parts)}"
    return Path(peerlib.maven_jars(name, version, [f"org.apache.rocketmq:rocketmq-{part}:{version}" for part in parts]))
