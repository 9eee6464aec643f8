"""Raw requests to the leader of a cluster, for tests of state that outlives a leader."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

from ledgermq.message.record import Record, decode_records
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError
from tests.limits import WAIT_S

QUEUES = 2


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Questions:
    """A producer's end: keeps the half messages that it is asked about."""

    def __init__(self) -> None:
        self.asked: list[Command] = []

    def on_connected(self, connection: object) -> None: ...

    def on_request(self, connection: object, command: Command) -> None:
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self.asked.append(command)

    def on_closed(self, connection: object) -> None: ...


class Desk:
    """Raw requests to whoever leads.

    Args:
        cluster: a `Cluster`.
        topic: where it sends and reads, of `QUEUES` queues.
    """

    def __init__(self, cluster: Any, topic: str) -> None:
        self.questions = Questions()
        self._cluster = cluster
        self._topic = topic
        self._client = RemotingClient(self.questions)
        self._address = ""

    async def close(self) -> None:
        await self._client.close()

    async def leader(self) -> str:
        """Where the leader listens, once there is one."""
        async with asyncio.timeout(WAIT_S):
            while True:
                if masters := await asyncio.to_thread(self._cluster.nodes, "master"):
                    return str(masters[0]["address"])
                await asyncio.sleep(0.01)

    async def leave(self) -> None:
        """Forget the leader, and close the connection to it."""
        await self._client.close()
        self._client = RemotingClient(self.questions)
        self._address = ""

    async def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
        """Ask until a leader answers with success."""
        async with asyncio.timeout(WAIT_S):
            while True:
                address = self._address or await self.leader()
                try:
                    answer = await self._client.request(address, Command(code, ext=ext, body=body))
                except RemotingError:
                    self._address = ""
                    continue
                if answer.code == 0:
                    self._address = address
                    return answer
                self._address = ""

    async def send(self, body: bytes, queue_id: int, properties: Mapping[str, object]) -> Command:
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        ext = {"a": "g", "b": self._topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": str(now_ms())}
        return await self.ask(RequestCode.SEND_MESSAGE_V2, ext | {"h": "0", "i": text, "j": "0", "k": "false"}, body)

    async def tell(self, code: int, ext: dict[str, str]) -> None:
        """Send a one-way request once to the leader of the last answer; it may be lost."""
        if self._address:
            with contextlib.suppress(RemotingError):
                await self._client.oneway(self._address, Command(code, ext=ext))

    async def ends(self) -> list[int]:
        """Return the max offset of each queue of the topic."""
        fields = [{"topic": self._topic, "queueId": str(queue_id)} for queue_id in range(QUEUES)]
        return [int((await self.ask(RequestCode.GET_MAX_OFFSET, one)).ext["offset"]) for one in fields]

    async def records(self) -> list[Record]:
        """All messages in the topic."""
        found: list[Record] = []
        for queue_id, end in enumerate(await self.ends()):
            offset = 0
            while offset < end:
                pulled = await self._pull(queue_id, offset)
                found += decode_records(bytes(pulled.body))
                offset = int(pulled.ext["nextBeginOffset"])
        return found

    async def _pull(self, queue_id: int, offset: int) -> Command:
        fields = {"consumerGroup": "TOOLS_CONSUMER", "topic": self._topic, "queueId": str(queue_id)}
        fields |= {"queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0"}
        fields |= {"suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG"}
        return await self.ask(RequestCode.PULL_MESSAGE, fields)
