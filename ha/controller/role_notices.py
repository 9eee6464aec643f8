"""Tells the living replicas of a broker name who its new master is (1008), one-way and once.

A notice that is lost is made up for by the question that every broker asks each few seconds (1004).

Source: apache/rocketmq `controller/.../ControllerManager.java` (notifyBrokerRoleChanged), 5.3.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from ha.controller.answers import master_fields, set_body
from ha.controller.core.model import Group
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError

_LIMIT_S: Final = 3.0
_UNDER_WAY_MAX: Final = 1000
_log: Final = logging.getLogger(__name__)


class RoleNotices:
    """Sends them; owns its connections."""

    def __init__(self, client: RemotingClient) -> None:
        self._client = client
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, group: Group, recipients: Iterable[int]) -> None:
        """Tell these replicas, without waiting; those that cannot be reached are logged and left."""
        for broker_id in recipients:
            if len(self._tasks) >= _UNDER_WAY_MAX:
                _log.warning("replicas of %s are not told of their master: too many notices under way", group.name)
                return
            task = asyncio.get_running_loop().create_task(self._tell(group, group.replicas[broker_id].address))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Drop what is under way."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    async def _tell(self, group: Group, address: str) -> None:
        notice = Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext=master_fields(group), body=set_body(group))
        try:
            async with asyncio.timeout(_LIMIT_S):
                await self._client.oneway(address, notice)
        except (RemotingError, TimeoutError) as error:
            _log.warning("%s is not told of the master of %s: %s", address, group.name, error)
