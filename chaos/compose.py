"""A cluster of docker-compose.yml for the demo, broken and mended from outside: `python -m chaos.compose VERB`.

    up         build the image, start everything, wait for all to be healthy; refused where one is there
    describe   print the JSON object that `ledgermq demo --attach` and `ledgermq drill --attach` take
    kill, stop, start, pause, resume SERVICE     SIGKILL, SIGTERM, start it again, SIGSTOP, SIGCONT
    digest     hash each broker's log up to the confirm offset on which all agree
    logs, down the last lines of every service; remove containers and volumes

The cluster has a compose project name of its own, so that `down` removes what `up` made and never the containers
or volumes of a cluster that somebody started from the same file. Works with `docker compose` and the older
`docker-compose`.
"""

import argparse
import contextlib
import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_PROJECT = Path(__file__).resolve().parent.parent
_BROKERS = {"127.0.0.1:10911": "broker-0", "127.0.0.1:10921": "broker-1", "127.0.0.1:10931": "broker-2"}
_NAME = "ledgermq-compose-demo"
_NAMESRV = "127.0.0.1:9876;127.0.0.1:9877"
_HEALTHY_LIMIT_S = 120.0
_AGREE_LIMIT_S = 60.0
_DOCKER_WORDS = {
    "kill": ("kill", "--signal", "KILL"),
    "stop": ("stop", "--time", "30"),
    "start": ("start",),
    "pause": ("kill", "--signal", "STOP"),  # `docker pause` needs a freezer, which some engines lack
    "resume": ("kill", "--signal", "CONT"),
}
"""The engine's words for each verb; the container follows."""
_NODE_IDS = {"broker-0": "n0", "broker-1": "n1", "broker-2": "n2"}


class ComposeError(Exception):
    """The engine or a container did not do its part; the text is for the user."""


def compose_command() -> list[str]:
    """The compose program of this machine, for this project's file.

    Raises:
        ComposeError: there is none, or no engine answers.
    """
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        raise ComposeError("no Docker engine answers here (docker info failed)")
    for words in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(words[0]) and subprocess.run([*words, "version"], capture_output=True).returncode == 0:
            return [*words, "-p", _NAME, "-f", str(_PROJECT / "docker-compose.yml")]
    raise ComposeError("neither `docker compose` nor docker-compose is installed")


