"""A conversation with a controller: every request of 904 and 1001 to 1018, good and bad, in one fixed order.

`tests/golden/controller/answers.json` has what RocketMQ 5.3.3's controller (one, with DLedger) answered; recorded by
`RECORD=1 MIXED=all pytest tests/mixed/test_java_controllers.py`.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode as Code
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.lenient_json import loads
from tests.limits import WAIT_S

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "controller" / "answers.json"
NAME, OTHER, CLUSTER, UNKNOWN = "broker-a", "broker-b", "c", "broker-x"


class Step(NamedTuple):
    """One request: what it asks, its code, its header fields and its body."""

    what: str
    code: int
    ext: dict[str, str]
    body: bytes = b""


def _of(name: str, **fields: object) -> dict[str, str]:
    return {"clusterName": CLUSTER, "brokerName": name} | {key: str(value) for key, value in fields.items()}


def _apply(number: int, code: str, name: str = NAME) -> dict[str, str]:
    return _of(name, appliedBrokerId=number, registerCheckCode=code)


def _register(number: int, name: str = NAME) -> dict[str, str]:
    return _of(name, brokerId=number, brokerAddress=f"127.0.0.1:{20000 + number}")


def _beat(number: int) -> dict[str, str]:
    fields: dict[str, object] = {"brokerAddr": f"127.0.0.1:{20000 + number}", "brokerId": number, "epoch": 1}
    fields |= {"maxOffset": 100, "confirmOffset": 100, "heartbeatTimeoutMills": 600_000, "electionPriority": number}
    return _of(NAME, **fields)


def _elect(number: int, *, designated: bool = False, name: str = NAME) -> dict[str, str]:
    return _of(name, brokerId=number, designateElect=str(designated).lower(), invokeTime=1)


def _alter(what: str, wanted: list[int], epoch: int, set_epoch: int, master: int = 1, name: str = NAME) -> Step:
    body = json.dumps({"syncStateSet": wanted, "syncStateSetEpoch": set_epoch}).encode()
    ext = {"brokerName": name, "masterBrokerId": str(master), "masterEpoch": str(epoch), "invokeTime": "1"}
    return Step(f"alter: {what}", Code.CONTROLLER_ALTER_SYNC_STATE_SET, ext, body)


def _clean(what: str, ids: str | None, *, living: bool = False, name: str = NAME) -> Step:
    fields: dict[str, object] = {} if ids is None else {"brokerControllerIdsToClean": ids}
    return Step(f"clean: {what}", Code.CLEAN_BROKER_DATA, _of(name, isCleanLivingBroker=str(living).lower(), **fields))


def _data(what: str, *names: str) -> Step:
    body = json.dumps(names).encode() if names else b""
    return Step(f"sync state data: {what}", Code.CONTROLLER_GET_SYNC_STATE_DATA, {}, body)


STEPS = (
    Step("metadata", Code.CONTROLLER_GET_METADATA_INFO, {}),
    Step("next id of a new name", Code.CONTROLLER_GET_NEXT_BROKER_ID, _of(NAME)),
    Step("replica info of a new name", Code.CONTROLLER_GET_REPLICA_INFO, {"brokerName": NAME}),
    Step("apply: the first id", Code.CONTROLLER_APPLY_BROKER_ID, _apply(1, "one")),
    Step("apply: the same again", Code.CONTROLLER_APPLY_BROKER_ID, _apply(1, "one")),
    Step("apply: an id of another", Code.CONTROLLER_APPLY_BROKER_ID, _apply(1, "two")),
    Step("apply: the second id", Code.CONTROLLER_APPLY_BROKER_ID, _apply(2, "two")),
    Step("apply: the third id", Code.CONTROLLER_APPLY_BROKER_ID, _apply(3, "three")),
    Step("apply: the fourth id", Code.CONTROLLER_APPLY_BROKER_ID, _apply(4, "four")),
    Step("apply: not the first of a new name", Code.CONTROLLER_APPLY_BROKER_ID, _apply(2, "x", UNKNOWN)),
    Step("next id", Code.CONTROLLER_GET_NEXT_BROKER_ID, _of(NAME)),
    *(Step(f"register: {one}", Code.CONTROLLER_REGISTER_BROKER, _register(one)) for one in (1, 2, 3, 4)),
    Step("register: an unknown id", Code.CONTROLLER_REGISTER_BROKER, _register(9)),
    Step("register: an unknown name", Code.CONTROLLER_REGISTER_BROKER, _register(1, UNKNOWN)),
    *(Step(f"heartbeat: {one}", Code.BROKER_HEARTBEAT, _beat(one)) for one in (1, 2, 3)),
    Step("heartbeat: without an id", Code.BROKER_HEARTBEAT, {k: v for k, v in _beat(1).items() if k != "brokerId"}),
    Step("elect: an unknown name", Code.CONTROLLER_ELECT_MASTER, _elect(1, name=UNKNOWN)),
    Step("elect: the first", Code.CONTROLLER_ELECT_MASTER, _elect(1)),
    Step("elect: while the master lives", Code.CONTROLLER_ELECT_MASTER, _elect(2)),
    Step("replica info", Code.CONTROLLER_GET_REPLICA_INFO, {"brokerName": NAME, "brokerId": "2"}),
    Step("register: a follower of a living master", Code.CONTROLLER_REGISTER_BROKER, _register(2)),
    _alter("an unknown name", [1], 1, 1, name=UNKNOWN),
    _alter("the same set", [1], 1, 1),
    _alter("by another than the master", [1, 2], 1, 1, master=2),
    _alter("of another master epoch", [1, 2], 9, 1),
    _alter("of another set epoch", [1, 2], 1, 9),
    _alter("with an unknown replica", [1, 9], 1, 1),
    _alter("without the master", [2, 3], 1, 1),
    _alter("a larger set", [1, 2, 3], 1, 1),
    _data("of a name", NAME),
    _data("of an unknown name", UNKNOWN),
    Step("elect: a named follower", Code.CONTROLLER_ELECT_MASTER, _elect(2, designated=True)),
    Step("elect: the master once more", Code.CONTROLLER_ELECT_MASTER, _elect(2, designated=True)),
    Step("elect: a named stranger", Code.CONTROLLER_ELECT_MASTER, _elect(9, designated=True)),
    _alter("after the change", [1, 2], 2, 3, master=2),
    _clean("a living replica", "3"),
    _clean("no number", "x"),
    _clean("a dead replica", "4"),
    _data("after a dead one is cleaned", NAME),
    _clean("a living replica, told so", "3", living=True),
    _clean("an unknown replica", "9", living=True),
    _clean("an unknown name", "1", name=UNKNOWN, living=True),
    _data("after cleaning", NAME),
    Step("next id after cleaning", Code.CONTROLLER_GET_NEXT_BROKER_ID, _of(NAME)),
    _clean("all of a living name", None),
    Step("set a key", Code.UPDATE_CONTROLLER_CONFIG, {}, b"enableElectUncleanMaster=true\n"),
    Step("set a key of the black list", Code.UPDATE_CONTROLLER_CONFIG, {}, b"configStorePath=/x\n"),
    Step("settings", Code.GET_CONTROLLER_CONFIG, {}),
    Step("epochs", Code.GET_BROKER_EPOCH_CACHE, {}),
    Step("a role notice", Code.NOTIFY_BROKER_ROLE_CHANGED, {}),
    *(Step(f"request {code}", code, {}) for code in range(1014, 1019)),
    _clean("all, told so", None, living=True),
    Step("replica info after that", Code.CONTROLLER_GET_REPLICA_INFO, {"brokerName": NAME}),
    Step("apply: the first of another name", Code.CONTROLLER_APPLY_BROKER_ID, _apply(1, "one", OTHER)),
    Step("apply: an id ahead", Code.CONTROLLER_APPLY_BROKER_ID, _apply(7, "seven", OTHER)),
    Step("elect: an unknown id", Code.CONTROLLER_ELECT_MASTER, _elect(9, name=OTHER)),
    _data("without a body"),
)


async def answers(address: str) -> dict[str, dict[str, Any]]:
    """What the controller at an address says in this conversation, by what was asked; only the names of settings."""
    client, found = RemotingClient(), {}
    try:
        for step in STEPS:
            answer = await client.request(address, Command(step.code, ext=dict(step.ext), body=step.body), WAIT_S)
            body: Any = bytes(answer.body).decode()
            if step.code == Code.GET_CONTROLLER_CONFIG:
                body = sorted(line.partition("=")[0] for line in body.splitlines() if "=" in line)
            elif body:
                body = loads(body.encode())
            found[step.what] = {"code": answer.code, "remark": answer.remark, "ext": dict(answer.ext), "body": body}
    finally:
        await client.close()
    return found
