"""What does a scrape of /metrics cost a broker of many topics, and those who send meanwhile?

    python -m benchmarks.metrics_scrape [--topics N] [--queues N] [--scrapes N] [--gzip]

Every queue has a message; a group subscribes to all topics and has committed an offset in each queue. A client sends
steadily, one message at a time, without and during scrapes. One line of JSON: size of the page; processor time of a
scrape (the broker's while it is scraped, without what it needs anyway in as much time); the longest turn of the
event loop by its processor time (a timer of a millisecond is in it) and by the clock; times of sends; memory.
"""

import argparse
import asyncio
import contextlib
import gzip
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import uvloop

from benchmarks.node_process import NodeProcess, spread
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from node.broker_assembly import Broker
from node.config import load_broker_config
from node.run import stop_signal
from tests.ports import free_ports

BEAT_S = 0.001
SEND_PAUSE_S = 0.002
TIMEOUT_S = 60.0
QUIET_S = 8.0
GROUP = "g"
AT_ONCE = 200

_READER = """
import json, socket, sys
host, _, path = sys.argv[1].removeprefix("http://").partition("/")
name, _, port = host.partition(":")
lines = [f"GET /{path} HTTP/1.1", f"Host: {host}", "Connection: close"]
lines += [f"{key}: {value}" for key, value in json.loads(sys.argv[2]).items()]
peer = socket.create_connection((name, int(port)), 60)
peer.sendall("\\r\\n".join([*lines, "", ""]).encode())
room, count = bytearray(1 << 18), 0
while size := peer.recv_into(room):
    count += size
print(count)
"""
SETTLED_CPU_S = 0.3


class Beat:
    """Measures turns of a loop from a timer of a millisecond, on the loop's own thread."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._cpu_s, self._due_s = time.thread_time(), time.monotonic() + BEAT_S
        self.longest_cpu_s = self.longest_late_s = 0.0

    def start(self) -> None:
        cpu_s, now_s = time.thread_time(), time.monotonic()
        self.longest_cpu_s = max(self.longest_cpu_s, cpu_s - self._cpu_s)
        self.longest_late_s = max(self.longest_late_s, now_s - self._due_s)
        self._cpu_s, self._due_s = cpu_s, now_s + BEAT_S
        asyncio.get_running_loop().call_later(BEAT_S, self.start)


async def serve(conf: Path) -> None:
    """The broker's process: at SIGUSR1 it prints what it measured since the last one."""
    beat, stopped = Beat(), stop_signal()
    broker = Broker(load_broker_config(conf, []))
    await broker.start()

    def report() -> None:
        print(json.dumps([round(beat.longest_cpu_s * 1000, 2), round(beat.longest_late_s * 1000, 2)]), flush=True)
        beat.forget()

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, report)
    beat.start()
    report()
    await stopped
    await broker.close()


class Child:
    """The broker's process, seen from the parent."""

    def __init__(self, process: "subprocess.Popen[str]", port: int, health_port: int) -> None:
        self._process = process
        self.node = NodeProcess(process.pid)
        self.address = f"127.0.0.1:{port}"
        self.page = f"http://127.0.0.1:{health_port}/metrics"

    def turns_ms(self) -> dict[str, float]:
        """Return the longest turn of the loop since the last call."""
        self._process.send_signal(signal.SIGUSR1)
        assert self._process.stdout is not None, "stdout is a pipe"
        cpu, late = json.loads(self._process.stdout.readline())
        return {"cpu": cpu, "late": late}


@contextlib.contextmanager
def child(topics: int) -> Iterator[Child]:
    with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as folder:
        port, health_port = free_ports(2)
        conf = Path(folder, "broker.conf")
        settings = {
            "brokerName": "b", "listenPort": port, "healthPort": health_port, "storePathRootDir": f"{folder}/store",
            "bindAddress": "127.0.0.1", "brokerIP1": "127.0.0.1", "maxTopics": topics + 100,
            "mappedFileSizeConsumeQueue": 20_000,
            # looking through all queues for what is to be flushed is not what is measured
            "flushConsumeQueueThoroughInterval": 3_600_000,
        }  # fmt: skip
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        words = [sys.executable, "-P", "-m", "benchmarks.metrics_scrape", "--serve", str(conf)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert process.stdout is not None, "stdout is a pipe"
            process.stdout.readline() or sys.exit("the broker did not come up")
            yield Child(process, port, health_port)
        finally:
            process.terminate()
            process.wait(60)


async def fill(client: RemotingClient, address: str, topics: list[str], queues: int) -> None:
    """Make the topics, a message in each queue, and a group that subscribes to all and has read nothing."""
    row = {"readQueueNums": queues, "writeQueueNums": queues, "perm": 6, "topicFilterType": "SINGLE_TAG"}
    for start in range(0, len(topics), 500):
        rows = [{**row, "topicName": topic} for topic in topics[start : start + 500]]
        body = orjson.dumps({"topicConfigList": rows})
        await ask(client, address, Command(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body))
    places = [(topic, queue) for topic in topics for queue in range(queues)]
    await all_of(client, address, places, message)
    subscriptions = [{"topic": topic, "subString": "*", "subVersion": 1, "expressionType": "TAG"} for topic in topics]
    consumer = {
        "groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": subscriptions,
    }  # fmt: skip
    body = orjson.dumps({"clientID": "c", "producerDataSet": [], "consumerDataSet": [consumer]})
    await ask(client, address, Command(RequestCode.HEART_BEAT, body=body))
    await all_of(client, address, places, commit)


def message(topic: str, queue: int) -> Command:
    ext = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": "1", "h": "0", "i": ""}
    return Command(RequestCode.SEND_MESSAGE_V2, ext=ext, body=b"x" * 200)


def commit(topic: str, queue: int) -> Command:
    ext = {"consumerGroup": GROUP, "topic": topic, "queueId": str(queue), "commitOffset": "0"}
    return Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext=ext)


