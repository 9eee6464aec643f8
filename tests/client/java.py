"""The real RocketMQ 5.3.3 for the client's tests: a broker that tests share, and Java clients beside ours."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from tests.jvm import NO_TLS, PEERS, QUIET, SHORT_LIFE, compiled, rocketmq_jars
from tests.limits import STRANGER_WAIT_S
from tests.ports import free_block

IS_ASKED_FOR = "JAVA_CLIENT" in os.environ

PORTS = 75  # a block, as the launcher takes them
SETTINGS = {
    **QUIET,
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


@contextlib.contextmanager
def run_java_broker(directory: Path) -> Iterator[str]:
    """Address of the nameserver, once the broker takes messages; stops both at the end."""
    settings = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]
    words = ["run", "single", "--dir", str(directory / "java"), "--base-port", str(free_block(PORTS)), "--heap", "384m"]
    words += [f"--java-opt={option}" for option in (*SHORT_LIFE, NO_TLS)]
    log = directory / "java.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(PEERS / "rocketmq"), *words, *settings],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
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
    class_path, main = compiled(Path(__file__).parent / "JavaPeer.java", f"{rocketmq_jars()}/*")
    process = await asyncio.create_subprocess_exec(
        "java", "-Xmx128m", *SHORT_LIFE, "-cp", class_path, main, namesrv, topic, mode,
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


def java_command(work: Path, source: Path, *words: str) -> list[str]:
    """The command line of a Java program with RocketMQ's client and tools in reach, quiet and small."""
    (work / "conf").mkdir(parents=True, exist_ok=True)
    for name in ("rmq.logback.xml", "rmq.client.logback.xml"):
        (work / "conf" / name).write_text('<configuration><root level="OFF"/></configuration>')
    places = [f"-Duser.home={work}", f"-Drocketmq.home.dir={work}", f"-Drocketmq.client.logRoot={work}/logs"]
    class_path, main = compiled(source, f"{rocketmq_jars()}/*")
    return ["java", "-Xmx256m", *SHORT_LIFE, *places, "-cp", f"{work / 'conf'}:{class_path}", main, *words]
