"""Programs: users' programs with the shipping producer, which finds the leader by the routes of the nameservers.

    Producer --Routes, Nameservers--> a nameserver, held questions        what the network does to answers: it loses,
             --Calls, Sender--------> the leader, retries and hints       doubles and delays them (`Sockets`)
    a plain client --105-----------> a nameserver, which may wait up to 2 s for a leader

The result of a send must be committed at its place, in no more copies than there were tries; a message that is reported
as not stored must never be committed. At the end the leader dies, perhaps with every nameserver: sends must go on.
"""

import asyncio
from random import Random
from typing import Any, Final

from chaos.sim.errors import SafetyViolation
from chaos.sim.stack.accounts import CommittedLog
from chaos.sim.stack.callers import RETRY_S, Caller
from chaos.sim.stack.clients import TOPICS
from chaos.sim.stack.nameservers import GROUP_NAME, SimNameservers
from chaos.sim.stack.sockets import Sockets
from ledgermq.client.errors import DeadlineExceededError, LedgerMQError
from ledgermq.client.producer.producer import Producer
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.route import parse_route

TOPIC: Final = "P"
"""A topic that is never removed."""
_DEADLINES_S: Final = (0.3, 1.0, 3.0, 10.0)
ATTEMPT_S: Final = 1.0
_PLAIN_TIMEOUT_S: Final = 3.0


class Program(Caller):
    """One program."""

    def __init__(
        self,
        cluster: Any,
        accounts: CommittedLog,
        sockets: Sockets,
        nameservers: SimNameservers,
        name: str,
        dice: Random,
    ) -> None:
        super().__init__(cluster, accounts, sockets, name, dice)
        self._nameservers = nameservers
        with self.loop.running():
            self._producer = self._new_producer()
        self.loop.run_now(self._producer.start())

    def _new_producer(self) -> Producer:
        return Producer(self._nameservers.addresses, attempt_timeout_s=ATTEMPT_S, create_topics=False)

    def ask_each(self) -> dict[str, None]:
        """Send a message to whichever member leads; return this program's name until it is acknowledged."""
        waiting = {f"{self.name} at the leader": None}

        async def until_sent() -> None:
            while not await self._send_by_route(TOPIC, _DEADLINES_S[-1]):
                await asyncio.sleep(RETRY_S)
            waiting.clear()

        self.has("sends", lambda: self._begin(until_sent()))
        return waiting

    def _ask(self) -> None:
        if TOPIC not in self._accounts.topics:
            self._begin(self._make_topic(TOPIC))
            return
        for _ in range(1 + self._pick(2)):
            if self._dice.random() < 0.8:
                topic = TOPIC if self._dice.random() < 0.7 else TOPICS[self._pick(len(TOPICS))]
                self._begin(self._send_by_route(topic, _DEADLINES_S[self._pick(len(_DEADLINES_S))]))
            else:
                self._begin(self._ask_plainly())

    async def _send_by_route(self, topic: str, deadline_s: float) -> bool:
        """Send a message; return whether it was acknowledged."""
        body = b"%d " % self._cluster.next_message() + b"." * self._pick(200)
        self._accounts.allow(topic, body, None)
        try:
            result = await self._producer.send(topic, body, deadline_s=deadline_s)
        except LedgerMQError as error:
            self._cluster.mark(f"program's send failed: {type(error).__name__}")
            tries = error.attempts if isinstance(error, DeadlineExceededError) else None
            self._allow(topic, body, 0 if error.outcome_known else tries)
            return False
        self._cluster.mark(f"program's send acknowledged after {min(result.attempts, 3)} tries")
        self._allow(topic, body, result.attempts)
        at = int(result.offset_message_id[-16:], 16)
        self._expect((topic, result.queue_id), result.queue_offset, at, body, "acknowledged")
        return True

    def _allow(self, topic: str, body: bytes, copies: int | None) -> None:
        fault = self._accounts.allow(topic, body, copies)
        if fault is not None:
            raise SafetyViolation("R28", f"{self.name}: {fault}")

    async def _ask_plainly(self) -> None:
        """Ask for a route as RocketMQ's clients do, which use it even if it names no leader."""
        number = self._pick(len(self._nameservers.addresses))
        question = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": TOPIC})
        try:
            answer = await self._client.request(self._nameservers.addresses[number], question, _PLAIN_TIMEOUT_S)
        except RemotingError:
            self._cluster.mark("plain question unanswered")
            return
        if answer.code != ResponseCode.SUCCESS:
            return
        leader = parse_route(TOPIC, answer.body).brokers[GROUP_NAME].leader
        self._cluster.mark(f"plain question answered with {'a' if leader else 'no'} leader")
