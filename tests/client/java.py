"""The real RocketMQ 5.3.3 for the client's tests: one broker for the whole run, and Java clients beside ours."""

import asyncio
import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from tests.limits import STRANGER_WAIT_S
from tests.ports import free_block

LAUNCHER = Path(__file__).resolve().parents[2] / "benchmarks" / "peers" / "rocketmq"
IS_ASKED_FOR = "JAVA_CLIENT" in os.environ

PORTS = 75  # a block, as the launcher takes them
ARTIFACTS = ("namesrv", "broker", "controller", "tools", "client")
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
    words = ["run", "single", "--dir", str(directory / "java"), "--base-port", str(free_block(PORTS)), "--heap", "384m"]
    words += ["--java-opt=-XX:TieredStopAtLevel=1", "--java-opt=-XX:+UseSerialGC"]  # a short life: compile little
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
            process.wait(STRANGER_WAIT_S)


class Peer:
    """A running `JavaPeer`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def said(self, word: str) -> str:
        """The rest of the next line that begins with that word."""
        assert self._process.stdout is not None
        async with asyncio.timeout(STRANGER_WAIT_S):
            while line := (await self._process.stdout.readline()).decode():
                if line.startswith(word):
                    return line.removeprefix(word).strip()
        raise AssertionError(f"the Java peer has ended without saying {word!r}")

    def tell(self, text: str) -> None:
        """All its input."""
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())
        self._process.stdin.close()


@contextlib.asynccontextmanager
async def java_peer(namesrv: str, topic: str, mode: str) -> AsyncIterator[Peer]:
    """A Java client, ready; ended at the end."""
    jars = Path(os.environ.get("PEERS_STATE", "/var/tmp/peers")) / "jars" / "rocketmq-5.3.3" / "lib"
    source = Path(__file__).parent / "JavaPeer.java"
    process = await asyncio.create_subprocess_exec(
        "java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", str(source), namesrv, topic, mode,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    peer = Peer(process)
    try:
        await peer.said("ready")
        yield peer
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def java_command(work: Path, *words: str) -> list[str]:
    """The command line of Java with RocketMQ's client and tools in reach, quiet and small."""
    (work / "conf").mkdir(parents=True, exist_ok=True)
    for name in ("rmq.logback.xml", "rmq.client.logback.xml"):
        (work / "conf" / name).write_text('<configuration><root level="OFF"/></configuration>')
    places = [f"-Duser.home={work}", f"-Drocketmq.home.dir={work}", f"-Drocketmq.client.logRoot={work}/logs"]
    return [
        "java",
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        *places,
        "-cp",
        f"{work / 'conf'}:{jars()}",
        *words,
    ]


@functools.cache
def jars() -> str:
    """The class path of RocketMQ's client and tools, fetched by Maven on first use."""
    spec = "import peerlib; print(peerlib.maven_jars('rocketmq', '5.3.3', ["
    spec += ", ".join(f"'org.apache.rocketmq:rocketmq-{name}:5.3.3'" for name in ARTIFACTS) + "]))"
    words = [sys.executable, "-c", spec]
    done = subprocess.run(words, capture_output=True, text=True, cwd=LAUNCHER.parent, timeout=STRANGER_WAIT_S)
    assert done.returncode == 0, done.stderr
    return f"{done.stdout.strip()}/*"
