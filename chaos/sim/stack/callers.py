"""Callers: clients that send requests to any member, whether it leads or not, as users' programs do.

    Caller --RemotingClient--> Sockets --> a member's handler ---------------> its own store
                                                '--PassOn--> Sockets --> the leader's handler --> its store

A message is sent once, whatever the outcome. An acknowledged message must be committed at the place in the answer, a
message that is read must be committed where it was read; `accounts` checks that no message is committed twice.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final

import orjson

from chaos.sim.errors import SafetyViolation
from chaos.sim.stack.accounts import CommittedLog
from chaos.sim.stack.clients import GROUP, QUEUES, TOPICS
from chaos.sim.stack.diskless import Diskless
from chaos.sim.stack.sockets import FIRST_PORT, Sockets
from ledgermq.message.batch import encode_batch
from ledgermq.message.record import decode_records
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.refusal import Cause

MORTAL_FAULTS: Final = ("transactor_killed", "popper_killed")
_TIMEOUT_S: Final = 1.5
_AT_ONCE: Final = 3
_HELD: Final = 2
_WITH_SUBSCRIPTION: Final = 4
RETRY_S: Final = 0.1
_FINAL: Final = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
_HEARTBEAT: Final = {
    "clientID": "caller",
    "consumerDataSet": [
        {
            "groupName": GROUP,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [{"topic": topic, "subString": "*", "subVersion": 0} for topic in TOPICS],
        }
    ],
    "producerDataSet": [],
}
_NOT_SO: Final = (Cause.SYSTEM_ERROR.slug, Cause.MALFORMED_FIELD.slug, Cause.INVALID_PARAMETER.slug, "")


class Caller(Diskless):
    """One client."""

    def __init__(self, cluster: Any, accounts: CommittedLog, sockets: Sockets, name: str, dice: Random) -> None:
        super().__init__(cluster, sockets, name)
        self._accounts = accounts
        self._sockets = sockets
        self._dice = dice
        self._positions: dict[tuple[str, int], int] = {}
        with self.loop.running():
            self._client = RemotingClient()

    def act(self) -> None:
        """Send some requests to some members."""
        self.has("asks", self._ask)
        if self._dice.random() < 0.03:
            self._cluster.mark("connection reset")
            self._sockets.break_one()

    def ask_each(self) -> dict[str, None]:
        """Send a message to each member and pull from it until it answers; return those that have not answered yet.

        Only the first member gets heartbeats, and the pulls have no subscription.
        """

        async def until_answered(number: int) -> None:
            while not (await self._is_taken(number) and await self._is_served(number)):
                await asyncio.sleep(RETRY_S)

        return self._wait_for_each("asks each", until_answered)

    def _wait_for_each(self, what: str, until_done: Callable[[int], Coroutine[Any, Any, None]]) -> dict[str, None]:
        """Run `until_done` for each member's number; return those for which it has not ended, removed one by one."""
        waiting = {f"{self.name} of {name}": None for name in self._cluster.plan.names}

        async def wait_for(number: int) -> None:
            await until_done(number)
            del waiting[f"{self.name} of n{number}"]

        def begin() -> None:
            for number in range(len(waiting)):
                self._begin(wait_for(number))

        self.has(what, begin)
        return waiting

    async def _is_taken(self, number: int) -> bool:
        with contextlib.suppress(RemotingError):
            return await self._send(number) in _FINAL
        return False

    async def _is_served(self, number: int) -> bool:
        with contextlib.suppress(RemotingError):
            await self._request(RequestCode.HEART_BEAT, {}, orjson.dumps(_HEARTBEAT), 0)
            codes = [await self._pull(number, 0, topic) for topic in TOPICS]
            return ResponseCode.SUBSCRIPTION_NOT_EXIST not in codes
        return False

    def _ask(self) -> None:
        for _ in range(1 + self._pick(_AT_ONCE)):
            chance = self._dice.random()
            if chance < 0.6:
                self._begin(self._send())
            elif chance < 0.9:
                self._begin(self._pull())
            else:
                self._begin(self._commit_offset())

    def _pick(self, limit: int) -> int:
        return int(self._dice.random() * limit)

    def _begin(self, request: Coroutine[Any, Any, object]) -> None:
        self.loop.create_task(self._guarded(request))

    async def _guarded(self, request: Coroutine[Any, Any, object]) -> None:
        try:
            await request
        except RemotingError:
            self._cluster.mark("request unanswered")
        except SafetyViolation as violation:
            self.loop.errors.append(violation)

    async def _request(
        self, code: int, ext: dict[str, Any], body: bytes = b"", number: int | None = None
    ) -> tuple[Command, str]:
        """Send a request to the member with this number, or to any; return the answer, and whether a leader gave it.

        Raises:
            RemotingError: there is no answer.
            SafetyViolation: the answer is an error that no client may see.
        """
        if number is None:
            number = self._pick(len(self._cluster.plan.names))
        process = self._cluster.processes.get(f"n{number}")
        way = "from a leader" if process is not None and process.is_writable else "from a follower"
        command = Command(code, ext={name: str(value) for name, value in ext.items()}, body=body)
        answer = await self._client.request(f"127.0.0.1:{FIRST_PORT + number}", command, _TIMEOUT_S)
        if answer.code == ResponseCode.SYSTEM_ERROR and answer.ext.get("cause", "") in _NOT_SO:
            raise SafetyViolation("R23", f"n{number} answers request {code} with an error: {answer.remark}")
        return answer, way

    async def _make_topic(self, topic: str) -> None:
        leader = self._cluster.leader()
        if leader is not None:
            fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": QUEUES, "writeQueueNums": QUEUES}
            fields |= {"perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
            await self._request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields, number=int(leader.name[1:]))

    async def _send(self, number: int | None = None, topic: str = "") -> int:
        topic, queue_id = topic or TOPICS[self._pick(len(TOPICS))], self._pick(QUEUES)
        message = self._cluster.next_message()
        body = b"%d " % message + b"." * self._pick(200)
        fields = {"a": "p", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 0, "h": 0, "j": 0}
        fields |= {"i": f"UNIQ_KEY\x01{message:032X}\x02WAIT\x01true\x02", "k": "false", "m": "false"}
        answer, way = await self._request(RequestCode.SEND_MESSAGE_V2, fields, body, number)
        if answer.code != ResponseCode.SUCCESS:
            self._cluster.mark(f"send refused: {answer.ext.get('cause', answer.code)}")
            return answer.code
        self._cluster.mark(f"send acknowledged {way}")
        at = int(field_of(answer, "msgId")[-16:], 16)
        self._expect((topic, queue_id), int(field_of(answer, "queueOffset")), at, body, "acknowledged")
        return answer.code

    async def _pull(self, number: int | None = None, flags: int = _WITH_SUBSCRIPTION, topic: str = "") -> int:
        key = topic or TOPICS[self._pick(len(TOPICS))], self._pick(QUEUES)
        offset = self._positions.get(key, 0)
        fields = {
            "consumerGroup": GROUP,
            "topic": key[0],
            "queueId": key[1],
            "queueOffset": offset,
            "maxMsgNums": 8,
            "sysFlag": flags | (_HELD if self._dice.random() < 0.5 else 0),
            "commitOffset": 0,
            "suspendTimeoutMillis": 300,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        answer, way = await self._request(RequestCode.PULL_MESSAGE, fields, number=number)
        self._cluster.mark(f"pull answered {way}: {answer.code}")
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED):
            return answer.code
        for record in decode_records(answer.body):
            self._expect(key, record.queue_offset, record.physical_offset, record.body, "gave")
        self._positions[key] = int(field_of(answer, "nextBeginOffset"))
        return answer.code

    async def _commit_offset(self) -> None:
        topic, queue_id = TOPICS[self._pick(len(TOPICS))], self._pick(QUEUES)
        fields = {"consumerGroup": GROUP, "topic": topic, "queueId": queue_id, "commitOffset": self._pick(100)}
        answer, way = await self._request(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        self._cluster.mark(f"offset answered {way}: {answer.code}")

    def _expect(self, key: tuple[str, int], queue_offset: int, at: int, body: bytes, what: str) -> None:
        """Raise a violation if this message is not committed, unless committed messages may have been lost."""
        is_owed = not self._cluster.observer.is_lossy or self._cluster.plan.recoverable
        if is_owed and not self._accounts.holds(key, queue_offset, at, body):
            place = f"{key[0]}/{key[1]}/{queue_offset}"
            raise SafetyViolation("R23", f"a member {what} a message at {place}, which is not committed there")


class BatchCaller(Caller):
    """A client that sends batches, each message of which must be committed at its own place, and pulls."""

    def _ask(self) -> None:
        self._begin(self._send_batch() if self._dice.random() < 0.7 else self._pull())

    async def _send_batch(self) -> None:
        topic, queue_id = TOPICS[self._pick(len(TOPICS))], self._pick(QUEUES)
        bodies = [b"%d " % self._cluster.next_message() + b"." * self._pick(60) for _ in range(2 + self._pick(6))]
        fields = {"a": "p", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 0, "h": 0, "i": "", "j": 0}
        fields |= {"k": "false", "m": "true"}
        body = encode_batch((0, body, b"") for body in bodies)
        answer, way = await self._request(RequestCode.SEND_BATCH_MESSAGE, fields, body)
        if answer.code != ResponseCode.SUCCESS:
            self._cluster.mark(f"batch refused: {answer.ext.get('cause', answer.code)}")
            return
        self._cluster.mark(f"batch acknowledged {way}")
        first = int(field_of(answer, "queueOffset"))
        places = [int(text[-16:], 16) for text in field_of(answer, "msgId").split(",")]
        for number, (at, sent) in enumerate(zip(places, bodies, strict=True)):
            self._expect((topic, queue_id), first + number, at, sent, "acknowledged")


class MortalCallers:
    """Callers of one kind, which are killed and replaced by others with new names until all faults are repaired.

    Args:
        chance: a random stream of their own, so that the runs of other seeds do not change.
        kind: prefix of their names.
        make: makes a caller with a name and a random stream.
    """

    def __init__(
        self,
        cluster: Any,
        sockets: Sockets,
        chance: Random,
        kind: str,
        make: Callable[[str, Random], Caller],
        count: int,
    ) -> None:
        self._cluster = cluster
        self._sockets = sockets
        self._chance = chance
        self._kind = kind
        self._make = make
        self._count = 0
        self._alive: dict[str, Caller] = {}
        self._is_over = False
        for _ in range(count):
            self._start()
        self._strike_later()

    @property
    def alive(self) -> list[Caller]:
        """The callers that run."""
        return list(self._alive.values())

    def _start(self) -> None:
        name = f"{self._kind}{self._count}"
        self._count += 1
        self._sockets.unlucky[name] = Random(self._chance.random())
        self._alive[name] = self._make(name, Random(self._chance.random()))

    def _strike_later(self) -> None:
        self._cluster.clock.call_in(int(1e6 * self._chance.uniform(0.3, 3.0)), self._strike)

    def _strike(self) -> None:
        if not self._is_over:
            self._cluster.mark(f"fault {self._kind}_killed")
            self._alive.pop(self._chance.choice(list(self._alive))).kill()
            self._start()
            self._strike_later()

    def heal(self) -> None:
        """Kill no more callers."""
        self._is_over = True

    def end(self) -> None:
        """End all callers."""
        for caller in self.alive:
            caller.kill()


def field_of(answer: Command, name: str) -> str:
    """Return a field that every answer to such a request has.

    Raises:
        SafetyViolation: it has none.
    """
    if name not in answer.ext:
        raise SafetyViolation("R23", f"an answer without {name}: it is that of another request")
    return answer.ext[name]
