"""Level `long`: the longest lists, a topic of 65,536 queues, and held pulls times the size of the message they find.

A broker that checks users is asked by a stranger, by a user without rights, by one with every right to the wide topic
and his group, and by the super user. Each kind of request has its turn: at first as long as it may be and from the
super user, then of a drawn length from a drawn user, at times longer than is allowed or damaged. It is answered or
refused, the node has not spent more than 0.3 s on it, and does not grow.
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.frame import encode
from ledgermq.remoting.signature import Credentials
from tests.attacks.scene import Stranger, send
from tests.fuzz.campaign import LIMIT_S
from tests.fuzz.cases import Failure
from tests.fuzz.rights import ELSEWHERE, ROOT, WITHOUT, RightsCampaign, RightsPair
from tests.fuzz.values import Values

_WIDE: Final = "wide"
_GROUP: Final = "g0"
_HELD: Final = "held"
_QUEUES: Final = 65_536
_GROWTH_MAX_BYTES: Final = 200 << 20

Asked = tuple[dict[str, str], bytes]


@dataclass(frozen=True, slots=True)
class Kind:
    """A request whose work grows with a number: its code, the most of it, and how it is made."""

    code: int
    most: int
    make: Callable[[int], Asked]


def _listed(name: str, entry: Callable[[int], Any], **others: Any) -> Callable[[int], Asked]:
    return lambda count: ({}, json.dumps({**others, name: [entry(number) for number in range(count)]}).encode())


def _fields(**fields: str) -> Callable[[int], Asked]:
    return lambda _: (fields, b"")


def _topic(number: int) -> dict[str, Any]:
    return {"topicName": f"t{number}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}


def _queue(number: int) -> dict[str, Any]:
    return {"topic": _WIDE, "brokerName": "broker-a", "queueId": number}


def _subscribes(number: int) -> dict[str, Any]:
    return {"topic": f"T{number}", "subString": "||".join(f"tag{tag}" for tag in range(3))}


def _ack(number: int) -> dict[str, Any]:
    return {"c": _GROUP, "t": _WIDE, "r": "0", "so": number, "rq": 0, "q": number, "pt": 1, "it": 60000, "b": "AQ=="}


def _entries(count: int) -> Asked:
    entries = [
        {"resource": f"Topic:a{number}", "actions": ["Pub"], "sourceIps": ["192.0.2.0/24"], "decision": "Allow"}
        for number in range(count)
    ]
    acl = {"subject": "User:without", "policies": [{"policyType": "Custom", "entries": [entry]} for entry in entries]}
    return {"subject": "User:without"}, json.dumps(acl).encode()


def _tags(count: int) -> Asked:
    subscription = {"topic": "T", "subString": "||".join(f"{tag:x}" for tag in range(count))}
    body = {"clientID": "c", "consumerDataSet": [{"groupName": "tags", "subscriptionDataSet": [subscription]}]}
    return {}, json.dumps(body).encode()


def _consumer(number: int) -> dict[str, Any]:
    return {"groupName": f"c{number}", "subscriptionDataSet": [_subscribes(number)]}


_LOCKS: Final = {"consumerGroup": _GROUP, "clientId": "c"}
KINDS: Final = (
    Kind(18, 10_000, _listed("topicConfigList", _topic)),
    Kind(225, 10_000, _listed("groupConfigList", lambda number: {"groupName": f"g{number}"})),
    Kind(34, 10_000, _listed("producerDataSet", lambda number: {"groupName": f"p{number}"}, clientID="c")),
    Kind(34, 1000, _listed("consumerDataSet", _consumer, clientID="c")),
    Kind(34, 8000, _tags),
    Kind(41, 65_536, _listed("mqSet", _queue, **_LOCKS)),
    Kind(42, 65_536, _listed("mqSet", _queue, **_LOCKS)),
    Kind(3006, 10_000, _entries),
    Kind(3007, 10_000, _entries),
    Kind(200151, 10_000, _listed("acks", _ack, brokerName="broker-a")),
    Kind(222, 1, _fields(topic=_WIDE, group=_GROUP, timestamp="-1", isForce="true")),
    Kind(314, 1, _fields(topic=_WIDE, srcGroup=_GROUP, destGroup="g1", offline="true")),
    Kind(202, 1, _fields(topic=_WIDE)),
    Kind(208, 1, _fields(topic=_WIDE, consumerGroup=_GROUP)),
    Kind(303, 1, _fields(topic=_WIDE, group=_GROUP)),
    Kind(308, 1, _fields(topic=_WIDE, compareGroup=_GROUP, filterGroups="")),
    Kind(317, 1, _fields(isOrder="false")),
    *(Kind(code, 1, _fields()) for code in (21, 43, 201, 305, 328, 3005, 3010)),
)
HOLDS: Final = tuple(itertools.product((1, 16, 64, 300), (1, 1 << 16, 4_000_000)))
"""Held pulls, and the bytes of the message that all of them find; their turns come behind the requests."""
CASES: Final = len(KINDS) + len(HOLDS)
_TOO_WIDE: Final = (303, 317)  # their answer about 65,536 queues is longer than clients read
CONF: Final = {"maxTopics": "100000", "autoCreateTopicEnable": "true"}


class LongCampaign(RightsCampaign):
    """Cases against one broker with users: case N is the turn of kind or hold N, modulo their number."""

    level = "long"
    growth_max_bytes: Mapping[int, int] = {}

    def __init__(self, pair: RightsPair, seed: int, limit_s: float = LIMIT_S) -> None:
        super().__init__(pair, seed, limit_s)
        queues = {"readQueueNums": str(_QUEUES), "writeQueueNums": str(_QUEUES)}
        wide = {
            "topic": _WIDE,
            "defaultTopic": "TBW102",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "order": "false",
        }
        self._root(17, wide | queues, "")
        for group in (_GROUP, "g1"):
            self._root(200, {}, {"groupName": group})
        subject = f"User:{ELSEWHERE.access_key}"
        entries = [{"resource": resource, "actions": ["All"], "decision": "Allow"}
                   for resource in (f"Topic:{_WIDE}", f"Group:{_GROUP}")]  # fmt: skip
        self._root(3006, {"subject": subject}, {"subject": subject, "policies": [{"entries": entries}]})
        self._root(310, send(_HELD), "first")
        self._most_bytes = pair.broker.memory_bytes + _GROWTH_MAX_BYTES

    def run_case(self, number: int) -> Failure | None:
        """One case, and what the broker keeps of it."""
        failure = super().run_case(number)
        if failure is None and (kept := self._pair.broker.memory_bytes) > self._most_bytes:
            failure = self._failure(number, f"the broker has {kept >> 20} MiB")
        return failure

    def _case(self, values: Values, server: str) -> None:
        turn, place = divmod(self._number, CASES)
        if place >= len(KINDS):
            self._hold(*HOLDS[place - len(KINDS)])
            return
        kind = KINDS[place]
        who = ROOT if turn == 0 else values.random.choice((None, WITHOUT, ELSEWHERE, ROOT))
        counts = (1, kind.most // 2, kind.most, kind.most + 1, 3 * kind.most)
        count = kind.most if turn == 0 else values.random.choice(counts)
        ext, body = kind.make(count)
        if turn and values.chance(0.2):
            body = values.damaged(body)
        with contextlib.closing(Stranger(self._pair.dial("B", self._limit_s))) as peer:
            answer = _ask(peer, who, kind.code, ext, body)
        assert turn or answer.code == 0 or kind.code in _TOO_WIDE, f"{kind.code} of {count} is refused: {answer}"
        assert answer.code or who not in (None, WITHOUT) or kind.code == 34, f"{who} is served: {answer}"
        self.answers += 1

    def _hold(self, pulls: int, size: int) -> None:
        """Pulls of four connections find one message at once; half of the connections do not read their answers."""
        end = int(self._root(30, {"topic": _HELD, "queueId": "0"}, "").ext["offset"])
        with contextlib.ExitStack() as stack:
            dialled = [Stranger(self._pair.dial("B", self._limit_s)) for _ in range(4)]
            peers = [stack.enter_context(contextlib.closing(peer)) for peer in dialled]
            for pull in range(pulls):
                peers[pull % 4].socket.sendall(_signed(ROOT, 11, _pull(end), b""))
            assert _ask(peers[0], ROOT, 9998, {}, b"").code  # those before it are held, or at least read
            self._root(310, send(_HELD), "x" * size)
            for pull in range(pulls):
                if pull % 4 < 2:
                    peers[pull % 4].hear()
                    self.answers += 1

    def _check_service(self) -> None:
        self._root(310, send(_HELD), "service")


def _pull(offset: int) -> dict[str, str]:
    return {"consumerGroup": _GROUP, "topic": _HELD, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32",
            "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "20000", "subscription": "*",
            "subVersion": "0", "expressionType": "TAG"}  # fmt: skip


def _signed(who: Credentials | None, code: int, ext: dict[str, str], body: bytes) -> bytes:
    command = Command(code, 1, ext=ext, body=body)
    if who is not None:
        who.sign(command)
    return encode(command)


def _ask(peer: Stranger, who: Credentials | None, code: int, ext: dict[str, str], body: bytes) -> Command:
    peer.socket.sendall(_signed(who, code, ext, body))
    return peer.hear()
