"""A broker and a nameserver, ours or Java's, and mqadmin beside them."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.cluster.processes import clusters
from tests.jvm import PEERS, rocketmq_jars
from tests.limits import STRANGER_WAIT_S
from tests.mqadmin.driver import Driver

IS_JAVA = os.environ.get("MQADMIN_AGAINST") == "java"
"""`make mqadmin-java`: the same commands on RocketMQ's own broker; with `--rewrite` what it prints is kept."""
MODE = os.environ.get("MQADMIN_MODE", "standalone")
USER = os.environ.get("MQADMIN_USER", "")
"""`name:secret` of a super user: the cluster asks who its clients are, and all commands are signed."""
_SETTINGS = ("traceTopicEnable=true", "transactionCheckMax=15")


@pytest.fixture(scope="session")
def jars() -> str:
    """The class path of mqadmin 5.3.3."""
    return f"{rocketmq_jars()}/*"


_AUTH = "org.apache.rocketmq.auth"
_JAVA_USERS = (
    f"authenticationMetadataProvider={_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    f"authorizationMetadataProvider={_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
)
"""RocketMQ keeps users and policies only when it is told how."""


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """`namesrv`, `address` of the one who takes messages, `broker`, `cluster`, `work`."""
    folder = tmp_path_factory.mktemp("mqadmin")
    with _java(folder) if IS_JAVA else _ours(folder) as (namesrv, address):
        yield {
            "namesrv": namesrv,
            "address": address,
            "broker": "broker-a",
            "cluster": "DefaultCluster",
            "work": str(folder / "work"),
        }


@pytest.fixture(scope="session")
def driver(jars: str, places: Mapping[str, str]) -> Iterator[Driver]:
    """mqadmin, and the files that it reads."""
    work = Path(places["work"])
    with contextlib.closing(Driver(jars, places["namesrv"], work)) as driver:
        queues = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        topics = [{"topicName": name, **queues} for name in ("MqaListA", "MqaListB")]
        (work / "topics.json").write_text(json.dumps(topics))
        (work / "groups.json").write_text(json.dumps([{"groupName": "MqaListGroup", "retryMaxTimes": 3}]))
        yield driver


@contextlib.contextmanager
def _ours(folder: Path) -> Iterator[tuple[str, str]]:
    settings = [*_SETTINGS, "insecureRegistration=true", "insecureSettings=true"]  # as RocketMQ's nodes
    if USER:
        name, _, secret = USER.partition(":")
        settings += ["authenticationEnabled=true", "authorizationEnabled=true"]
        settings.append(f"initAuthenticationUser={json.dumps({'username': name, 'password': secret})}")
    words = [word for setting in settings for word in ("--conf", setting)]
    with clusters(folder) as start:
        answer = start("--mode", MODE, *words).description
        yield answer["namesrv"], _master(answer)


def _master(answer: Mapping[str, list[Mapping[str, str]]]) -> str:
    return next(node["address"] for node in answer["nodes"] if node["role"] == "master")


@contextlib.contextmanager
def _java(folder: Path) -> Iterator[tuple[str, str]]:
    words = [word for setting in (*_SETTINGS, *_JAVA_USERS) for word in ("--conf", setting)]
    tool = [sys.executable, str(PEERS / "rocketmq")]
    where = ["--dir", str(folder / "java")]
    up = [*tool, "up", "single", *where, "--base-port", "26500", "--heap", "512m", *words]
    done = subprocess.run(up, capture_output=True, text=True, timeout=STRANGER_WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        answer = json.loads(done.stdout)
        yield answer["namesrv"], _master(answer)
    finally:
        subprocess.run([*tool, "down", *where], capture_output=True, timeout=STRANGER_WAIT_S, check=False)
