"""A cluster of docker-compose.yml, broken and repaired from outside: `python -m chaos.compose [--profile P] VERB`.

    up         build the image, start everything, wait until all is healthy; refused if the project has containers
    describe   print the JSON object that `ledgermq demo --attach` and `ledgermq drill --attach` take
    kill, stop, start, pause, resume SERVICE     SIGKILL, SIGTERM, start it again, SIGSTOP, SIGCONT
    unplug SERVICE                               disconnect its container from the network, until `heal`
    wipe SERVICE                                 delete what it stored; it must be down
    cut LINK..., delay MS LINK..., heal [LINK...]  profile chaos: connections between brokers, by Toxiproxy
    digest     hash each broker's log up to the confirm offset on which all agree
    logs, down the last lines of every service; remove containers and volumes

Without `--profile` the cluster is the group of the quick start, for the demo. Profile chaos is a Raft group whose
members reach each other through Toxiproxy only; sync, async and controller are the brokers of these modes. Each has a
compose project name of its own, so that `down` removes what `up` made and never the containers or volumes of a cluster
that somebody started from the same file. Works with `docker compose` and the older `docker-compose`.
"""

import argparse
import contextlib
import json
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chaos import command
from chaos.fabric.contract import Link
from node.errors import CommandError

_PROJECT = Path(__file__).resolve().parent.parent
_INSTALL = "apt install docker.io docker-compose"
_NAMESRV = "127.0.0.1:9876;127.0.0.1:9877"
_NAMESERVER = "namesrv-0"
_HEALTHY_LIMIT_S = 120.0
_AGREE_LIMIT_S = 60.0
_DOCKER_WORDS = {
    "kill": ("kill", "--signal", "KILL"),
    "stop": ("stop", "--time", "30"),
    "start": ("start",),
    "pause": ("kill", "--signal", "STOP"),  # `docker pause` needs a freezer, which some engines lack
    "resume": ("kill", "--signal", "CONT"),
}
"""The words of the Docker command line for each verb; the container follows."""
_LINK_VERBS = ("cut", "delay")
_DATA = "/var/lib/ledgermq"
_IMAGE = "ledgermq:dev"


@dataclass(frozen=True, slots=True)
class ServiceSet:
    """The services of the file that make up one cluster.

    Attributes:
        project: the compose project's name.
        brokers: the services of one broker name, by the address for clients; of a Raft group in the order of its ids.
        profile: of the file; empty: all services without a profile are started.
        mode: how the brokers replicate.
        helpers: further services of the profile.
        links_api: address of Toxiproxy; empty: there is none.
    """

    project: str
    brokers: Mapping[str, str]
    profile: str = ""
    mode: str = "raft"
    helpers: tuple[str, ...] = ()
    links_api: str = ""

    @property
    def services(self) -> list[str]:
        """The services that `up` names; compose also starts their dependencies."""
        return [*self.helpers, *self.brokers.values()] if self.profile else []

    @property
    def command(self) -> str:
        """The command line for this cluster; a verb follows."""
        return "python -m chaos.compose" + (f" --profile {self.profile}" if self.profile else "")

    @property
    def links(self) -> list[Link]:
        """The connections between brokers, as conf/compose/toxiproxy.json has them."""
        names = list(self.brokers.values()) if self.links_api else []
        return [
            Link(one, other, f"127.0.0.1:141{i}{j}", f"{other}:40911", b"?" * 64)
            for i, one in enumerate(names)
            for j, other in enumerate(names)
            if i != j
        ]


