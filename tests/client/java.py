"""The real RocketMQ broker 5.3.3 for the client's tests: one for the whole run, whoever asks for `java_broker`."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LAUNCHER = Path(__file__).resolve().parents[2] / "benchmarks" / "peers" / "rocketmq"
IS_ASKED_FOR = "JAVA_CLIENT" in os.environ
FIRST_BASE, BASE_STEP, LAST_BASE = 22_000, 80, 31_000  # below the ports that systems lend by themselves
PORTS = (0, 18, 20, 21)  # nameserver; broker: fast, main, replication
STOP_S = 60
SETTINGS = {
    "recallMessageEnable": "true",
    "traceTopicEnable": "true",
    "enablePropertyFilter": "true",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeTimerLog": str(4 << 20),
}


def why_not() -> str | None:
    """Why these tests cannot run here; None when they can."""
    if not IS_ASKED_FOR:
        return "make java-client runs these"
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    return f"no {' and no '.join(missing)} here: Java 17 and Maven are needed" if missing else None


def run_java_broker(directory: Path) -> Iterator[str]:
    """Address of the nameserver, once the broker takes messages; stops both at the end."""
    settings = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]
    words = ["run", "single", "--dir", str(directory / "java"), "--base-port", str(_free_base()), "--heap", "384m"]
    log = directory / "java.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(LAUNCHER), *words, *settings], stdout=subprocess.PIPE, stderr=errors, text=True
        )
    with process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        try:
            yield str(json.loads(line)["namesrv"])
        finally:
            process.terminate()
            process.wait(STOP_S)


def _free_base() -> int:
    first = FIRST_BASE + os.getpid() % 50 * BASE_STEP
    for base in range(first, LAST_BASE, BASE_STEP):
        if all(_is_free(base + port) for port in PORTS):
            return base
    pytest.skip(f"no free ports between {first} and {LAST_BASE}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
