"""The topics and groups that `ProxyClient.java` needs: of each message type one, by requests 17 and 200."""

import orjson

from ledgermq.client import Admin
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from tests.limits import STRANGER_WAIT_S
from tests.mixed.nodes import Node

TYPES = {
    "ProxyNormal": "NORMAL",
    "ProxyInvisible": "NORMAL",
    "ProxyFifo": "FIFO",
    "ProxyDelay": "DELAY",
    "ProxyTransaction": "TRANSACTION",
    "ProxyDead": "NORMAL",
    "ProxyRemoting": "NORMAL",
    "%DLQ%ProxyDeadGroup": "NORMAL",
}
GROUPS = (
    *("ProxyNormalGroup", "ProxyInvisibleGroup", "ProxyFifoGroup", "ProxyDelayGroup", "ProxyTransactionGroup"),
    *("ProxyDeadGroup", "ProxyDeadReaders", "ProxyRemotingGroup"),
)


async def prepare(namesrv: Node) -> None:
    """At the leaders of all broker names."""
    async with Admin(namesrv.address, deadline_s=STRANGER_WAIT_S) as admin:
        leaders = (await admin.cluster()).leaders().values()
    client = RemotingClient()
    for leader in leaders:
        for topic, message_type in TYPES.items():
            await _done(client, leader, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=_topic(topic, message_type)))
        for group in GROUPS:
            body = orjson.dumps(_group(group))
            await _done(client, leader, Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))
    await client.close()


async def _done(client: RemotingClient, address: str, command: Command) -> None:
    answer = await client.request(address, command, 30.0)
    assert answer.code == 0, f"{command.name}: {answer.code} {answer.remark}"


def _topic(name: str, message_type: str) -> dict[str, str]:
    fields = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    return fields | {"attributes": f"+message.type={message_type}"}


def _group(name: str) -> dict[str, object]:
    """A group that is served in order if its name says so, and that gives up after one retry, soon."""
    soon = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1000, "max": 2000, "multiplier": 2}}
    return {
        "groupName": name,
        "consumeEnable": True,
        "consumeMessageOrderly": "Fifo" in name,
        "retryMaxTimes": 1 if name == "ProxyDeadGroup" else 16,
        "groupRetryPolicy": soon,
    }
