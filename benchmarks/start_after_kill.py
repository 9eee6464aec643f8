"""How long does a broker of 10,000 topics (80,000 queues) take to start after a kill?

    python -m benchmarks.start_after_kill [--topics N] [--messages N] [--rounds N]

A broker that stands alone gets messages of 1 KiB for all queues, in random order, and is killed behind them (SIGKILL).
It is started again on its directory; `start_s` is the time from there until it takes a message. One line of JSON.
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.instructions import QUEUES, send_frame, topic_frame
from benchmarks.node_process import LEDGERMQ, NodeProcess, allow_open_files
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.frame import FrameParser
from tests.ports import free_ports

LIMIT_S = 120.0
AT_ONCE = 512


class Broker:
    """A broker on a directory, and one connection to it."""

    def __init__(self, folder: Path, port: int) -> None:
        began = time.monotonic()
        settings = [f"listenPort={port}", f"storePathRootDir={folder}", "bindAddress=127.0.0.1", "brokerIP1=127.0.0.1"]
        settings += ["namesrvAddr=127.0.0.1:9", f"defaultTopicQueueNums={QUEUES}", "diskMaxUsedSpaceRatio=100"]
        words = [*LEDGERMQ, "--die-with-parent", str(os.getpid()), "broker"]
        for setting in settings:
            words += ["--set", setting]
        with (folder.parent / "log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)
        self._socket, self._parser = self._connect(port, began + LIMIT_S), FrameParser()
        while not self.ask([send_frame(1000, 0)]):  # whose topic is made, if it is missing
            self._check(began + LIMIT_S)
        self.start_s = time.monotonic() - began

    def _connect(self, port: int, deadline: float) -> socket.socket:
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
            except OSError:
                self._check(deadline)

    def _check(self, deadline: float) -> None:
        if self._process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("the broker does not start")
        time.sleep(0.005)

    @property
    def cpu_s(self) -> float:
        """Seconds of processor time so far."""
        return NodeProcess(self._process.pid).cpu_s()

    def ask(self, frames: list[bytes]) -> bool:
        """Send requests and await their answers; whether all succeeded."""
        self._socket.sendall(b"".join(frames))
        answers: list[Command] = []
        while len(answers) < len(frames):
            data = self._socket.recv(1 << 16)
            if not data:
                raise SystemExit("the broker closed the connection")
            answers += self._parser.feed(data)
        return not any(answer.code for answer in answers)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._socket.close()


def measure(folder: Path, topics: int, messages: int, rounds: int) -> dict[str, object]:
    """Fill, then kill and start so many times."""
    (port,) = free_ports(1)
    queues = [(topic, queue) for topic in range(topics) for queue in range(QUEUES)]
    dice = random.Random(1)
    broker, starts, cpu = Broker(folder, port), list[float](), list[float]()
    for first in range(0, topics, AT_ONCE):
        broker.ask([topic_frame(number) for number in range(first, min(first + AT_ONCE, topics))])
    for _ in range(rounds):
        dice.shuffle(queues)
        chosen = (queues * (messages // len(queues) + 1))[:messages]
        for first in range(0, messages, AT_ONCE):
            frames = [send_frame(1000 + queue, queue, topic=topic) for topic, queue in chosen[first : first + AT_ONCE]]
            if not broker.ask(frames):
                raise SystemExit("a message was refused")
        broker.kill()
        broker = Broker(folder, port)
        starts.append(round(broker.start_s, 2))
        cpu.append(round(broker.cpu_s, 2))
    broker.kill()
    return {"topics": topics, "messages": messages, "start_s": starts, "start_cpu_s": cpu}


def main() -> None:
    """Parse the options, measure, print the line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=10_000, metavar="N", help="(%(default)s)")
    parser.add_argument("--messages", type=int, default=400_000, metavar="N", help="before each kill (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="(%(default)s)")
    options = parser.parse_args()
    allow_open_files(4096)
    with tempfile.TemporaryDirectory(prefix="start-after-kill-") as directory:
        folder = Path(directory) / "store"
        folder.mkdir()
        print(json.dumps(measure(folder, options.topics, options.messages, options.rounds)))


if __name__ == "__main__":
    main()
