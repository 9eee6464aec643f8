"""Administrators: they remove, move, clone and restrict groups, and recall timers, while faults meet the brokers.

A change that is acknowledged must be in the committed log at that moment, and nothing later may undo it, which
`accounts` checks. Each change is about a group, or a message, of its own, in a topic that is never removed.
"""

import asyncio
import contextlib
from functools import cache
from random import Random
from typing import Any, Final

import orjson

from chaos.sim.errors import SafetyViolation
from chaos.sim.stack.accounts import CommittedLog
from chaos.sim.stack.callers import RETRY_S, Caller
from chaos.sim.stack.clients import QUEUES
from chaos.sim.stack.sockets import Sockets
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError
from ledgermq.wall_clock import wall_clock_ms

TOPIC: Final = "A"
_FORBIDDEN: Final = ("A", "T0")
_CHANCE: Final = 0.3
_INVISIBLE_MS: Final = 300
_RECALLED_BEFORE_MS: Final = 12
_SHORTEST_MS: Final = 100
_PAUSE_S: Final = 0.5
_HUGE: Final = 70_000
_COUNTED_US: Final = 500_000
_MOVED: Final = (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


class Administrator(Caller):
    """One administrator; it asks the leader, as far as it knows one."""

    _has_set_a_policy = False

    def __init__(self, cluster: Any, accounts: CommittedLog, sockets: Sockets, name: str, dice: Random) -> None:
        super().__init__(cluster, accounts, sockets, name, dice)
        self._count = cluster.clock.now_us  # numbers its groups; an image has some from before

    def ask_each(self) -> dict[str, None]:
        """Move a group for each member; pulls from that member must return the new offset, or point to the leader.

        Returns:
            The members that have not done so yet; they are removed one by one.
        """

        async def until_moved(number: int) -> None:
            group = None
            while group is None or await self._pull_of(group, number) not in _MOVED:
                if group is None:
                    group = await self._moved_group()
                await asyncio.sleep(RETRY_S)

        return self._wait_for_each("moves groups", until_moved)

    def _ask(self) -> None:
        if self._dice.random() > _CHANCE:
            return
        if TOPIC not in self._accounts.topics:
            fields = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": QUEUES, "writeQueueNums": QUEUES}
            fields |= {"perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
            self._begin(self._is_done(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
            return
        acts = [self._forbid_two, self._remove_a_group, self._move_a_group, self._clone_offsets, self._recall_a_timer]
        if self._cluster.plan.has_huge_requests and not self._has_set_a_policy:
            acts.append(self._set_a_huge_policy)
        self._begin(acts[self._pick(len(acts))]())

    async def _leader_answers(self, code: int, ext: dict[str, Any], body: bytes = b"") -> Command:
        leader = self._cluster.leader()
        answer, _ = await self._request(code, ext, body, None if leader is None else int(leader.name[1:]))
        return answer

    async def _counted_answer(self, code: int, ext: dict[str, Any], body: bytes = b"") -> Command:
        answer = await self._leader_answers(code, ext, body)
        self._cluster.mark(f"administrator's {code} answered {answer.code}")
        return answer

    async def _is_done(self, code: int, ext: dict[str, Any], body: bytes = b"") -> bool:
        return (await self._counted_answer(code, ext, body)).code == ResponseCode.SUCCESS

    async def _new_group(self, kind: str) -> str | None:
        """Create a group with a name of its own; return None if that failed."""
        self._count += 1
        name = f"{kind}{self._count}"
        return name if await self._is_made(name) else None

    async def _is_made(self, group: str) -> bool:
        body = orjson.dumps({"groupName": group})
        return await self._is_done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)

    async def _forbid_two(self) -> None:
        group = await self._new_group("f")
        if group is None:
            return
        fields = [{"group": group, "topic": topic, "readable": "false"} for topic in _FORBIDDEN]
        asked = [self._is_done(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, one) for one in fields]
        done = await asyncio.gather(*asked, return_exceptions=True)
        told = {topic for topic, is_done in zip(_FORBIDDEN, done, strict=True) if is_done is True}
        self._promised(told <= self._accounts.forbidden.get(group, {}).keys(), f"{group} may not read {sorted(told)}")

    async def _remove_a_group(self) -> None:
        """Remove a group that has an unacknowledged POP message."""
        group = await self._new_group("p")
        if group is None or await self._send_to(TOPIC, "") is None:
            return
        fields = {"consumerGroup": group, "topic": TOPIC, "queueId": -1, "maxMsgNums": 8, "order": "false"}
        fields |= {"invisibleTime": _INVISIBLE_MS, "pollTime": 0, "bornTime": 0, "initMode": 0, "exp": "*"}
        if not await self._is_done(RequestCode.POP_MESSAGE, fields | {"expType": "TAG"}):
            return
        if await self._is_done(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": group, "cleanOffset": "true"}):
            self._accounts.removed_groups.add(group)
            await self._is_made(group)

    async def _move_a_group(self) -> None:
        """Move a group's offsets, then report old offsets: they must not undo the move before the group has pulled."""
        group = await self._moved_group()
        if group is None:
            return
        for _ in range(2):
            fields = {"consumerGroup": group, "topic": TOPIC, "queueId": 0, "commitOffset": 1_000 + self._pick(100)}
            with contextlib.suppress(RemotingError):
                await self._leader_answers(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
            await asyncio.sleep(_PAUSE_S * self._dice.random())
        leader = self._cluster.leader()
        if leader is not None:
            await self._pull_of(group, int(leader.name[1:]))

    async def _moved_group(self) -> str | None:
        """Create a group and move its offsets to the end; return None unless that was acknowledged."""
        with contextlib.suppress(RemotingError):
            group = await self._new_group("m")
            if group is None:
                return None
            fields = {"topic": TOPIC, "group": group, "timestamp": -1, "isForce": "true"}
            answer = await self._counted_answer(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
            if answer.code == ResponseCode.SUCCESS and b"queueId" in bytes(answer.body):  # a follower moves no queue
                self._promised(self._accounts.note_moved(TOPIC, group), f"{group} has its new offsets")
                return group
        return None

    async def _pull_of(self, group: str, number: int) -> int:
        fields = {"consumerGroup": group, "topic": TOPIC, "queueId": 0, "queueOffset": 0, "maxMsgNums": 1}
        fields |= {"sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}
        with contextlib.suppress(RemotingError):
            answer, _ = await self._request(RequestCode.PULL_MESSAGE, fields | {"expressionType": "TAG"}, number=number)
            return answer.code
        return -1

    async def _clone_offsets(self) -> None:
        source, target = await self._new_group("s"), await self._new_group("d")
        fields = {"consumerGroup": source, "topic": TOPIC, "queueId": 0, "commitOffset": 1 + self._pick(100)}
        if None in (source, target) or not await self._is_done(RequestCode.UPDATE_CONSUMER_OFFSET, fields):
            return
        fields = {"srcGroup": source, "destGroup": target, "topic": TOPIC, "offline": "true"}
        if await self._is_done(RequestCode.CLONE_GROUP_OFFSET, fields):
            offsets = self._accounts.offsets
            is_cloned = offsets.get(f"{TOPIC}@{source}") == offsets.get(f"{TOPIC}@{target}")
            self._promised(is_cloned, f"{target} has the offsets of {source}")

    async def _recall_a_timer(self) -> None:
        """Recall a timer message just before it is due."""
        due_ms = (wall_clock_ms() + _SHORTEST_MS) // 1000 * 1000 + 1001
        key = f"{self.name}-{self._cluster.next_message()}"
        sent = await self._send_to(TOPIC, f"UNIQ_KEY\x01{key}\x02TIMER_DELIVER_MS\x01{due_ms}\x02")
        if sent is None or "recallHandle" not in sent[0].ext:
            return
        await asyncio.sleep((due_ms - self._pick(_RECALLED_BEFORE_MS) - wall_clock_ms()) / 1000)
        fields = {"topic": TOPIC, "recallHandle": sent[0].ext["recallHandle"], "producerGroup": "p"}
        if await self._is_done(RequestCode.RECALL_MESSAGE, fields):
            self._promised(self._accounts.note_recalled(TOPIC, sent[1]), f"{sent[1]!r} was recalled")

    async def _set_a_huge_policy(self) -> None:
        """Send a policy with so many entries that handling them would outlast a lease; brokers refuse it."""
        self._has_set_a_policy = True
        self._count += 1
        name = f"u{self._count}"
        user = orjson.dumps({"username": name, "password": "p", "userType": "Normal"})
        if await self._is_done(RequestCode.AUTH_CREATE_USER, {"username": name}, user):
            self._accounts.counted_until_us = self._cluster.clock.now_us + _COUNTED_US
            await self._counted_answer(RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, _huge_policy())

    async def _send_to(self, topic: str, properties: str) -> tuple[Command, bytes] | None:
        """Send a message; return the answer and the body, or None if it was refused."""
        body = b"%d" % self._cluster.next_message()
        fields = {"a": "p", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 0, "h": 0, "i": properties, "j": 0}
        fields |= {"k": "false", "m": "false"}
        answer = await self._leader_answers(RequestCode.SEND_MESSAGE_V2, fields, body)
        return (answer, body) if answer.code == ResponseCode.SUCCESS else None

    def _promised(self, is_so: bool, what: str) -> None:
        if not is_so:
            raise SafetyViolation("R23", f"{self.name} was told that {what}, and the log has it otherwise")


@cache
def _huge_policy() -> bytes:
    entries = [
        {"resource": [f"Topic:t{number}"], "actions": ["Pub"], "sourceIps": [], "decision": "Allow"}
        for number in range(_HUGE)
    ]
    return orjson.dumps({"policies": [{"policyType": "Custom", "entries": entries}]})
