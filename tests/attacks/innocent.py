"""The innocent: a producer beside an attack, in a process of its own, that sends at a steady rate and keeps times.

    python -m tests.attacks.innocent RATE PORT,PORT,PORT       until its standard input ends; then one JSON object

It sends to whoever leads among the ports, 100 bytes a message, each at its time whether or not earlier ones are
answered. A refused or lost message is an error and is not sent again.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError
from tests.limits import WAIT_S

TOPIC: Final = "innocent"
_SEND: Final = 310
_LIMIT_S: Final = 10.0
_PAUSE_S: Final = 0.05
_ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the innocent saw: messages acknowledged, errors by their text, times of acknowledgements in ms."""

    sent: int
    errors: dict[str, int]
    p50_ms: float
    p99_ms: float
    most_ms: float


class _Producer:
    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = list(ports)
        self._client = RemotingClient()
        self._leads = 0
        self.times: list[float] = []
        self.errors: dict[str, int] = {}

    async def find(self) -> None:
        """Send until one of the ports takes a message."""
        while True:
            for number in range(len(self._ports)):
                self._leads = number
                with contextlib.suppress(RemotingError):
                    if (await self._ask()).code == 0:
                        return
            await asyncio.sleep(_PAUSE_S)

    async def send(self) -> None:
        began = time.perf_counter()
        try:
            answer = await self._ask()
            fault = "" if answer.code == 0 else f"{answer.code} {answer.ext.get('cause', '')}"
        except RemotingError as error:
            fault = type(error).__name__
        if fault:
            self.errors[fault] = self.errors.get(fault, 0) + 1
            self._leads = (self._leads + 1) % len(self._ports)
        else:
            self.times.append(1000 * (time.perf_counter() - began))

    async def _ask(self) -> Command:
        ext = {"a": "innocent", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "",
               "j": "0", "k": "false", "l": "0", "m": "false"}  # fmt: skip
        return await self._client.request(
            f"127.0.0.1:{self._ports[self._leads]}", Command(_SEND, ext=ext, body=bytes(100)), _LIMIT_S
        )


async def _run(rate: float, ports: Sequence[int]) -> dict[str, Any]:
    producer, loop = _Producer(ports), asyncio.get_running_loop()
    await producer.find()
    print("ready", flush=True)
    ended = loop.run_in_executor(None, sys.stdin.read)
    began, count, tasks = loop.time(), 0, set[asyncio.Task[None]]()
    while not ended.done():
        count += 1
        task = loop.create_task(producer.send())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        await asyncio.sleep(max(0.0, began + count / rate - loop.time()))
    await asyncio.gather(*tasks)
    times = sorted(producer.times) or [0.0]
    at = [times[int(part * (len(times) - 1))] for part in (0.5, 0.99, 1.0)]
    return {"sent": len(producer.times), "errors": producer.errors, "p50_ms": at[0], "p99_ms": at[1], "most_ms": at[2]}


@contextlib.contextmanager
def innocent(ports: Sequence[int], rate: float) -> Iterator[list[Seen]]:
    """An innocent producer while the block runs; what it saw is in the list afterwards."""
    words = [sys.executable, "-m", "tests.attacks.innocent", str(rate), ",".join(map(str, ports))]
    process = subprocess.Popen(words, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    seen: list[Seen] = []
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield seen
        seen.append(Seen(**json.loads(process.communicate(timeout=WAIT_S)[0])))
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_run(float(sys.argv[1]), [int(port) for port in sys.argv[2].split(",")]))))
