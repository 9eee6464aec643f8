"""How long a failover is for unmodified clients: RocketMQ's Java and Go clients and ours, with default settings.

    python benchmarks/client_failover/drive.py                      every fault, 20 rounds each: about two hours
    python benchmarks/client_failover/drive.py --rounds 2           the same in about 14 minutes
    python benchmarks/client_failover/drive.py --faults-a-start 20  the same with fewer starts of clients: 90 minutes
    python benchmarks/client_failover/drive.py --fault kill [--clients java,go,ours] [--groups 1]

    kill       the leader is killed, and started again after 2 s
    stop       the leader is stopped by SIGTERM, and started again after 2 s
    pause      the leader's process stands still for 20 s (SIGSTOP, `--paused`), with its connections open
    transfer   the leader hands over
    consumer   one of two consumers is killed that read in order
    dead       a machine of three is killed, which leads one of three groups; it is started again after 40 s

With `--dead-nameserver` the clients are given two nameservers, of which the first one is dead.

Each round starts the clients anew, or goes on with those of the round before (`--faults-a-start`), lets each producer
send 100 messages a second, breaks something, watches, and mends it. Of each client it finds the longest time without
an acknowledgement, the failed sends, the longest time from a send to its delivery, and the same of two thirds of the
queues, the sends that were stored twice, the messages that were read again since the consumers had divided the queues,
and what was acknowledged and never delivered. A table is printed at the end; the last line is JSON.
"""

import argparse
import asyncio
import contextlib
import importlib
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "peers"), str(HERE.parent.parent)]

from cli.cluster import control  # noqa: E402
from ledgermq.client import Admin  # noqa: E402
from ledgermq.testing.cluster import start_cluster, stop_cluster  # noqa: E402

RATE = 100
WARM_S = 36.0  # clients ask for routes every 30 s: a producer knows followers from the second time on
BACK_AFTER_S = 2.0
REST_S = 32.0  # longer than clients wait between two questions for routes, so that they know the followers again
SETTLE_S = 5.0
DEAD_S = 40.0  # longer than clients wait between two questions for routes
PAUSED_S = 20.0
LATE_S = 0.5  # queues that are later are listed
AGAIN_SHOWN = 4
TIME_AT = {"A": 2, "G": 3}  # the word of a line that says when, by its kind
LOST_S = 0.1  # a member waits so long before it tells a client that the leader's answer was lost
FAULTS = ("kill", "stop", "pause", "transfer", "consumer", "dead")
GROUPS = {"dead": 3}
QUEUES = 4, 3  # of a topic that a default client makes by sending to it: with one group, with several
Results = dict[str, dict[str, dict[str, Any]]]
SHORT_LIFE = (
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),
)
"""Options of JVMs that live for seconds, and whose starts shall take little from the brokers beside them."""
ARTIFACTS = ["org.apache.rocketmq:rocketmq-client:5.3.3"]


@dataclass
class Client:
    """A client process and the lines that it has printed."""

    process: subprocess.Popen[str]
    lines: list[list[str]] = field(default_factory=list)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.split(" ", 5))

    def of_kind(self, kind: str) -> list[list[str]]:
        return [line for line in self.lines if line and line[0] == kind and len(line) > 2]

    def latest(self, kind: str, since: float) -> list[list[str]]:
        """The lines of a kind that were printed at or after `since` (seconds since the epoch)."""
        found, place = [], TIME_AT[kind]
        for line in reversed(self.lines.copy()):
            if line[0] == kind and len(line) > place:
                if int(line[place]) / 1e6 < since:
                    break
                found.append(line)
        return found


