"""Transactors: users' programs with the shipping producer's transactions, and the decisions of these.

    Transactor --half message--> the leader --> half topic      the book, which is the programs' own database, knows
               --commit, rollback (37)-----> its topic, or not  every decision, and outlives programs that are killed
               <--check (39)-- about what nobody has decided

A decision is in the book before it is sent. So a message may be in its topic only if the book has its commit, and at
most as often as its half message was stored (R32). In the end every half message must be decided, by a check if its
program is dead or has left the decision to a check.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Final

from broker.state import names
from broker.transactions.service import HALF_KEY
from chaos.sim.errors import SafetyViolation
from chaos.sim.stack.accounts import CommittedLog
from chaos.sim.stack.nameservers import SimNameservers
from chaos.sim.stack.programs import ATTEMPT_S, TOPIC, Program
from chaos.sim.stack.sockets import Sockets
from ledgermq.client.core.message import Message
from ledgermq.client.errors import LedgerMQError, TransactionUndecidedError
from ledgermq.client.producer.producer import Producer
from ledgermq.client.producer.transactions import Decision

_GROUP: Final = "t"
_CHANCE: Final = 0.4
_LONGEST_S: Final = 2.0
_SLOW: Final = 0.1


class TransactionBook:
    """The decisions by the body of the message."""

    def __init__(self, accounts: CommittedLog) -> None:
        self._accounts = accounts
        self._running: dict[bytes, str] = {}
        self._decided: dict[bytes, Decision] = {}
        self._owed: dict[bytes, None] = {}

    def begin(self, body: bytes, owner: str) -> None:
        """Note that a program begins a transaction."""
        self._running[body] = owner
        self._accounts.transactions.add((TOPIC, body))

    def end(self, body: bytes, decision: Decision) -> None:
        """Note the decision of a transaction; UNKNOWN leaves it to a check."""
        self._running.pop(body, None)
        self._decided[body] = decision
        if decision is Decision.COMMIT:
            self._accounts.commits.add(body)
        if decision is Decision.ROLLBACK:
            self._owed.pop(body, None)
        else:
            self._owed[body] = None

    def program_ended(self, owner: str) -> None:
        """Roll back the transactions that a killed program had under way."""
        for body in [body for body, name in self._running.items() if name == owner]:
            self.end(body, Decision.ROLLBACK)

    def check(self, body: bytes, dice: Random) -> Decision:
        """Answer a check, as any program of the group does."""
        if body in self._running:
            return Decision.UNKNOWN
        if self._decided[body] is Decision.UNKNOWN:
            self.end(body, dice.choice(tuple(Decision)))
        return self._decided[body]

    def owed(self) -> Callable[[], str]:
        """Return a function that names a transaction stored by now that is not settled; empty if there is none."""
        halves = len(self._accounts.present_life((names.HALF_TOPIC, 0)).messages)
        owed = list(self._owed)

        def open_one() -> str:
            while owed:
                if owed[-1] in self._owed and self._accounts.lacks(TOPIC, owed[-1]):
                    return f"{self._decided[owed[-1]].name} is the decision on {owed[-1]!r}, which is not there"
                self._owed.pop(owed.pop(), None)
            settled = self._accounts.offsets.get(HALF_KEY, {}).get("0", 0)
            return f"half messages are settled up to {settled} of {halves}" if settled < halves else ""

        return open_one


class Transactor(Program):
    """One process of a program."""

    def __init__(
        self,
        cluster: Any,
        accounts: CommittedLog,
        sockets: Sockets,
        nameservers: SimNameservers,
        name: str,
        dice: Random,
        book: TransactionBook,
    ) -> None:
        self._book = book
        super().__init__(cluster, accounts, sockets, nameservers, name, dice)

    def _new_producer(self) -> Producer:
        return Producer(
            self._nameservers.addresses,
            _GROUP,
            attempt_timeout_s=ATTEMPT_S,
            create_topics=False,
            checker=self._answer,
        )

    def _answer(self, message: Message) -> Decision:
        decision = self._book.check(message.body, self._dice)
        self._cluster.mark(f"transaction checked: {decision.name.lower()}")
        return decision

    def _ask(self) -> None:
        if TOPIC not in self._accounts.topics:
            self._begin(self._make_topic(TOPIC))
        elif self._dice.random() < _CHANCE:
            self._begin(self._transact(self._dice.choice(tuple(Decision))))

    async def _send_by_route(self, topic: str, deadline_s: float) -> bool:
        """Send a message by a transaction; return whether its commit was acknowledged."""
        return await self._transact(Decision.COMMIT)

    async def _transact(self, decision: Decision) -> bool:
        """Run one transaction; return whether the broker acknowledged the decision."""
        body = b"%d transaction" % self._cluster.next_message()
        self._book.begin(body, self.name)
        transaction = self._producer.transaction(TOPIC, body)
        try:
            async with transaction:
                if not self._accounts.has_half(TOPIC, body):
                    raise SafetyViolation("R23", f"{self.name} was told that {body!r} is stored, and it is not there")
                await asyncio.sleep(_LONGEST_S * self._dice.random() * (1 if self._dice.random() < _SLOW else 0.01))
                self._book.end(body, decision)
                if decision is Decision.UNKNOWN:
                    transaction.defer()
                elif decision is Decision.ROLLBACK:
                    await transaction.rollback()
        except TransactionUndecidedError:
            self._cluster.mark("decision of a transaction without an answer")
            return False
        except LedgerMQError:
            self._cluster.mark("half message without an acknowledgement")
            self._book.end(body, Decision.ROLLBACK)
            return False
        self._cluster.mark(f"transaction ended: {decision.name.lower()}")
        if decision is Decision.COMMIT and self._accounts.copies(TOPIC, body) == 0:
            raise SafetyViolation("R23", f"{self.name} was told that {body!r} is committed, and it is not there")
        return True

    def kill(self) -> None:
        """Kill the program, and roll back its transactions under way."""
        self._book.program_ended(self.name)
        super().kill()