class ComposeCluster:
    """The services of docker-compose.yml.

    Args:
        command: see `compose_command`.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)

    def up(self) -> None:
        """Build, start, and wait for every health check; what a failed start made is removed again.

        Raises:
            ComposeError: containers or volumes of the project are there already (nothing is touched), a step failed,
                or a service was not healthy in time.
        """
        if there := self._made_before():
            raise ComposeError(
                f"{', '.join(there)} exist already: an earlier demo left them, or one is running;"
                " remove them with `python -m chaos.compose down`"
            )
        try:
            self._start_healthy()
        except BaseException:
            with contextlib.suppress(ComposeError):
                self.logs()
            self.down()
            raise

    def _start_healthy(self) -> None:
        self._compose("up", "-d", "--build")
        deadline = time.monotonic() + _HEALTHY_LIMIT_S
        while waiting := self._unhealthy():
            if time.monotonic() > deadline:
                raise ComposeError(f"not healthy within {_HEALTHY_LIMIT_S:g} s: {', '.join(waiting)}")
            time.sleep(0.5)

    def describe(self) -> dict[str, object]:
        """What `--attach` needs."""
        me = shlex.join([sys.executable, "-m", "chaos.compose"])
        here = f"cd {shlex.quote(str(_PROJECT))} && {me}"
        return {
            "namesrv": _NAMESRV,
            "nodes": [{"name": name, "address": address} for address, name in _BROKERS.items()],
            "nameserver": "namesrv-0",
            "verbs": {verb: f"{here} {verb}" for verb in _DOCKER_WORDS},
            "checks": {"digest": f"{here} digest"},
        }

    def act(self, verb: str, service: str) -> None:
        """Carry out one of `_DOCKER_WORDS`.

        Raises:
            ComposeError: there is no such service, or the engine refuses.
        """
        _docker(*_DOCKER_WORDS[verb], self._container(service))

    def digest(self) -> dict[str, object]:
        """One hash a broker, taken once all have the same confirm offset.

        Raises:
            ComposeError: they did not agree in time, or a container did not answer.
        """
        deadline = time.monotonic() + _AGREE_LIMIT_S
        while True:
            is_last = time.monotonic() > deadline
            try:
                nodes = [self._digest_of(service) for service in _BROKERS.values()]
            except ComposeError:
                if is_last:
                    raise
                nodes = []  # a broker that has just been started
            if len({node["end"] for node in nodes}) == 1 or (nodes and is_last):
                return {"nodes": nodes}
            time.sleep(0.5)

    def logs(self) -> None:
        """Print the last lines of every service."""
        self._compose("logs", "--tail", "40")

    def down(self) -> None:
        """Remove containers, network and volumes."""
        self._compose("down", "--volumes")

    def _digest_of(self, service: str) -> dict[str, object]:
        folder = f"/var/lib/ledgermq/store/dledger-{_NODE_IDS[service]}/data"
        words = ("ledgermq", "log", "digest", folder, "--node", "http://127.0.0.1:8088")
        answer: dict[str, object] = json.loads(_docker("exec", self._container(service), *words))
        return {"name": service, **answer}

    def _container(self, service: str) -> str:
        """The id of the service's container; asked of the engine, which is faster than compose."""
        labels = {"com.docker.compose.project": _NAME, "com.docker.compose.service": service}
        filters = [word for label, value in labels.items() for word in ("--filter", f"label={label}={value}")]
        found = _docker("ps", "--all", "--quiet", *filters).split()
        if len(found) != 1:
            raise ComposeError(f"{service} has {len(found)} containers, not one; is the cluster up?")
        return found[0]

    def _made_before(self) -> list[str]:
        """Names of the project's containers and volumes, which are there before `up`."""
        mine = ("--filter", f"label=com.docker.compose.project={_NAME}")
        containers = _docker("ps", "--all", *mine, "--format", "{{.Names}}")
        return (containers + _docker("volume", "ls", *mine, "--format", "{{.Name}}")).split()

    def _unhealthy(self) -> list[str]:
        services = ["namesrv-0", "namesrv-1", *_BROKERS.values()]
        return [name for name in services if self._inspect(name, "{{.State.Health.Status}}") != "healthy"]

    def _inspect(self, service: str, form: str) -> str:
        return _docker("inspect", "--format", form, self._container(service)).strip()

    def _compose(self, *words: str) -> None:
        """Run compose; what it says goes to standard error."""
        done = subprocess.run([*self._command, *words], stdin=subprocess.DEVNULL, stdout=sys.stderr)
        if done.returncode:
            raise ComposeError(f"compose {' '.join(words)}: exit {done.returncode}")


def _docker(*words: str) -> str:
    """Run `docker WORDS`; what it printed.

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
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("up", "describe", "digest", "logs", "down"):
        verbs.add_parser(verb)
    for verb in _DOCKER_WORDS:
        verbs.add_parser(verb).add_argument("service", metavar="SERVICE")
    arguments = parser.parse_args(words)
    try:
        if (answer := _carry_out(ComposeCluster(compose_command()), arguments)) is not None:
            print(json.dumps(answer))
    except ComposeError as error:
        print(f"compose: {error}", file=sys.stderr)
        return 1
    return 0


def _carry_out(cluster: ComposeCluster, arguments: argparse.Namespace) -> object:
    if arguments.verb in _DOCKER_WORDS:
        cluster.act(arguments.verb, arguments.service)
        return None
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
    sys.exit(main(sys.argv[1:]))
