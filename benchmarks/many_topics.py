"""Does a cluster of 5,000 topics keep anybody waiting? Topics are made, registered and routed; every call is timed.

    python -m benchmarks.many_topics [--topics N] [--java-brokers N]

One line of JSON. For each kind of call how many there were, their median, 99th percentile and maximum, in ms, from the
client's side. `lag_floor_ms` is how late a loop that does nothing is on this machine at the same time: no call can be
answered sooner, and on a busy machine that is most of a maximum. `cpu_s` is the nodes' processor time.

Calls: create (17, durable and announced to the nameserver), route (105), topic list (206), cluster info (106),
heartbeat (34), and register (103): whole tables of as many topics by brokers that only exist for the nameserver, as
RocketMQ's send them every 30 s. While all these go on, probes ask each node for something small.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson

from benchmarks.idle_connections import heartbeat
from benchmarks.node_process import Pair, pair, spread
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command

PROBE_PAUSE_S = 0.005
TIMEOUT_S = 30.0
CLIENTS = 50
CREATE_AT_ONCE = 4
BOUND_MS = 50


class Clock:
    """Times of calls by kind."""

    def __init__(self) -> None:
        self._times_ms: dict[str, list[float]] = defaultdict(list)

    async def ask(self, kind: str, client: RemotingClient, address: str, command: Command) -> Command:
        """The answer; the program ends when it is none of success."""
        began = time.perf_counter()
        answer = await client.request(address, command, TIMEOUT_S)
        self.add(kind, time.perf_counter() - began)
        if answer.code != 0:
            raise SystemExit(f"many_topics: {kind}: {answer.code} {answer.remark}")
        return answer

    def add(self, kind: str, seconds: float) -> None:
        self._times_ms[kind].append(seconds * 1000)

    def longest_ms(self) -> float:
        """Of all calls that were asked of a node."""
        return max(max(times) for kind, times in self._times_ms.items() if kind != "floor")

    def figures(self) -> dict[str, dict[str, float]]:
        return {kind: spread(sorted(times)) for kind, times in self._times_ms.items()}


@asynccontextmanager
async def probes(clock: Clock, nodes: Pair) -> AsyncIterator[None]:
    """While the block runs, each node is asked for something small again and again, over connections of its own."""
    client = RemotingClient()
    offset = Command(RequestCode.GET_MAX_OFFSET, ext={"topic": "TBW102", "queueId": "0"})
    route = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "TBW102"})

    async def probe(kind: str, address: str, command: Command) -> None:
        while True:
            await clock.ask(kind, client, address, command)
            await asyncio.sleep(PROBE_PAUSE_S)

    async def floor() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(PROBE_PAUSE_S)
            clock.add("floor", time.perf_counter() - began - PROBE_PAUSE_S)

    asked = (probe("probe broker", nodes.broker, offset), probe("probe nameserver", nodes.namesrv, route), floor())
    tasks = [asyncio.create_task(each) for each in asked]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error


async def create(clock: Clock, client: RemotingClient, nodes: Pair, topics: list[str]) -> None:
    """As administrators would with a script: a few at once, each waits for its answer."""
    rest = iter(topics)

    async def work() -> None:
        for topic in rest:
            ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
            ext |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
            await clock.ask("create", client, nodes.broker, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext))

    await asyncio.gather(*(work() for _ in range(CREATE_AT_ONCE)))


async def look_around(clock: Clock, client: RemotingClient, nodes: Pair, topics: list[str]) -> None:
    """What clients and tools ask a nameserver."""
    for topic in topics:
        await clock.ask(
            "route", client, nodes.namesrv, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic})
        )
    for _ in range(20):
        answer = await clock.ask(
            "topic list", client, nodes.namesrv, Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        )
        assert set(topics) <= set(orjson.loads(answer.body)["topicList"])
        await clock.ask("cluster info", client, nodes.namesrv, Command(RequestCode.GET_BROKER_CLUSTER_INFO))


async def beat(clock: Clock, client: RemotingClient, nodes: Pair) -> None:
    for number in range(CLIENTS):
        body = orjson.dumps(heartbeat(number))
        await clock.ask("heartbeat", client, nodes.broker, Command(RequestCode.HEART_BEAT, body=body))


async def register(clock: Clock, nodes: Pair, count: int, topics: list[str]) -> None:
    """Brokers with as many topics, each over its own connection, twice: in a new version, and in the same again."""
    for number in range(count):
        client = RemotingClient()
        for counter in (1, 2, 2):
            ext = {"brokerName": f"java-{number}", "brokerAddr": f"10.9.8.7:{number + 1}", "clusterName": "Java"}
            ext |= {"brokerId": "0", "haServerAddr": "10.9.8.7:1", "enableActingMaster": "false"}
            command = Command(RequestCode.REGISTER_BROKER, ext=ext, body=_table(topics, counter))
            await clock.ask("register", client, nodes.namesrv, command)
        await client.close()


def _table(topics: list[str], counter: int) -> bytes:
    row = {"attributes": {}, "order": False, "perm": 6, "readQueueNums": 8, "topicFilterType": "SINGLE_TAG"}
    table = {topic: {**row, "topicName": topic, "topicSysFlag": 0, "writeQueueNums": 8} for topic in topics}
    version = {"counter": counter, "stateVersion": 0, "timestamp": 1}
    wrapper = {"dataVersion": version, "topicConfigTable": table, "topicQueueMappingInfoMap": {}}
    return orjson.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})


async def run(nodes: Pair, count: int, java_brokers: int) -> tuple[Clock, dict[str, float]]:
    """All of it, one kind of work after the other."""
    clock, client = Clock(), RemotingClient()
    topics = [f"many-topics-{number:05d}" for number in range(count)]
    processes = {"broker": nodes.broker_process, "nameserver": nodes.nameserver_process}
    before = {name: process.cpu_s() for name, process in processes.items()}
    async with probes(clock, nodes):
        await create(clock, client, nodes, topics)
        await look_around(clock, client, nodes, topics)
        await beat(clock, client, nodes)
        await register(clock, nodes, java_brokers, topics)
    await client.close()
    return clock, {name: round(process.cpu_s() - before[name], 2) for name, process in processes.items()}


def main() -> int:
    """Measure; 1 when a call took longer than the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=5_000, metavar="N", help="(%(default)s)")
    parser.add_argument("--java-brokers", type=int, default=3, metavar="N", help="(%(default)s)")
    arguments = parser.parse_args()
    with pair("insecureRegistration=true") as nodes:
        clock, cpu_s = asyncio.run(run(nodes, arguments.topics, arguments.java_brokers))
    figures = clock.figures()
    found = {
        "topics": arguments.topics,
        "calls_ms": {kind: spread for kind, spread in figures.items() if kind != "floor"},
        "lag_floor_ms": figures["floor"],
        "cpu_s": cpu_s,
        "longest_ms": round(clock.longest_ms(), 1),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "load_average": os.getloadavg()},
    }
    print(json.dumps(found))
    return 0 if clock.longest_ms() < BOUND_MS else 1


if __name__ == "__main__":
    sys.exit(main())
