"""Headers and bodies of a controller's answers, as RocketMQ's controller has them.

Source: apache/rocketmq `remoting/.../protocol/header/controller/**/*ResponseHeader.java`,
`remoting/.../protocol/body/{SyncStateSet,ElectMasterResponseBody,BrokerReplicasInfo}.java` (5.3).
"""

from collections.abc import Callable, Iterable
from typing import Any

from ha.controller.core.model import Group
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.java_json import java_json


def master_fields(group: Group, *, with_set_epoch: bool = True) -> dict[str, str]:
    """Return the header fields of the master; without a master only the epochs, as Java leaves out nulls."""
    fields = {
        "masterBrokerId": group.master_id,
        "masterAddress": group.address_of(group.master_id),
        "masterEpoch": group.master_epoch,
        "syncStateSetEpoch": group.set_epoch if with_set_epoch else None,
    }
    return {name: str(value) for name, value in fields.items() if value is not None}


def role_notice(group: Group) -> Command:
    """Return the notice (1008) that tells replicas their master, for which they also ask (1004)."""
    return Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext=master_fields(group), body=set_body(group))


def set_body(group: Group) -> bytes:
    """Return the in-sync set with its epoch."""
    return java_json({"syncStateSet": sorted(group.in_sync), "syncStateSetEpoch": group.set_epoch})


def election_body(group: Group, *, is_new: bool) -> bytes:
    """Return the in-sync set, after an election also the addresses of all replicas."""
    members = {
        "brokerAddrs": {broker_id: one.address for broker_id, one in sorted(group.replicas.items())},
        "brokerName": group.name,
        "cluster": group.cluster,
    }
    return java_json(({"brokerMemberGroup": members} if is_new else {}) | {"syncStateSet": sorted(group.in_sync)})


def replicas_body(groups: Iterable[Group], is_alive: Callable[[str, int], bool]) -> bytes:
    """Return for each group its master, its replicas in sync, and the others."""
    table: dict[str, Any] = {}
    for group in groups:
        replicas = [
            {
                "alive": is_alive(group.name, broker_id),
                "brokerAddress": one.address,
                "brokerId": broker_id,
                "brokerName": group.name,
            }
            for broker_id, one in sorted(group.replicas.items())
        ]
        fields = {
            "inSyncReplicas": [one for one in replicas if one["brokerId"] in group.in_sync],
            "masterAddress": group.address_of(group.master_id),
            "masterBrokerId": group.master_id,
            "masterEpoch": group.master_epoch,
            "notInSyncReplicas": [one for one in replicas if one["brokerId"] not in group.in_sync],
            "syncStateSetEpoch": group.set_epoch,
        }
        table[group.name] = {name: value for name, value in fields.items() if value is not None}
    return java_json({"replicasInfoTable": table})
