"""A cluster of Apache RocketMQ 5.3.3, up for a block: its scores are what ours are judged by.

Started by `benchmarks/peers/rocketmq`. That launcher tries its clusters with unsigned requests, and knows one broker
name; so a broker gets its ACL, and a second broker its life, after the first start.
"""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.interop.scoring.suite import (
    PROJECT,
    SECRET,
    SETTINGS,
    USER,
    NotRunError,
    Target,
    await_brokers,
    fault_options,
)
from tests.ports import free_block

LAUNCHER = PROJECT / "benchmarks" / "peers" / "rocketmq"
PORTS = 75  # a block, as the launcher takes them
# The original's flow control is not what is measured on a busy machine.
PATIENT = {"waitTimeMillsInSendQueue": "3000", "mappedFileSizeCommitLog": "134217728"}
_PROVIDERS = "org.apache.rocketmq.auth.{0}.provider.{1}{2}"


@contextlib.contextmanager
def up(kind: str) -> Iterator[Target]:
    """The real counterpart of this kind.

    Raises:
        NotRunError: it did not come up.
    """
    work = Path(tempfile.mkdtemp(prefix="ledgermq-real."))
    launch = [sys.executable, str(LAUNCHER)]
    words = [*launch, "up", "raft" if kind == "dledger" else "single", "--dir", str(work / "cluster"), "--heap", "512m"]
    words += ["--base-port", str(free_block(PORTS))]
    for key, value in (SETTINGS | PATIENT).items():
        words += ["--conf", f"{key}={value}"]
    done = subprocess.run(words, capture_output=True, text=True)
    try:
        if done.returncode != 0:
            raise NotRunError(f"RocketMQ did not come up: {done.stderr}")
        namesrv = json.loads(done.stdout)["namesrv"]
        with _as_kind(kind, work / "cluster", namesrv) as options:
            yield Target(namesrv, ("--upstream", *options))
    finally:
        subprocess.run([*launch, "down", "--fast", "--dir", str(work / "cluster")], capture_output=True)
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _as_kind(kind: str, directory: Path, namesrv: str) -> Iterator[tuple[str, ...]]:
    """What the kind adds to a cluster that runs; the options of the suite."""
    if kind == "single-acl":
        _switch_acl_on(directory, namesrv)
        yield ("--acl", f"{USER}:{SECRET}")
    elif kind == "single-tls":
        yield ("--tls",)  # a Java broker takes TLS, with a certificate that it makes up, unless told otherwise
    elif kind == "two-brokers":
        with _second_broker(directory, namesrv):
            yield _fault_options(directory)
    else:
        yield _fault_options(directory) if kind == "dledger" else ()


def _fault_options(directory: Path) -> tuple[str, ...]:
    rocketmq = f"{sys.executable} {LAUNCHER}"
    show = "import json, sys; [print(n['address']) for n in json.load(sys.stdin)['nodes'] if n['kind'] == 'broker']"
    return fault_options(
        f'{rocketmq} status --dir {directory} | {sys.executable} -c "{show}"',
        f"{rocketmq} kill {{address}} --dir {directory}",
        f"{rocketmq} start {{address}} --dir {directory}",
    )


def _switch_acl_on(directory: Path, namesrv: str) -> None:
    """Stop the broker, give it users and rights, start it again."""
    launch = [sys.executable, str(LAUNCHER)]
    subprocess.run([*launch, "kill", "broker-0", "--dir", str(directory)], check=True, capture_output=True)
    credentials = {"accessKey": USER, "secretKey": SECRET}
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps({"username": USER, "password": SECRET}),
        "innerClientAuthenticationCredentials": json.dumps(credentials),
    }
    for what in ("authentication", "authorization"):
        settings[f"{what}Provider"] = _PROVIDERS.format(what, "Default", f"{what.title()}Provider")
        settings[f"{what}MetadataProvider"] = _PROVIDERS.format(what, "Local", f"{what.title()}MetadataProvider")
    with (directory / "broker-0" / "broker.conf").open("a") as conf:
        conf.write("".join(f"{key}={value}\n" for key, value in settings.items()))
    subprocess.run([*launch, "start", "broker-0", "--dir", str(directory)], check=True, capture_output=True)
    await_brokers(namesrv, 1)


@contextlib.contextmanager
def _second_broker(directory: Path, namesrv: str) -> Iterator[None]:
    """broker-b, with the command line and settings of the first broker, in a home of its own."""
    first = _node(directory, "broker-0")
    home, port = directory / "broker-b", free_block(PORTS)
    home.mkdir()
    settings = dict(line.split("=", 1) for line in Path(first["home"], "broker.conf").read_text().splitlines())
    settings |= {"brokerName": "broker-b", "listenPort": str(port + 2), "haListenPort": str(port + 3)}
    settings["storePathRootDir"] = str(home / "store")
    (home / "broker.conf").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    words = [word.replace(first["home"], str(home)) for word in first["argv"]]
    with (home / "console.log").open("w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
    try:
        await_brokers(namesrv, 2)
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _node(directory: Path, name: str) -> dict[str, Any]:
    nodes = json.loads((directory / "cluster.json").read_text())["nodes"]
    found: dict[str, Any] = next(node for node in nodes if node["name"] == name)
    return found
