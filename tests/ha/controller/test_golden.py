"""Our controller answers as RocketMQ's does, request by request; every difference is listed with its reason."""

import json
from pathlib import Path
from typing import Any

from ha.controller.server import Controller
from tests.ha.controller.exchanges import GOLDEN, STEPS, answers
from tests.ha.controller.quorums import until
from tests.ha.controller.test_server import configs

_ALL_ARE_GONE = "RocketMQ's removes the whole name when a living replica is cleaned by force; ours that replica"
DIFFERS = {
    "elect: a named stranger": "ours says that the id is unknown (2003), RocketMQ's that there is no master (2012)",
    "elect: an unknown id": "RocketMQ's makes an id that nobody has the first master",
    "clean: no number": "RocketMQ's tells the name of Java's exception",
    "clean: an unknown replica": "nothing to do is no error; in RocketMQ's the whole name is gone by then",
    "sync state data: after cleaning": _ALL_ARE_GONE,
    "next id after cleaning": _ALL_ARE_GONE,
    "clean: all of a living name": _ALL_ARE_GONE,
    "clean: all, told so": _ALL_ARE_GONE,
    "set a key of the black list": "ours names the key",
    "settings": "ours has its own keys, and leaves out those of Netty, of metrics and of DLedger",
    "sync state data: without a body": "RocketMQ's answers that it has set no answer; ours says what is missing",
}


async def test_each_answer_is_rocketmqs_but_for_what_is_listed(tmp_path: Path) -> None:
    [config] = configs(tmp_path, 1, group="controllers")
    controller = Controller(config)
    await controller.start()
    try:
        await until(lambda: controller._leadership.leads, "the controller leads")
        text = json.dumps(await answers(config.address))
    finally:
        await controller.close()
    ours: dict[str, Any] = json.loads(text.replace(config.address, "127.0.0.1:1"))
    theirs: dict[str, Any] = json.loads(GOLDEN.read_text())
    assert ours.keys() == theirs.keys() == {step.what for step in STEPS}
    assert {what for what in theirs if _without_cause(ours[what]) != _without_cause(theirs[what])} == DIFFERS.keys()


def _without_cause(answer: dict[str, Any]) -> dict[str, Any]:
    """A refusal's header is no part of it: RocketMQ's clients do not read it, and ours has the cause there."""
    return answer if answer["code"] == 0 else answer | {"ext": {}}
