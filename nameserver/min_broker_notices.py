"""Notifies brokers when the smallest broker id among the members of their name changes (905), one-way and once.

By these notices a slave begins and ends to act for its master (`enableSlaveActingMaster`). A lost notice is no problem:
such a broker also asks for the member group every second.

Source: apache/rocketmq `namesrv/.../routeinfo/RouteInfoManager.java` (notifyMinBrokerIdChange), 5.3.
"""

import asyncio
import logging

from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError
from nameserver.core.model import MinBrokerChange

_log = logging.getLogger(__name__)
_LIMIT_S = 3.0
_MOST_UNDER_WAY = 1000


class MinBrokerNotices:
    """Sends the notices; owns its connections."""

    def __init__(self, client: RemotingClient) -> None:
        self._client = client
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, change: MinBrokerChange) -> None:
        """Notify all recipients without waiting; those that cannot be reached are logged."""
        for address in change.recipients:
            if len(self._tasks) >= _MOST_UNDER_WAY:
                _log.warning("%s is not notified of the smallest broker id: too many notices are under way", address)
                return
            task = asyncio.get_running_loop().create_task(self._tell(address, change))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel the notices that are being sent."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    async def _tell(self, address: str, change: MinBrokerChange) -> None:
        try:
            async with asyncio.timeout(_LIMIT_S):
                await self._client.oneway(
                    address, Command(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, ext=_fields(change))
                )
        except (RemotingError, TimeoutError) as error:
            _log.warning(
                "%s could not be notified of the smallest broker id of %s: %s", address, change.broker_name, error
            )


def _fields(change: MinBrokerChange) -> dict[str, str]:
    fields = {
        "minBrokerId": str(change.min_broker_id),
        "brokerName": change.broker_name,
        "minBrokerAddr": change.min_address,
        "offlineBrokerAddr": change.offline_address,
        "haBrokerAddr": change.ha_address,
    }
    return {name: value for name, value in fields.items() if value is not None}
