"""Level `rights`: a broker that checks users, asked by a stranger, and by users without rights or with others.

Frames are drawn as for level `nodes`, for the topic and group of somebody else. The third user has every right to a
topic and a group of his own, and names these in some places and those of the other in the rest. Whoever asks, no answer
holds a message of the other, and afterwards the other's topic, progress and users are what they were. The first two
are refused, but for the requests that every user may make.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import orjson

from broker.auth.access import FOR_EVERY_USER
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.frame import FrameParser, encode
from ledgermq.remoting.signature import Credentials
from tests.fuzz.campaign import LIMIT_S, Campaign, owed
from tests.fuzz.frames import Frames
from tests.fuzz.nodes import NodePair
from tests.fuzz.requests import GROUP, TOPIC
from tests.fuzz.values import Values

ROOT: Final = Credentials("root", "secret-of-root")
WITHOUT: Final = Credentials("without", "secret-of-without")
ELSEWHERE: Final = Credentials("elsewhere", "secret-of-elsewhere")
_OWN_TOPIC: Final = "OwnsTopic"  # as long as the other's, so that lengths in bodies stay right
_OWN_GROUP: Final = "OwnsGroup"
_KEPT: Final = b"kept from others"
_PROBE_OPAQUE: Final = 0x7AFE
_LISTS: Final = {
    RequestCode.HEART_BEAT: "consumerDataSet",
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: "topicConfigList",
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: "groupConfigList",
    RequestCode.BATCH_ACK_MESSAGE: "acks",
}
"""Requests that need rights to what a list in their body names. A producer's heartbeat needs none, as in RocketMQ."""
CONF: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": "root", "password": "secret-of-root"}),
}


class RightsPair(NodePair):
    """A broker that checks users; its nameserver is left alone."""

    servers = "B"

    def __init__(
        self, folder: Path, conf: dict[str, str] | None = None, python: Sequence[str] = ("-m", "ledgermq_server")
    ) -> None:
        super().__init__(folder, CONF | (conf or {}), python)


class RightsCampaign(Campaign):
    """Cases against one broker with users."""

    level = "rights"

    def __init__(self, pair: NodePair, seed: int, limit_s: float = LIMIT_S) -> None:
        super().__init__(pair, seed, limit_s)
        entries = [
            {"resource": resource, "actions": ["All"], "decision": "Allow", "sourceIps": []}
            for resource in (f"Topic:{_OWN_TOPIC}", f"Group:{_OWN_GROUP}")
        ]
        for user in (WITHOUT, ELSEWHERE):
            name, password = user.access_key, user.secret_key
            self._root(RequestCode.AUTH_CREATE_USER, {"username": name}, {"username": name, "password": password})
        subject = f"User:{ELSEWHERE.access_key}"
        policy = {"subject": subject, "policies": [{"policyType": "CUSTOM", "entries": entries}]}
        self._root(RequestCode.AUTH_CREATE_ACL, {"subject": subject}, policy)
        for topic, body in ((TOPIC, None), (_OWN_TOPIC, "his own")):
            fields = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
            self._root(310, fields, body)
        self._root(200, {}, {"groupName": GROUP})
        self._root(15, {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "1"})
        self._before = self._state()

    def _case(self, values: Values, server: str) -> None:
        who = values.random.choice((None, WITHOUT, ELSEWHERE, ELSEWHERE))
        frames = Frames(values, server)
        commands = [frames.request(opaque) for opaque in range(1, values.random.choice((2, 3, 6)))]
        if who is ELSEWHERE:
            for command in commands:
                _name_own(values, command)
        for command in commands:
            if who is not None:
                who.sign(command)
                if values.chance(0.1):  # the request code is not under the signature
                    command.code = frames.request(command.opaque).code
        answers = self._exchange([frames.whole(command) for command in commands], owed(commands))
        for answer in answers:
            told = bytes(answer.body) + json.dumps(answer.ext).encode() + (answer.remark or "").encode()
            assert _KEPT not in told, f"{_name(who)} is told a message of another: {answer}"
            asked = [command for command in commands if command.opaque == answer.opaque]
            may_be_served = who is ELSEWHERE or (who and all(map(_needs_no_right, asked)))
            assert answer.code or may_be_served, f"{_name(who)} is served: {asked} {[one.ext for one in asked]}"
        self.answers += len(answers)

    def _exchange(self, frames: list[bytes], owed: set[int]) -> list[Command]:
        """All that is answered before what is owed and a last question are, or the connection is closed."""
        parser, answers = FrameParser(), list[Command]()
        with self._pair.dial("B", self._limit_s) as peer:
            peer.sendall(b"".join(frames) + encode(Command(9998, _PROBE_OPAQUE)))
            while not {_PROBE_OPAQUE, *owed} <= {answer.opaque for answer in answers} and (data := peer.recv(1 << 16)):
                answers += [found for found in parser.feed(data) if found.is_response]
        return answers

    def _root(self, code: int, ext: dict[str, str], body: object = None) -> Command:
        data = _KEPT if body is None else json.dumps(body).encode()
        command = Command(code, 1, ext=ext, body=data if code not in (14, 30) else b"")
        ROOT.sign(command)
        deadline = time.monotonic() + self._limit_s
        while True:  # the super user is made a moment after the broker is up
            answers = [answer for answer in self._exchange([encode(command)], {1}) if answer.opaque == 1]
            if answers and answers[0].code == 0:
                return answers[0]
            is_unknown = answers and answers[0].code == ResponseCode.NO_PERMISSION
            assert is_unknown and time.monotonic() < deadline, f"request {code} of the super user: {answers}"
            time.sleep(0.1)

    def _state(self) -> tuple[object, ...]:
        queues = tuple(self._root(30, {"topic": TOPIC, "queueId": str(queue)}).ext["offset"] for queue in range(4))
        progress = self._root(14, {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}).ext["offset"]
        users = bytes(self._root(RequestCode.AUTH_LIST_USER, {}, "").body)
        acls = bytes(self._root(RequestCode.AUTH_LIST_ACL, {}, "").body)
        return queues, progress, users, acls

    def _check_service(self) -> None:
        now = self._state()
        assert now == self._before, f"what belongs to another was {self._before}, and is {now}"


def _name_own(values: Values, command: Command) -> None:
    """Name what the user has rights to, in some of the places."""
    for name, value in command.ext.items():
        if values.chance(0.6):
            command.ext[name] = value.replace(TOPIC, _OWN_TOPIC).replace(GROUP, _OWN_GROUP)
    if values.chance(0.6):
        body = bytes(command.body).replace(TOPIC.encode(), _OWN_TOPIC.encode())
        command.body = body.replace(GROUP.encode(), _OWN_GROUP.encode())


def _name(who: Credentials | None) -> str:
    return "a stranger" if who is None else f"user {who.access_key}"


def _needs_no_right(command: Command) -> bool:
    """Whether every user may send this: what it asks only concerns its sender, or its list is empty."""
    if command.code in FOR_EVERY_USER:
        return True
    name = _LISTS.get(command.code)
    try:
        return name is not None and not orjson.loads(bytes(command.body)).get(name)
    except (ValueError, AttributeError):
        return False