DEMO = ServiceSet(
    "ledgermq-compose-demo",
    {"127.0.0.1:10911": "broker-0", "127.0.0.1:10921": "broker-1", "127.0.0.1:10931": "broker-2"},
)
CHAOS = ServiceSet(
    "ledgermq-compose-chaos",
    {"127.0.0.1:11071": "chaos-0", "127.0.0.1:11081": "chaos-1", "127.0.0.1:11091": "chaos-2"},
    "chaos",
    helpers=("toxiproxy",),
    links_api="127.0.0.1:8474",
)
_PAIRS = [
    ServiceSet(f"ledgermq-compose-{mode}", {master: f"{mode}-master", slave: f"{mode}-slave"}, mode, mode)
    for mode, master, slave in (
        ("sync", "127.0.0.1:10941", "127.0.0.1:10951"),
        ("async", "127.0.0.1:10961", "127.0.0.1:10971"),
    )
]
_ELECTED = ServiceSet(
    "ledgermq-compose-controller",
    {"127.0.0.1:10981": "elected-0", "127.0.0.1:10991": "elected-1", "127.0.0.1:11001": "elected-2"},
    "controller",
    "controller",
    helpers=("controller-0", "controller-1", "controller-2"),
)
DRILLED = {shape.mode: shape for shape in (CHAOS, *_PAIRS, _ELECTED)}
"""The clusters of drills, by mode."""
_BY_PROFILE = {shape.profile: shape for shape in (DEMO, *DRILLED.values())}


class ComposeError(Exception):
    """Docker or a container failed; the text is for the user."""


def compose_command(shape: ServiceSet = DEMO) -> list[str]:
    """Return the words that run compose on this project's file.

    Raises:
        ComposeError: there is none, the file is not here, or no engine answers.
    """
    if not (_PROJECT / "docker-compose.yml").is_file():
        raise ComposeError("docker-compose.yml is not here: containers need a clone of the project")
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        raise ComposeError(f"no Docker engine answers here (docker info failed): start it, or {_INSTALL}")
    for words in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(words[0]) and subprocess.run([*words, "version"], capture_output=True).returncode == 0:
            return [*words, "-p", shape.project, "-f", str(_PROJECT / "docker-compose.yml")]
    raise ComposeError(f"neither `docker compose` nor docker-compose is installed: {_INSTALL}")