async def all_of(
    client: RemotingClient, address: str, places: list[tuple[str, int]], make: Callable[[str, int], Command]
) -> None:
    for start in range(0, len(places), AT_ONCE):
        await asyncio.gather(*(ask(client, address, make(*place)) for place in places[start : start + AT_ONCE]))


async def ask(client: RemotingClient, address: str, command: Command) -> None:
    answer = await client.request(address, command, TIMEOUT_S)
    if answer.code != 0:
        raise SystemExit(f"metrics_scrape: {command.code}: {answer.code} {answer.remark}")


async def send_steadily(client: RemotingClient, address: str, topic: str, until: asyncio.Event) -> list[float]:
    """Times of sends in ms, one after the other with a pause between."""
    times_ms: list[float] = []
    while not until.is_set():
        began = time.perf_counter()
        await ask(client, address, message(topic, len(times_ms) % 8))
        times_ms.append(1000 * (time.perf_counter() - began))
        await asyncio.sleep(SEND_PAUSE_S)
    return times_ms


def read_page(url: str, headers: dict[str, str]) -> int:
    """Read the page, which must be whole; return the number of bytes of its text."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S) as answer:
        raw = answer.read()
        text = gzip.decompress(raw) if answer.headers["Content-Encoding"] == "gzip" else raw
    assert text.startswith(b"#") and text.endswith(b"\n"), "a page"
    return len(text)


async def scrape(url: str, headers: dict[str, str]) -> int:
    """Return the number of bytes received, read in another process: reading them here would delay the sender."""
    arguments = sys.executable, "-I", "-S", "-c", _READER, url, json.dumps(headers)
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return int(out)


async def run(
    broker: Child, topics: list[str], queues: int, scrapes: int, headers: dict[str, str]
) -> dict[str, object]:
    client = RemotingClient()
    await fill(client, broker.address, topics, queues)
    await settle(broker.node)
    kb = broker.node.memory_kb()
    text_bytes = await asyncio.to_thread(read_page, broker.page, headers)
    found: dict[str, object] = {"topics": len(topics), "queues": len(topics) * queues, "text_bytes": text_bytes}
    rates = []
    for name, work in (("quiet", 0), ("scraped", scrapes)):
        until = asyncio.Event()
        sending = asyncio.create_task(send_steadily(client, broker.address, topics[0], until))
        broker.turns_ms()
        cpu_s, began = broker.node.cpu_s(), time.monotonic()
        for _ in range(work):
            found["received_bytes"] = await scrape(broker.page, headers)
        if not work:
            await asyncio.sleep(QUIET_S)
        took_s = time.monotonic() - began
        cpu_s = broker.node.cpu_s() - cpu_s
        turns = broker.turns_ms()
        until.set()
        rates.append((cpu_s, took_s))
        found[name] = {"longest_turn_ms": turns, "send_ms": spread(sorted(await sending))}
    (quiet_cpu_s, quiet_s), (cpu_s, took_s) = rates
    found["quiet_cpu_s_per_s"] = round(quiet_cpu_s / quiet_s, 3)
    found["scrape_cpu_s"] = round((cpu_s - quiet_cpu_s / quiet_s * took_s) / scrapes, 3)
    found["scrape_s"] = round(took_s / scrapes, 3)
    found["memory_mb"] = {"before": kb >> 10, "after": broker.node.memory_kb() >> 10}
    await client.close()
    return found


async def settle(node: NodeProcess) -> None:
    """Wait until the broker is idle again: it flushes and maps files of queues, and saves tables, after the filling."""
    for _ in range(60):
        cpu_s = node.cpu_s()
        await asyncio.sleep(2.0)
        if node.cpu_s() - cpu_s < SETTLED_CPU_S:
            return


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=5_000, metavar="N", help="(%(default)s)")
    parser.add_argument("--queues", type=int, default=8, metavar="N", help="of each topic (%(default)s)")
    parser.add_argument("--scrapes", type=int, default=5, metavar="N", help="one after the other (%(default)s)")
    parser.add_argument("--gzip", action="store_true", help="ask for the page as Prometheus does")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(arguments.serve))
        return 0
    topics = [f"many-topics-{number:05d}" for number in range(arguments.topics)]
    headers = {"Accept-Encoding": "gzip"} if arguments.gzip else {}
    with child(arguments.topics) as broker:
        found = asyncio.run(run(broker, topics, arguments.queues, arguments.scrapes, headers))
    found["machine"] = {"cpus": os.cpu_count(), "python": platform.python_version(), "load_average": os.getloadavg()}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