class Programs:
    """The command of each client."""

    def __init__(self, scratch: Path, names: list[str]) -> None:
        self.words: dict[str, list[str]] = {}
        if "ours" in names:
            self.words["ours"] = [sys.executable, str(HERE / "own_client.py")]
        if "go" in names:
            out = scratch / "go-client"
            environment = {**os.environ, "GOFLAGS": "-buildvcs=false"}
            subprocess.run(["go", "build", "-o", str(out), "."], cwd=HERE / "go", check=True, env=environment)
            self.words["go"] = [str(out)]
        if "java" in names:
            jars = f"{importlib.import_module('peerlib').maven_jars('rocketmq-client', '5.3.3', ARTIFACTS)}/*"
            compiler = ["javac", *(f"-J{option}" for option in SHORT_LIFE)]
            subprocess.run([*compiler, "-cp", jars, "-d", str(scratch), str(HERE / "FailoverClient.java")], check=True)
            self.words["java"] = ["java", *SHORT_LIFE, "-Xmx256m", "-cp", f"{jars}:{scratch}", "FailoverClient"]

    @contextlib.contextmanager
    def running(self, name: str, *words: str) -> Iterator[Client]:
        process = subprocess.Popen(
            [*self.words[name], *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        client = Client(process)
        reader = threading.Thread(target=client.read, daemon=True)
        reader.start()
        try:
            yield client
        finally:
            process.kill()
            process.wait()
            reader.join(5)


class Cluster:
    """Groups of three, run by `ledgermq cluster up`."""

    def __init__(self, directory: Path, mode: str, settings: list[str], groups: int, nameservers: int) -> None:
        self.directory = directory
        self.groups = groups
        words = ["--mode", mode, "--nameservers", str(nameservers)]
        words += ["--groups", str(groups)] if mode == "raft" else []
        words += [word for setting in settings for word in ("--conf", setting)]
        self.up, description = start_cluster(directory, *words)
        self.namesrv: str = description["namesrv"]

    def ask(self, verb: str, node: str = "") -> Any:
        return control.ask(self.directory, verb, node)

    def roles(self) -> list[str]:
        return [node["role"] for node in self.ask("status")["nodes"]]

    def ended(self) -> list[str]:
        return [node["name"] for node in self.ask("status")["nodes"] if node["state"] == "down"]

    def wait_whole(self) -> None:
        roles = ["master"] * self.groups + ["slave"] * 2 * self.groups
        self.wait("the cluster is not whole", lambda: sorted(self.roles()) == roles)

    def wait(self, otherwise: str, is_so: Callable[[], bool]) -> None:
        deadline = time.time() + 60
        while not is_so():
            if time.time() > deadline:
                raise SystemExit(f"{otherwise}: {self.ask('status')['nodes']}")
            time.sleep(0.1)

    def break_and_mend(self, fault: str, paused_s: float) -> None:
        """Carry out a fault. After kill, stop and pause (of `paused_s` seconds) the node works again on return."""
        if fault == "dead":
            self.ask("kill", "m0" if self.groups > 1 else "leader")  # each machine leads one group
            return
        if fault == "transfer":
            target = next(node["name"] for node in self.ask("status")["nodes"] if node["role"] == "slave")
            self.ask("transfer", target)
            return
        if fault in ("stop", "pause"):
            leader = next(node for node in self.ask("status")["nodes"] if node["role"] == "master")
            os.kill(leader["pid"], signal.SIGSTOP if fault == "pause" else signal.SIGTERM)
            time.sleep(paused_s if fault == "pause" else BACK_AFTER_S)
            if fault == "pause":
                os.kill(leader["pid"], signal.SIGCONT)
            else:
                self.wait(f"{leader['name']} does not end", lambda: leader["name"] in self.ended())
                self.ask("start", leader["name"])
            return
        self.ask("kill", "leader")
        time.sleep(BACK_AFTER_S)
        self.ask("start", "dead")

    def close(self) -> None:
        stop_cluster(self.up)


async def make_topic(namesrv: str, topic: str, queues: int) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic(topic, queue_count=queues)


def run_rounds(
    cluster: Cluster, programs: Programs, fault: str, count: int, options: argparse.Namespace
) -> list[dict[str, dict[str, Any]]]:
    """`count` faults, one after the other, felt by the same clients; figures by client for each."""
    role = "orderly" if fault == "consumer" or options.orderly else "consume"
    with contextlib.ExitStack() as stack:
        producers: dict[str, Client] = {}
        consumers: dict[str, list[Client]] = {}
        queues = options.queues or QUEUES[cluster.groups > 1]
        for name in programs.words:
            topic = f"{fault}-{name}-{os.getpid()}-{time.time():.0f}"
            asyncio.run(make_topic(cluster.namesrv, topic, queues))
            words = (cluster.namesrv, topic, f"group-{topic}", role, "0")
            number_of_consumers = 2 if fault == "consumer" else options.consumers
            consumers[name] = [stack.enter_context(programs.running(name, *words)) for _ in range(number_of_consumers)]
            words = (cluster.namesrv, topic, f"producer-{topic}", "produce", str(options.rate))
            producers[name] = stack.enter_context(programs.running(name, *words))
        wait_flowing(producers, consumers, queues * cluster.groups)
        divided = time.time()
        time.sleep(options.warm)
        if fault == "consumer":  # queues that Go hands to a consumer that joins stand still for a minute
            watch(producers, consumers, time.time(), 0.0, options.rate)
        times = []
        for number in range(count):
            if number:
                cluster.wait_whole()
                time.sleep(options.rest + random.uniform(0, REST_S / 2))  # at any moment between two polls of a client
            times.append(time.time())
            if fault == "consumer":
                for name in programs.words:
                    consumers[name][0].process.kill()
            else:
                cluster.break_and_mend(fault, options.paused)
            ended = times[-1] + max(options.dead if fault == "dead" else SETTLE_S, time.time() - times[-1])
            if fault == "dead":
                time.sleep(max(0.0, ended - time.time()))
                cluster.ask("start", "dead")
            watch(producers, consumers, times[-1], ended, options.rate)
        for producer in producers.values():
            producer.process.kill()
        time.sleep(2)
        return [
            {
                name: figures(
                    producers[name],
                    consumers[name],
                    began,
                    began if number else 0.0,
                    divided,
                    until,
                    is_ordered=role == "orderly",
                )
                for name in programs.words
            }
            for number, (began, until) in enumerate(pairwise([*times, math.inf]))
        ]


def wait_flowing(producers: dict[str, Client], consumers: dict[str, list[Client]], queues: int) -> None:
    """Return when each client sends, and the consumers of each have divided its topic's `queues`."""
    deadline = time.time() + 240
    while not all(producers[name].of_kind("A") and are_divided(consumers[name], queues) for name in producers):
        if time.time() > deadline:
            state = {name: (len(producers[name].lines), [len(c.lines) for c in consumers[name]]) for name in producers}
            raise SystemExit(f"the clients do not send and receive: {state}")
        time.sleep(0.2)


def are_divided(consumers: list[Client], queues: int) -> bool:
    """Return whether all queues are read, and each consumer reads its share, by the last delivery of each queue.

    When a consumer joins, queues are handed to it, and the messages at which they change hands may be read twice.
    """
    latest: dict[str, tuple[int, int]] = {}
    for number, consumer in enumerate(consumers):
        for line in consumer.of_kind("G"):
            if len(line) > 5:
                latest[line[4]] = max(latest.get(line[4], (0, 0)), (int(line[3]), number))
    shares = Counter(number for _, number in latest.values())
    most, least = max(shares.values(), default=0), min(shares[number] for number in range(len(consumers)))
    return len(latest) == queues and most - least <= 1


def watch(
    producers: dict[str, Client], consumers: dict[str, list[Client]], began: float, ended: float, rate: int
) -> None:
    """Return when every client works again, and nothing is behind; after 150 s at the latest."""
    while time.time() < began + 150:
        time.sleep(0.5)
        if time.time() >= ended and all(is_well(producers[name], consumers[name], began, rate) for name in producers):
            return


def is_well(producer: Client, consumers: list[Client], began: float, rate: int) -> bool:
    now = time.time()
    if len(producer.latest("A", now - 3)) < 2 * rate:
        return False
    got = {line[1] for consumer in consumers for line in consumer.latest("G", began - 10)}
    return all(line[1] in got for line in producer.latest("A", began - 5) if int(line[2]) / 1e6 < now - 1)


def figures(
    producer: Client,
    consumers: list[Client],
    fault_at: float,
    since: float,
    divided: float,
    until: float,
    *,
    is_ordered: bool,
) -> dict[str, Any]:
    """Return what one client felt of a fault, from what happened at or after `since` and before `until` (seconds).

    Messages that are read again count from `divided` on.
    """
    acked = {int(line[1]): int(line[2]) / 1e6 for line in producer.of_kind("A")}
    failed = [line for line in producer.of_kind("F") if fault_at < int(line[2]) / 1e6 < until]
    times = sorted(at for at in acked.values() if fault_at - 0.5 < at < until)
    gap = max((later - earlier for earlier, later in pairwise(times)), default=float("nan"))
    delivered = sorted(
        (
            int(line[3]) / 1e6,
            int(line[1]),
            int(line[2]) / 1e6,
            line[4],
            int(line[5]),
        )  # when, number, sent, queue, offset
        for consumer in consumers
        for line in consumer.of_kind("G")
        if len(line) > 5
    )
    numbers: set[int] = set()
    copies: set[tuple[str, int]] = set()
    highest: dict[str, int] = {}
    late: dict[str, float] = {}  # queue: longest time from a send's first attempt
    late_once_acked: dict[str, float] = {}  # queue: longest time from an acknowledgement
    again: list[str] = []  # places of what was read again, and when
    counts = dict.fromkeys(SUMS, 0)
    for at, n, sent, queue, offset in delivered:
        if (queue, offset) in copies:
            what = "read_again"
        elif n in numbers:
            what = "stored_twice"
        else:
            what = ""
            if fault_at < at < until:
                late[queue] = max(late.get(queue, 0.0), at - sent)
                late_once_acked[queue] = max(late_once_acked.get(queue, 0.0), at - acked.get(n, at))
        if since <= at < until:
            if what == "read_again" and at >= divided:
                again.append(f"{queue} {offset} after {at - fault_at:.1f} s")
            elif what == "stored_twice":
                counts[what] += 1
                counts["twice_without_loss"] += not may_be_lost(sent, acked.get(n, math.inf), fault_at)
            if is_ordered and what != "read_again" and offset < highest.get(queue, -1):
                counts["disordered"] += 1  # its first delivery came after that of a later message of its queue
        numbers.add(n)
        copies.add((queue, offset))
        highest[queue] = max(highest.get(queue, -1), offset)
    counts["read_again"] = len(again)
    counts["undelivered"] = sum(since <= at < until for n, at in acked.items() if n not in numbers)
    by_queue = sorted(late.values()) or [float("nan")]
    by_queue_once_acked = sorted(late_once_acked.values()) or [float("nan")]
    two_thirds = math.ceil(len(by_queue) * 2 / 3) - 1
    return (
        counts
        | {
            "again": again[:AGAIN_SHOWN],
            "gap_s": round(gap, 3),
            "failed": len(failed),
            "failed_percent": round(100 * len(failed) / max(1, len(failed) + len(times)), 2),
            "failed_at_s": [
                round(int(line[2]) / 1e6 - fault_at, 1) for line in (*failed[:1], *failed[1:][-1:])
            ],  # first, last
            "why": Counter(" ".join(line[3:])[:160] for line in failed).most_common(2),
            "delivery_s": round(by_queue[-1], 3),
            "two_thirds_s": round(by_queue[two_thirds], 3),
            "two_thirds_once_acked_s": round(by_queue_once_acked[two_thirds], 3),
            "late_queues": {
                queue: [round(late[queue], 3), round(late_once_acked[queue], 3)]
                for queue in sorted(late)
                if late[queue] > LATE_S
            },
        }
    )


def may_be_lost(sent: float, acked: float, fault_at: float) -> bool:
    """Whether the answer to a send's first attempt may have been lost: it was under way at the fault, or took long."""
    return sent <= fault_at <= acked or acked - sent >= LOST_S


SPREADS = ("gap_s", "failed", "failed_percent", "delivery_s", "two_thirds_s", "two_thirds_once_acked_s")
SUMS = ("stored_twice", "twice_without_loss", "read_again", "undelivered", "disordered")


def summary(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """The figures of each client over all rounds."""
    result: dict[str, Any] = {}
    for name in rounds[0]:
        mine = [one[name] for one in rounds]
        result[name] = {what: spread([one[what] for one in mine]) for what in SPREADS}
        result[name] |= {what: sum(one[what] for one in mine) for what in SUMS}
        result[name]["again"] = [text for one in mine for text in one["again"]]
    return result


def spread(values: list[float]) -> dict[str, float]:
    return {"p50": round(statistics.median(values), 3), "max": max(values)}


def print_table(results: Results, rounds: int) -> None:
    print(f"p50/max of {rounds} rounds")
    print(
        "| fault | client | gap | failed sends | delivery | two thirds of the queues "
        "| the same from the acknowledgement | twice, of these without a lost answer, again, lost, disordered |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for fault, by_client in results.items():
        for client, felt in by_client.items():
            gap, failed, percent, *delays = (f"{felt[what]['p50']:g}/{felt[what]['max']:g}" for what in SPREADS)
            sums = ", ".join(str(felt[what]) for what in SUMS)
            late = " | ".join(f"{delay} s" for delay in delays)
            print(f"| {fault} | {client} | {gap} s | {failed} ({percent} %) | {late} | {sums} |")


def run_faults(
    groups: int, faults: list[str], programs: Programs, scratch: Path, options: argparse.Namespace
) -> Results:
    """Run all rounds of these faults on one cluster; return the figures by fault and client."""
    cluster = Cluster(scratch / f"cluster-{groups}", options.mode, options.conf, groups, 1 + options.dead_nameserver)
    results: Results = {}
    try:
        if options.dead_nameserver:
            cluster.wait_whole()
            cluster.ask("kill", cluster.ask("status")["nameservers"][0]["name"])
        for fault in faults:
            rounds: list[dict[str, dict[str, Any]]] = []
            while len(rounds) < options.rounds:
                cluster.wait_whole()
                # Go's client takes up to a minute to hand queues that it reads in order to a consumer that joins.
                count = 1 if fault == "consumer" else min(options.faults_a_start, options.rounds - len(rounds))
                rounds += run_rounds(cluster, programs, fault, count, options)
                for number, one in enumerate(rounds[-count:], len(rounds) - count + 1):
                    print(f"{fault} {number}: {json.dumps(one)}", file=sys.stderr, flush=True)
            results[fault] = summary(rounds)
    finally:
        cluster.close()
    return results


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", default=",".join(FAULTS), help="one or several, with commas between")
    parser.add_argument("--rounds", type=int, default=20, help="of each fault")
    parser.add_argument("--groups", type=int, help="Raft groups over the same machines; else 3 for dead, 1 for others")
    parser.add_argument("--mode", choices=("raft", "controller"), default="raft", help="who elects the leader (raft)")
    parser.add_argument("--consumers", type=int, default=1, help="of each group; for the fault consumer two")
    parser.add_argument("--orderly", action="store_true", help="consumers read in order, whatever breaks")
    parser.add_argument("--dead-nameserver", action="store_true", help="the first one of two is dead")
    parser.add_argument("--clients", default="java,go,ours")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rate", type=int, default=RATE, help="sends a second of each client")
    parser.add_argument("--warm", type=float, default=WARM_S, help="seconds before the fault")
    parser.add_argument(
        "--faults-a-start", type=int, default=1, help="faults that the same clients feel, one after the other"
    )
    parser.add_argument("--rest", type=float, default=REST_S, help="seconds between two of these, at least")
    parser.add_argument("--dead", type=float, default=DEAD_S, help="seconds for which the machine is dead")
    parser.add_argument("--paused", type=float, default=PAUSED_S, help="seconds for which the process stands still")
    parser.add_argument("--queues", type=int, help="of each topic, on each broker name; else as many as a send makes")
    options = parser.parse_args()
    options.faults = options.fault.split(",")
    if options.mode != "raft" and (options.groups or "dead" in options.faults):
        parser.error("several groups are of mode raft")
    if unknown := set(options.faults) - set(FAULTS):
        parser.error(f"--fault {', '.join(sorted(unknown))}: not one of {', '.join(FAULTS)}")
    return options


def main() -> int:
    """Run the rounds; 1 if anything acknowledged was not delivered."""
    options = read_options()
    scratch = Path(tempfile.mkdtemp(prefix="ledgermq-clients-"))
    results: Results = {}
    try:
        programs = Programs(scratch, options.clients.split(","))
        for groups, faults in groupby(options.faults, lambda fault: options.groups or GROUPS.get(fault, 1)):
            results |= run_faults(groups, list(faults), programs, scratch, options)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print_table(results, options.rounds)
    machine = {"cpus": os.cpu_count(), "load_average": os.getloadavg()}
    print(json.dumps({"rounds": options.rounds, "faults": results, "machine": machine}))
    return 1 if any(felt["undelivered"] for by_client in results.values() for felt in by_client.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