class ComposeCluster:
    """The services of docker-compose.yml.

    Args:
        command: see `compose_command`.
    """

    def __init__(self, command: Sequence[str], shape: ServiceSet = DEMO) -> None:
        self._command = list(command)
        self._shape = shape
        self._running: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def up(self) -> None:
        """Build, start, and wait for every health check; if that fails, remove what was started.

        Raises:
            ComposeError: containers or volumes of the project exist already (nothing is changed), a step failed, or a
                service was not healthy in time.
        """
        if there := self._made_before():
            raise ComposeError(
                f"{', '.join(there)} exist already: an earlier run left them, or one is going on;"
                f" remove them with `{self._command_here} down`"
            )
        try:
            self._start_healthy()
        except BaseException:
            with contextlib.suppress(ComposeError):
                self.logs()
            self.down()
            raise

    def _start_healthy(self) -> None:
        # not `up --build`: the older compose builds an image once for each of its services
        self._compose("build", _NAMESERVER, *(("toxiproxy",) if self._shape.links_api else ()))
        self._compose("up", "-d", "--no-build", *self._shape.services)
        deadline = time.monotonic() + _HEALTHY_LIMIT_S
        while waiting := self._unhealthy():
            if time.monotonic() > deadline or self._is_stopped:
                raise ComposeError(f"not healthy within {_HEALTHY_LIMIT_S:g} s: {', '.join(waiting)}")
            time.sleep(0.5)

    def interrupt(self) -> None:
        """End a start that runs in another thread, and remove what it started."""
        self._is_stopped = True
        if self._running is not None:
            self._running.terminate()

    def describe(self) -> dict[str, object]:
        """Return the description that `--attach` takes."""
        verbs = [*_DOCKER_WORDS, "unplug", "wipe", "heal", *(_LINK_VERBS if self._shape.links_api else ())]
        here = self._command_here
        is_raft, is_elected = self._shape.mode == "raft", self._shape.mode in ("raft", "controller")
        nodes = [{"name": name, "address": address} for address, name in self._shape.brokers.items()]
        for number, node in enumerate(nodes if is_elected else ()):
            node["target"] = f"n{number}" if is_raft else node["address"]
        return {
            "namesrv": _NAMESRV,
            "fabric": "compose",
            "mode": self._shape.mode,
            "nodes": nodes,
            "nameserver": _NAMESERVER,
            "verbs": {verb: f"{here} {verb}" for verb in verbs},
            "checks": {"digest": f"{here} digest"},
        }

    def act(self, verb: str, service: str) -> None:
        """Carry out one of `_DOCKER_WORDS`.

        Raises:
            ComposeError: there is no such service, or the engine refuses.
        """
        _docker(*_DOCKER_WORDS[verb], self._container(service))

    def unplug(self, service: str) -> str:
        """Disconnect a container from the network of the project; return the proof.

        Raises:
            ComposeError: there is no such service, or the engine refuses.
        """
        _docker("network", "disconnect", self._network, self._container(service))
        if self._network in self._networks_of(service):
            raise ComposeError(f"{service} is still in {self._network}")
        return f"{service} is in no network"

    def wipe(self, service: str) -> str:
        """Delete what a service that is down has stored; return the proof.

        Raises:
            ComposeError: it runs, or the engine refuses.
        """
        container = self._container(service)
        if _docker("inspect", "--format", "{{.State.Running}}", container).strip() != "false":
            raise ComposeError(f"{service} runs: it must be down")
        words = f"find {_DATA} -mindepth 1 -delete; ls -A {_DATA} | wc -l"
        left = _docker("run", "--rm", "--volumes-from", container, "--entrypoint", "sh", _IMAGE, "-c", words).strip()
        if left != "0":
            raise ComposeError(f"{left} files are left in {_DATA} of {service}")
        return f"{_DATA} of {service} is empty"

    def change_links(self, verb: str, words: Sequence[str]) -> str:
        """Cut, delay or heal links; `heal` without words undoes everything, unplugged containers too. Return the proof.

        Raises:
            ComposeError: Toxiproxy does not answer, there is no such link, or no effect was seen.
        """
        if self._shape.links_api and (told := self._change_proxies(verb, words)):
            return told
        services = words or [*self._shape.brokers.values()]
        back = [service for service in services if not self._networks_of(service)]
        for service in back:
            _docker("network", "connect", "--alias", service, self._network, self._container(service))
        return f"back in the network: {', '.join(back) or 'nobody had left it'}"

    def _change_proxies(self, verb: str, words: Sequence[str]) -> str:
        """Change the proxies; return the proof, or an empty text if containers must be healed, too."""
        from chaos.fabric.links import Links

        try:
            links = Links(self._shape.links_api, self._shape.links)
            links.adopt()
            if verb == "cut":
                return links.cut(words)
            if verb == "delay":
                return links.delay(words[1:], int(words[0]))
            if words and ">" in words[0]:
                return links.heal(words)
            if not words:
                links.heal_all()
        except (CommandError, ValueError, IndexError) as error:
            raise ComposeError(str(error)) from error
        return ""

    def digest(self) -> dict[str, object]:
        """Hash each broker's log once all have the same confirm offset; return the object to print.

        Raises:
            ComposeError: they did not agree in time, or a container did not answer.
        """
        deadline = time.monotonic() + _AGREE_LIMIT_S
        while True:
            is_last = time.monotonic() > deadline
            try:
                nodes = [self._digest_of(*one) for one in enumerate(self._shape.brokers.values())]
            except ComposeError:
                if is_last:
                    raise
                nodes = []  # a broker may just have been started
            if len({node["end"] for node in nodes}) == 1 or (nodes and is_last):
                return {"nodes": nodes}
            time.sleep(0.5)

    def logs(self) -> None:
        """Print the last lines of every service."""
        self._compose("logs", "--tail", "40")

    def down(self) -> None:
        """Remove containers, network and volumes; neither signals nor Ctrl-C interrupt that."""
        with undisturbed():
            self._compose("down", "--volumes", has_own_session=True)

    @property
    def _command_here(self) -> str:
        """The command line for this cluster, from any folder; a verb follows."""
        me = self._shape.command.replace("python", shlex.quote(sys.executable), 1)
        return f"cd {shlex.quote(str(_PROJECT))} && {me}"

    @property
    def _network(self) -> str:
        return f"{self._shape.project}_default"

    def _networks_of(self, service: str) -> list[str]:
        return self._inspect(service, "{{range $name, $_ := .NetworkSettings.Networks}}{{$name}} {{end}}").split()

    def _digest_of(self, member: int, service: str) -> dict[str, object]:
        folder = f"{_DATA}/store/" + (f"dledger-n{member}/data" if self._shape.mode == "raft" else "commitlog")
        words = ("ledgermq", "log", "digest", folder, "--node", "http://127.0.0.1:8088")
        answer: dict[str, object] = json.loads(_docker("exec", self._container(service), *words))
        return {"name": service, **answer}

    def _container(self, service: str) -> str:
        """Return the id of the service's container; asked of the engine, which is faster than compose."""
        labels = {"com.docker.compose.project": self._shape.project, "com.docker.compose.service": service}
        filters = [word for label, value in labels.items() for word in ("--filter", f"label={label}={value}")]
        found = _docker("ps", "--all", "--quiet", *filters).split()
        if len(found) != 1:
            raise ComposeError(f"{service} has {len(found)} containers, not one; is the cluster up?")
        return found[0]

    def _made_before(self) -> list[str]:
        """Return the names of the project's containers and volumes that exist before `up`."""
        mine = ("--filter", f"label=com.docker.compose.project={self._shape.project}")
        containers = _docker("ps", "--all", *mine, "--format", "{{.Names}}")
        return (containers + _docker("volume", "ls", *mine, "--format", "{{.Name}}")).split()

    def _unhealthy(self) -> list[str]:
        services = [_NAMESERVER, "namesrv-1", *self._shape.brokers.values()]
        return [name for name in services if self._inspect(name, "{{.State.Health.Status}}") != "healthy"]

    def _inspect(self, service: str, form: str) -> str:
        return _docker("inspect", "--format", form, self._container(service)).strip()

    def _compose(self, *words: str, has_own_session: bool = False) -> None:
        """Run compose; its output goes to standard error."""
        with subprocess.Popen(
            [*self._command, *words],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=has_own_session,
        ) as self._running:
            try:
                code = self._running.wait()
            except BaseException:
                self._running.terminate()
                raise
        if code:
            raise ComposeError(f"compose {' '.join(words)}: exit {code}")


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM within the block; only the main thread gets them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _docker(*words: str) -> str:
    """Run `docker WORDS`; return its output.

    Raises:
        ComposeError: it failed; the text has its output.
    """
    done = subprocess.run(["docker", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise ComposeError(f"docker {' '.join(words)}: exit {done.returncode} {done.stderr.strip()}")
    return done.stdout


def main(words: Sequence[str]) -> int:
    """Carry out one verb; JSON on standard output if the verb has a result."""
    parser = argparse.ArgumentParser(prog="chaos.compose", description="The cluster of docker-compose.yml.")
    parser.add_argument("--profile", choices=[one for one in _BY_PROFILE if one], default="", help="of the file")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("up", "describe", "digest", "logs", "down"):
        verbs.add_parser(verb)
    for verb in (*_DOCKER_WORDS, "unplug", "wipe"):
        verbs.add_parser(verb).add_argument("service", metavar="SERVICE")
    for verb in ("cut", "delay", "heal"):
        verbs.add_parser(verb).add_argument("words", nargs="*", metavar="WORD")
    arguments = parser.parse_args(words)
    try:
        shape = _BY_PROFILE[arguments.profile]
        if (answer := _carry_out(ComposeCluster(compose_command(shape), shape), arguments)) is not None:
            print(answer if isinstance(answer, str) else json.dumps(answer))
    except ComposeError as error:
        print(f"compose: {error}", file=sys.stderr)
        return 1
    return 0


def _carry_out(cluster: ComposeCluster, arguments: argparse.Namespace) -> object:
    if arguments.verb in _DOCKER_WORDS:
        cluster.act(arguments.verb, arguments.service)
        return None
    if arguments.verb in ("unplug", "wipe"):
        return cluster.unplug(arguments.service) if arguments.verb == "unplug" else cluster.wipe(arguments.service)
    if arguments.verb in (*_LINK_VERBS, "heal"):
        return cluster.change_links(arguments.verb, arguments.words)
    plain: dict[str, Callable[[], object]] = {
        "up": cluster.up,
        "describe": cluster.describe,
        "digest": cluster.digest,
        "logs": cluster.logs,
        "down": cluster.down,
    }
    return plain[arguments.verb]()


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, lambda number, _: sys.exit(128 + number)
    )  # as an exception: `up` removes what it made
    command.run(lambda: main(sys.argv[1:]))
