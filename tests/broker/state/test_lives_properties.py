"""Histories of topics removed and made again: consumers read what was acknowledged in the present life, and no more.

Requests overlap while nothing commits, the broker restarts with tables that are saved or not, with queues or without,
and with the end of the log cut off below the saved tables.
"""

import random
from pathlib import Path

import pytest

from ledgermq.message.record import decode_records
from ledgermq.remoting.codec.codes import RequestCode
from tests.broker.conftest import Desk, make_topic, pull_fields, send_fields, small_config, topic_fields
from tests.broker.state.test_tables_behind_log import cut_log
from tests.broker.state.test_topic_lives import nothing_commits, placed

TOPICS = ("A", "B")
KINDS = {
    RequestCode.SEND_MESSAGE_V2: 4,
    RequestCode.UPDATE_AND_CREATE_TOPIC: 3,
    RequestCode.DELETE_TOPIC_IN_BROKER: 2,
}


class History:
    """Runs rounds of overlapping requests at a desk and keeps what was acknowledged.

    Attributes:
        lives: by topic, the bodies acknowledged in its present life, in order; without a topic there is no entry.
    """

    def __init__(self, desk: Desk, dice: random.Random) -> None:
        self.desk = desk
        self.dice = dice
        self.lives: dict[str, list[bytes]] = {}
        self._count = 0

    async def round(self) -> None:
        """Several requests that are all placed, or refused, before any commits; each on a connection of its own."""
        started = []
        with nothing_commits(self.desk):
            end = self.desk.store.log.max_offset
            for _ in range(self.dice.randint(4, 10)):
                topic, client = self.dice.choice(TOPICS), self.desk.client()
                (kind,) = self.dice.choices(list(KINDS), list(KINDS.values()))
                self._count += 1
                body = b"%d" % self._count
                fields = {
                    RequestCode.SEND_MESSAGE_V2: send_fields(topic, c="none"),
                    RequestCode.UPDATE_AND_CREATE_TOPIC: topic_fields(topic),
                    RequestCode.DELETE_TOPIC_IN_BROKER: {"topic": topic},
                }[kind]
                opaque = client.start(kind, fields, body if kind == RequestCode.SEND_MESSAGE_V2 else b"")
                started.append((client, opaque, kind, topic, body))
            await self._mark(end)
        for client, opaque, kind, topic, body in started:
            if (await client.answer_to(opaque)).code != 0:
                continue
            if kind == RequestCode.DELETE_TOPIC_IN_BROKER:
                self.lives.pop(topic, None)
            elif kind == RequestCode.UPDATE_AND_CREATE_TOPIC:
                self.lives.setdefault(topic, [])
            else:
                self.lives[topic].append(body)

    async def restart(self) -> None:
        """Stop and start, as after a crash that lost some of what can be made again from the log."""
        root = self.desk.config.store.root
        await self.desk.stop(save_tables=self.dice.random() < 0.5)
        if self.dice.random() < 0.5:
            for path in (root / "checkpoint", *(root / "consumequeue").rglob("0" * 20)):
                path.unlink(missing_ok=True)
        await self.desk.start()

    async def cut(self) -> None:
        """Lose the end of the log and keep tables that were saved later; then both topics are made again."""
        end = self.desk.store.log.max_offset
        await self.round()
        await self.desk.stop()
        cut_log(self.desk.config.store.root, end)
        await self.desk.start()
        for topic in TOPICS:
            answer = await self.desk.client().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
            assert answer.code == 0
            await make_topic(self.desk.client(), topic)
            self.lives[topic] = []

    async def check(self) -> None:
        """The view of a consumer: the present life, from number 0 on."""
        assert self.desk.parts.context.state.topics.keys() == self.lives.keys()
        for topic, bodies in self.lives.items():
            assert await self._read(topic) == list(enumerate(bodies)), topic

    async def _read(self, topic: str) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        while True:
            answer = await self.desk.client().ask(RequestCode.PULL_MESSAGE, pull_fields(topic, offset=len(found)))
            if answer.code != 0:
                return found
            found += [(record.queue_offset, record.body) for record in decode_records(answer.body)]

    async def _mark(self, end: int) -> None:
        """Have a record placed behind the requests of a round: then they are in the log, or refused."""
        body = b'{"groupName":"round%d"}' % self._count
        self.desk.client().start(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        await placed(self.desk, end)


@pytest.mark.parametrize("seed", range(6))
async def test_what_was_acknowledged_in_the_present_life_is_read(tmp_path: Path, seed: int) -> None:
    history = History(Desk(small_config(tmp_path)), random.Random(seed))
    await history.desk.start()
    try:
        for step in range(10):
            await history.round()
            await history.check()
            if step % 3 == 2:
                await history.restart()
                await history.check()
            if step == 7:
                await history.cut()
                await history.check()
    finally:
        await history.desk.stop()
